//! Tiers, orders, ends, and which policies take part.

use super::*;

fn tier(name: &str, spec: &str) -> String {
    document("projectcalico.org/v3", "Tier", &format!("{{name: {name}}}"), spec)
}

/// A policy of a tier that does something with all ingress of namespace `x`.
fn all(name: &str, tier: &str, order: &str, action: &str) -> String {
    let rule = if action.is_empty() { String::new() } else { format!("{{action: {action}}}") };
    policy(name, &format!("{{tier: {tier}, order: {order}, types: [Ingress], ingress: [{rule}]}}"))
}

fn opens(documents: &[String]) -> bool {
    world(&documents.concat()).allows(OUTSIDE, A, 80)
}

#[test]
fn tiers_are_ordered_by_number_then_name_and_those_without_a_number_come_last() {
    let (allow, deny) = (|tier: &str| all("x/p", tier, "1", "Allow"), |tier: &str| all("x/q", tier, "1", "Deny"));
    for (first, second, opens_first) in [
        (tier("one", "{order: 1}"), tier("two", "{order: 2}"), true),
        (tier("one", "{order: 2.5}"), tier("two", "{order: 2}"), false),
        (tier("one", "{order: -1}"), tier("two", "{order: 0}"), true),
        (tier("one", "{order: 3}"), tier("two", "{order: 3}"), true),
        (tier("one", "{}"), tier("two", "{order: 5000000}"), false),
        (tier("one", "{}"), tier("two", "{}"), true),
    ] {
        assert_eq!(opens(&[first.clone(), second.clone(), allow("one"), deny("two")]), opens_first, "{first}{second}");
        assert_eq!(opens(&[second, first, deny("two"), allow("one")]), opens_first);
    }
    // The tier of NetworkPolicies has order 1,000,000.
    let before = tier("one", "{order: 999999}");
    assert!(opens(&[before, allow("one"), deny("default")]));
    assert!(!opens(&[tier("one", "{order: 1000001}"), allow("one"), deny("default")]));
    assert!(!opens(
        &[tier("one", "{order: 9}"), allow("one"), deny("kube-admin")]
            .map(|text| text.replace("order: 9", "order: 1001"))
    ));
}

#[test]
fn a_policy_of_a_tier_without_an_object_counts_and_comes_last() {
    let lost = all("x/p", "lost", "1", "Allow");
    assert!(opens(std::slice::from_ref(&lost)));
    let last = tier("zzz", "{}");
    assert!(!opens(&[last, lost.clone(), all("x/q", "zzz", "1", "Deny")]));
    assert!(!opens(&[all("x/p", "lost", "1", "")]), "it denies at its end");
    assert!(opens(&[lost, all("x/q", "lost", "2", "Deny")]));
}

#[test]
fn policies_are_ordered_by_number_then_by_name_namespace_and_kind() {
    let (allow, deny) = ("Allow", "Deny");
    let rule = |name: &str, order: &str, action: &str| {
        let spec = format!("{{{order} types: [Ingress], ingress: [{{action: {action}}}]}}");
        if name.contains('/') { policy(name, &spec) } else { global(name, &spec) }
    };
    for (one, other, opens_first) in [
        (rule("x/p", "order: 1,", allow), rule("x/q", "order: 2,", deny), true),
        (rule("x/p", "order: 2,", allow), rule("x/q", "order: 1,", deny), false),
        (rule("x/p", "order: 2,", allow), rule("x/q", "order: 2,", deny), true),
        (rule("x/p", "", allow), rule("x/q", "order: 1000000000,", deny), false),
        (rule("x/p", "", allow), rule("x/q", "", deny), true),
        // `p//GlobalNetworkPolicy` is before `p/x/NetworkPolicy`, and `o/...` before both.
        (rule("p", "", allow), rule("x/p", "", deny), true),
        (rule("p", "", allow), rule("x/o", "", deny), false),
        (rule("x/p", "order: -0.5,", allow), rule("x/o", "order: -0.25,", deny), true),
    ] {
        assert_eq!(opens(&[one.clone(), other.clone()]), opens_first, "{one}{other}");
    }
}

#[test]
fn policies_of_kubernetes_stand_at_1000_in_the_default_tier() {
    let kubernetes = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: k, namespace: x}, \
                      spec: {podSelector: {}, ingress: [{}]}}\n---\n";
    assert!(!opens(&[kubernetes.to_owned(), all("x/p", "default", "999", "Deny")]));
    assert!(opens(&[kubernetes.to_owned(), all("x/p", "default", "1001", "Deny")]));
    assert!(!opens(&[
        kubernetes.to_owned(),
        all("x/p", "default", "999", "Deny"),
        all("x/q", "default", "1001", "Allow")
    ]));
    let tie = world(&all("x/p", "default", "1", "Deny")).policies[0].rank.tie.clone();
    assert_eq!(&*tie, "p/x/NetworkPolicy");
}

#[test]
fn a_log_goes_on_and_a_pass_leaves_the_tier() {
    let first = tier("first", "{order: 1}");
    let rules = |rules: &str| policy("x/p", &format!("{{tier: first, types: [Ingress], ingress: [{rules}]}}"));
    assert!(opens(&[first.clone(), rules("{action: Log}, {action: Allow}")]));
    assert!(!opens(&[first.clone(), rules("{action: Log}")]), "alone it decides nothing, and the tier denies");
    assert!(!opens(&[first.clone(), rules("")]));
    assert!(opens(&[first.clone(), rules("{action: Pass}, {action: Deny}")]));
    assert!(!opens(&[first.clone(), rules("{action: Pass}"), all("x/q", "default", "1", "Deny")]));
    // The next tier has no policy for the pod, the one behind it has.
    let more = [first, tier("second", "{order: 2}"), rules("{action: Pass}"), all("z/q", "second", "1", "Allow")];
    assert!(!opens(&[more.as_slice(), &[all("x/q", "default", "1", "Deny")]].concat()));
    assert!(opens(&more));
}

#[test]
fn a_tier_denies_at_its_end_unless_its_default_action_is_pass() {
    for (spec, is_open) in
        [("{order: 1}", false), ("{order: 1, defaultAction: Deny}", false), ("{order: 1, defaultAction: Pass}", true)]
    {
        assert_eq!(opens(&[tier("first", spec), all("x/p", "first", "1", "")]), is_open, "{spec}");
        // Only policies that select the pod in this direction count.
        assert!(opens(&[tier("first", spec), all("z/p", "first", "1", "")]));
        let egress = policy("x/p", "{tier: first, types: [Egress], egress: []}");
        assert!(opens(&[tier("first", spec), egress]));
    }
    let next = [
        tier("first", "{order: 1, defaultAction: Pass}"),
        all("x/p", "first", "1", ""),
        all("x/q", "default", "1", ""),
    ];
    assert!(!opens(&next));
}

#[test]
fn pods_without_policies_are_open_and_so_is_what_all_tiers_pass() {
    let world = world(&policy("x/p", "{selector: app == 'db', types: [Ingress]}"));
    assert!(world.allows(OUTSIDE, A, 80) && !world.allows(OUTSIDE, B, 80) && world.allows(A, OUTSIDE, 80));
    assert!(opens(&[all("x/p", "default", "1", "Pass")]));
}

#[test]
fn staged_policies_decide_nothing_and_are_audited() {
    let staged = |kind: &str, metadata: &str, spec: &str| document("projectcalico.org/v3", kind, metadata, spec);
    let deny = "{types: [Ingress], ingress: [{action: Deny}]}";
    for document in [
        staged("StagedNetworkPolicy", "{name: p, namespace: x}", deny),
        staged("StagedGlobalNetworkPolicy", "{name: p}", deny),
        staged("StagedKubernetesNetworkPolicy", "{name: p, namespace: x}", "{podSelector: {}}"),
    ] {
        let world = world(&document);
        assert!(world.allows(OUTSIDE, A, 80));
        let [staged] = &world.policies[..] else { panic!("{document}") };
        assert_eq!(staged.enforcement, Some(Enforcement::Audit));
        assert!(staged.isolates.ingress && !staged.isolates.egress);
        // Beside an enforced policy of the same name.
        let both = document.replace("Staged", "") + &document;
        if !both.contains("KubernetesNetworkPolicy") {
            let world = super::world(&both);
            assert_eq!((world.policies.len(), world.allows(OUTSIDE, A, 80)), (2, false));
        }
    }
    // A tier of which all policies are staged is as if it were not there.
    let policies = staged("StagedNetworkPolicy", "{name: p, namespace: x}", "{tier: first, types: [Ingress]}");
    assert!(opens(&[tier("first", "{order: 1}"), policies]));
    for action in ["Delete", "Ignore"] {
        let spec = format!("{{stagedAction: {action}, types: [Ingress]}}");
        assert!(world(&staged("StagedNetworkPolicy", "{name: p, namespace: x}", &spec)).policies.is_empty());
    }
}

#[test]
fn missing_types_follow_from_the_rules_in_one_group_and_are_both_in_the_other() {
    for (spec, api) in [
        ("{selector: app == 'web'}", [true, false]),
        ("{ingress: [{action: Allow}]}", [true, false]),
        ("{egress: [{action: Allow}]}", [false, true]),
        ("{ingress: [{action: Allow}], egress: [{action: Allow}]}", [true, true]),
        ("{types: [Egress], ingress: [{action: Allow}]}", [false, true]),
    ] {
        for kind in ["NetworkPolicy", "GlobalNetworkPolicy"] {
            let metadata = if kind == "NetworkPolicy" { "{name: p, namespace: x}" } else { "{name: p}" };
            let isolates = |version: &str| {
                let isolates = world(&document(version, kind, metadata, spec)).policies[0].isolates;
                [isolates.ingress, isolates.egress]
            };
            assert_eq!(isolates("projectcalico.org/v3"), api, "{spec}");
            let stored = if spec.contains("types") { api } else { [true, true] };
            assert_eq!(isolates("crd.projectcalico.org/v1"), stored, "{spec}");
        }
    }
}

#[test]
fn an_object_of_both_groups_counts_once_and_the_prefix_of_stored_names_goes() {
    let spec = "{types: [Ingress], ingress: [{action: Deny}]}";
    let api = policy("x/p", spec);
    let stored = document("crd.projectcalico.org/v1", "NetworkPolicy", "{name: default.p, namespace: x}", spec);
    assert_eq!(world(&(api + &stored)).policies.len(), 1);
    assert_eq!(&*world(&stored).policies[0].rank.name.name, "x/p");
    let other = stored.replace("spec: {", "spec: {tier: first, ").replace("default.p", "first.p");
    assert_eq!(&*world(&other).policies[0].rank.name.name, "x/first.p");
}
