//! Workloads: their planned pods and addresses, and the exact messages about faults.

use super::tests::messages;
use super::*;
use crate::object::Pod;

fn read(text: &str) -> Result<Loaded, SourceErrors> {
    read_with(text, Strictness::Strict, &[])
}

fn read_with(text: &str, strictness: Strictness, blocks: &[&str]) -> Result<Loaded, SourceErrors> {
    let blocks = blocks.iter().map(|block| block.parse().unwrap()).collect();
    load_text("t.yaml", text, Options { strictness, templates: Templates::Read(blocks), ..Options::default() })
}

fn pods(loaded: &Loaded) -> Vec<&Pod> {
    fn pod(object: &Object) -> Option<&Pod> {
        match object {
            Object::Pod(pod) => Some(pod),
            _ => None,
        }
    }
    loaded.objects.iter().filter_map(pod).collect()
}

/// Lists the pods of the result, such as `shop/web of Deployment web`. `!` marks pods that are not planned.
fn told(text: &str) -> Vec<String> {
    let loaded = read(text).unwrap_or_else(|errors| panic!("{text}\n{errors}"));
    let told = pods(&loaded).into_iter().map(|pod| {
        let mark = if pod.planned { "" } else { "!" };
        format!("{mark}{} of {}", pod.name, pod.workload())
    });
    told.collect()
}

/// Returns a workload in namespace `shop` with this spec and a template.
fn workload(kind: &str, name: &str, spec: &str) -> String {
    let version = match kind {
        "Job" | "CronJob" => "batch/v1",
        "ReplicationController" => "v1",
        _ => "apps/v1",
    };
    let template =
        "template: {metadata: {labels: {app: web}}, spec: {containers: [{ports: [{name: http, containerPort: 80}]}]}}";
    let spec = match kind {
        "CronJob" => format!("jobTemplate: {{spec: {{{spec} {template}}}}}"),
        _ => format!("{spec} {template}"),
    };
    format!(
        "---\n{{apiVersion: {version}, kind: {kind}, metadata: {{name: {name}, namespace: shop}}, spec: {{{spec}}}}}\n"
    )
}

fn pod_of(name: &str, owner: &str, labels: &str, phase: &str) -> String {
    let (kind, by) = owner.split_once(' ').unwrap();
    format!(
        "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: shop, labels: {{{labels}}}, ownerReferences: \
         [{{kind: {kind}, name: {by}, controller: true}}]}}, status: {{phase: {phase}, podIP: 10.0.0.1}}}}\n"
    )
}

#[test]
fn a_pod_stands_for_each_kind_of_workload_and_two_where_more_than_one_runs() {
    for (kind, spec, count) in [
        ("Deployment", "", 1),
        ("Deployment", "replicas: 0,", 1),
        ("Deployment", "replicas: 1,", 1),
        ("Deployment", "replicas: 30,", 2),
        ("StatefulSet", "replicas: 2,", 2),
        ("ReplicaSet", "replicas: 2,", 2),
        ("ReplicationController", "replicas: 2,", 2),
        ("DaemonSet", "", 2),
        ("Job", "", 1),
        ("Job", "parallelism: 4,", 2),
        ("CronJob", "", 1),
        ("CronJob", "parallelism: 4,", 2),
    ] {
        let expected = [format!("shop/web of {kind} web"), format!("shop/web#2 of {kind} web")];
        assert_eq!(told(&workload(kind, "web", spec)), expected[..count], "{kind} {spec}");
    }
    let old = workload("Deployment", "web", "").replace("apps/v1", "extensions/v1beta1");
    assert_eq!(told(&old), ["shop/web of Deployment web"]);
}

#[test]
fn the_pod_has_what_its_template_says_and_what_its_controller_adds() {
    let text = "{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db, namespace: shop, labels: {not: this}}, spec: {replicas: 3, \
                ordinals: {start: 5}, template: {metadata: {name: x, namespace: y, labels: {app: db}}, spec: {nodeName: n1, \
                initContainers: [{restartPolicy: Always, ports: [{name: side, containerPort: 9}]}], containers: [{ports: \
                [{name: sql, containerPort: 5432}, {containerPort: 80}]}]}}}}";
    let loaded = read(text).unwrap();
    let [first, second] = pods(&loaded)[..] else { panic!("two pods: {loaded:?}") };
    let labels = |pod: &Pod| pod.labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>();
    let pod_name = |name: &str| format!("statefulset.kubernetes.io/pod-name={name}");
    assert_eq!(labels(first), ["app=db", "apps.kubernetes.io/pod-index=5", &pod_name("db-5")]);
    assert_eq!(labels(second), ["app=db", "apps.kubernetes.io/pod-index=6", &pod_name("db-6")]);
    let ports: Vec<_> = first.ports.iter().map(|port| format!("{}={}", port.name, port.port)).collect();
    assert_eq!(ports, ["sql=5432", "side=9"]);
    assert!(first.node.is_none() && first.is_endpoint() && !first.host_network);
    let job = read(&workload("Job", "migrate", "")).unwrap();
    assert_eq!(labels(pods(&job)[0]), ["app=web", "batch.kubernetes.io/job-name=migrate", "job-name=migrate"]);
}

#[test]
fn a_pod_in_the_state_takes_the_place_of_its_workloads_template() {
    let web = workload("Deployment", "web", "replicas: 2,");
    let running = pod_of("web-5d-x", "ReplicaSet web-5d", "pod-template-hash: 5d", "Running");
    assert_eq!(told(&format!("{web}{running}")), ["!shop/web-5d-x of Deployment web"]);
    // A pod that has ended, or that belongs to another workload or namespace, does not.
    let ended = pod_of("web-5d-x", "ReplicaSet web-5d", "pod-template-hash: 5d", "Failed");
    let strange = pod_of("api-5d-x", "ReplicaSet api-5d", "pod-template-hash: 5d", "Running");
    for other in [ended, strange, running.replace("namespace: shop", "namespace: x")] {
        let both = told(&format!("{web}{other}"));
        assert_eq!(both[1..], ["shop/web of Deployment web", "shop/web#2 of Deployment web"], "{other}");
    }
    let nightly = workload("CronJob", "nightly", "");
    let job = pod_of("nightly-29384760-x", "Job nightly-29384760", "a: b", "Running");
    assert_eq!(told(&format!("{nightly}{job}")), ["!shop/nightly-29384760-x of CronJob nightly"]);
}

#[test]
fn what_a_workload_has_made_or_what_has_ended_stands_for_nothing_of_its_own() {
    let managed = |kind: &str, name: &str, spec: &str, by: &str| {
        let (maker, named) = by.split_once(' ').unwrap();
        let references =
            format!("namespace: shop, ownerReferences: [{{kind: {maker}, name: {named}, controller: true}}]");
        workload(kind, name, spec).replace("namespace: shop", &references)
    };
    let web = workload("Deployment", "web", "");
    let [new, old] = [("web-2", "replicas: 1,"), ("web-1", "replicas: 0,")]
        .map(|(name, spec)| managed("ReplicaSet", name, spec, "Deployment web"));
    assert_eq!(told(&format!("{new}{old}{web}")), ["shop/web of Deployment web"]);
    // The Deployment that made them is not in the state.
    assert_eq!(told(&format!("{new}{old}")), ["shop/web-2 of ReplicaSet web-2"]);
    let nightly = managed("Job", "nightly-1", "", "CronJob nightly");
    assert_eq!(told(&format!("{nightly}{}", workload("CronJob", "nightly", ""))), ["shop/nightly of CronJob nightly"]);
    for (condition, count) in [("Complete", 0), ("Failed", 0), ("Suspended", 1)] {
        let status = format!("}}, status: {{conditions: [{{type: {condition}, status: 'True'}}]}}}}\n");
        let job = workload("Job", "migrate", "");
        let ended = format!("{}{status}", job.strip_suffix("}}\n").unwrap());
        assert_eq!(told(&ended).len(), count, "{ended}");
    }
}

#[test]
fn names_that_are_taken_get_their_kind_whatever_the_order() {
    let pod = "---\n{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, status: {podIP: 10.0.0.1}}\n";
    let [deployment, job, set] = ["Deployment", "Job", "StatefulSet"].map(|kind| workload(kind, "web", ""));
    for text in [format!("{job}{deployment}{set}"), format!("{set}{deployment}{job}")] {
        let expected =
            ["shop/web of Deployment web", "shop/statefulset/web of StatefulSet web", "shop/job/web of Job web"];
        assert_eq!(told(&text), expected);
    }
    let both = told(&format!("{}{pod}", workload("Deployment", "web", "replicas: 2,")));
    assert_eq!(both[1..], ["shop/deployment/web of Deployment web", "shop/deployment/web#2 of Deployment web"]);
}

#[test]
fn addresses_depend_on_the_name_alone_and_are_nobody_elses() {
    let address = |text: &str, pod: &str| {
        let loaded = read(text).unwrap();
        let found = pods(&loaded).into_iter().find(|one| one.name.to_string() == pod).unwrap();
        found.addresses.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let web = workload("Deployment", "web", "replicas: 2,");
    let alone = address(&web, "shop/web");
    assert!(alone.len() == 1 && alone[0].starts_with("250."), "{alone:?}");
    assert_ne!(alone, address(&web, "shop/web#2"));
    assert_eq!(alone, address(&format!("{}{web}", workload("Deployment", "api", "")), "shop/web"));
    // A pod in the state has the address already.
    let pod = format!("---\n{{apiVersion: v1, kind: Pod, metadata: {{name: a}}, status: {{podIP: {}}}}}\n", alone[0]);
    assert_ne!(address(&format!("{web}{pod}"), "shop/web"), alone);
    // 5000 workloads have distinct addresses.
    let many: String = (0..5000).map(|at| workload("Deployment", &format!("web-{at}"), "")).collect();
    let loaded = read(&many).unwrap();
    let distinct: BTreeSet<_> = pods(&loaded).iter().map(|pod| pod.addresses[0]).collect();
    assert_eq!(distinct.len(), 5000);
}

#[test]
fn planned_pods_have_the_families_of_the_state_or_addresses_where_they_are_to_be() {
    let web = workload("Deployment", "web", "");
    let families = |text: &str, blocks: &[&str]| {
        let loaded = read_with(text, Strictness::Strict, blocks).unwrap();
        let planned = pods(&loaded).into_iter().find(|pod| pod.planned).unwrap().addresses.clone();
        planned.iter().map(|address| if address.is_ipv4() { 4 } else { 6 }).collect::<Vec<_>>()
    };
    let pod = |ips: &str| {
        format!("{web}---\n{{apiVersion: v1, kind: Pod, metadata: {{name: a}}, status: {{podIPs: [{ips}]}}}}\n")
    };
    let policy = |cidr: &str| {
        format!(
            "{web}---\n{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: p}}, spec: {{podSelector: {{}}, \
             ingress: [{{from: [{{ipBlock: {{cidr: '{cidr}'}}}}]}}]}}}}\n"
        )
    };
    assert_eq!(families(&pod("{ip: 10.0.0.1}"), &[]), [4]);
    assert_eq!(families(&pod("{ip: 10.0.0.1}, {ip: 'fd00::1'}"), &[]), [4, 6]);
    assert_eq!(families(&pod("{ip: 'fd00::1'}"), &[]), [6]);
    assert_eq!(families(&policy("0.0.0.0/0"), &[]), [4]);
    assert_eq!(families(&policy("::/0"), &[]), [4, 6]);
    assert_eq!(families(&policy("::/0"), &["10.244.0.0/16"]), [4]);
    let loaded = read_with(&web, Strictness::Strict, &["10.244.0.0/30", "fd00::/64"]).unwrap();
    let planned = pods(&loaded)[0];
    assert!(planned.addresses[0].to_string().starts_with("10.244.0."), "{planned:?}");
    assert!(planned.addresses[1].to_string().starts_with("fd00::"), "{planned:?}");
}

#[test]
fn a_block_that_may_cover_pods_is_warned_of_unless_it_is_known_where_they_will_be() {
    let policy = |peers: &str| {
        format!(
            "{}---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: p, namespace: shop}}\n\
             spec: {{podSelector: {{}}, ingress: [{{from: [{peers}]}}]}}\n",
            workload("Deployment", "web", "")
        )
    };
    for open in [
        "{ipBlock: {cidr: 10.1.0.0/16}}",
        "{ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8]}}",
        "{ipBlock: {cidr: 8.0.0.0/6}}",
    ] {
        let loaded = read(&policy(open)).unwrap();
        let [warning] = &messages(&loaded.warnings)[..] else { panic!("{open}: {:?}", loaded.warnings) };
        assert!(warning.starts_with("t.yaml:4: NetworkPolicy shop/p: block "), "{warning}");
        assert!(warning.ends_with("for example --pod-cidr 10.244.0.0/16"), "{warning}");
        let known = read_with(&policy(open), Strictness::Strict, &["10.244.0.0/16"]).unwrap();
        assert_eq!(messages(&known.warnings), [""; 0]);
    }
    for closed in [
        "{ipBlock: {cidr: 0.0.0.0/0}}",
        "{ipBlock: {cidr: 8.8.8.8/32}}",
        "{podSelector: {}}",
        "{ipBlock: {cidr: 192.0.2.0/24}}",
    ] {
        assert_eq!(messages(&read(&policy(closed)).unwrap().warnings), [""; 0], "{closed}");
    }
}

#[test]
fn a_manifest_of_a_pod_is_planned_and_a_pod_that_waits_is_not() {
    let pod = |rest: &str| format!("{{apiVersion: v1, kind: Pod, metadata: {{name: a, namespace: shop}}, {rest}}}");
    assert_eq!(told(&pod("spec: {}")), ["shop/a of Pod a"]);
    for waiting in
        ["status: {phase: Pending}", "spec: {nodeName: n1}", "spec: {hostNetwork: true}", "status: {phase: Failed}"]
    {
        assert_eq!(told(&pod(waiting)), ["!shop/a of Pod a"], "{waiting}");
    }
    let text = workload("DaemonSet", "agent", "").replace("spec: {containers", "spec: {hostNetwork: true, containers");
    let loaded = read(&text).unwrap();
    assert!(pods(&loaded).iter().all(|pod| pod.planned && pod.host_network && pod.addresses.is_empty()));
}

#[test]
fn faults_of_templates_name_line_field_and_remedy_and_leave_out_the_workload_where_they_are_survived() {
    let text = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: shop}\nspec:\n  template:\n    spec:\n      \
                containers:\n      - ports:\n        - {name: http, containerPort: 0}\n";
    let cases = [
        (
            text.to_owned(),
            "t.yaml:9: Deployment shop/web: spec.template.spec.containers[0].ports[0].containerPort: port 0 does not exist\n  \
             help: write a number from 1 to 65535",
        ),
        (
            text.replace("containerPort: 0", "containerPort: x"),
            "t.yaml:9: Deployment shop/web: spec.template.spec.containers[0].ports[0].containerPort: invalid type: string \"x\", expected \
             i64\n  help: write a whole number, without quotes",
        ),
        (
            text.replace("  template:\n", "  replicas: many\n  template:\n"),
            "t.yaml:5: Deployment shop/web: spec.replicas: invalid type: string \"many\", expected i64\n  help: write a whole number, \
             without quotes",
        ),
        (
            "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: web}\nspec:\n  jobTemplate: {}\n".to_owned(),
            "t.yaml:5: CronJob default/web: spec.jobTemplate.spec.template: the workload has no pod template\n  help: add the pod \
             template; without it, the policies that select its pods are unknown",
        ),
        (
            "{apiVersion: apps/v1, kind: Deployment, metadata: {}, spec: {template: {}}}".to_owned(),
            "t.yaml:1: Deployment: metadata: missing field `name`\n  help: add `name`",
        ),
    ];
    for (text, expected) in cases {
        let errors = read(&text).expect_err("a fault");
        assert_eq!(messages(&errors), [expected], "{text}");
        let survived = read_with(&text, Strictness::Lenient, &[]).unwrap();
        assert_eq!((pods(&survived).len(), survived.faulty), (0, 1));
        assert!(messages(&survived.warnings)[0].ends_with("; until then the object is left out"));
        // Without `Templates::Read`, faulty workloads are no error.
        assert!(load_text("t.yaml", &text, Strictness::Strict).unwrap().objects.is_empty());
    }
    let twice = workload("Deployment", "web", "").repeat(2);
    let errors = messages(&read(&twice).expect_err("given twice"));
    let expected =
        "t.yaml:4: Deployment shop/web: the object is given twice, first at t.yaml:2\n  help: remove one of the two";
    assert_eq!(errors, [expected]);
    assert!(pods(&read_with(&twice, Strictness::Lenient, &[]).unwrap()).is_empty());
}

#[test]
fn no_vswitch_asks_for_templates() {
    assert_eq!(Options::default().templates, Templates::Skip);
    assert_eq!(Options::from(Strictness::Lenient).templates, Templates::Skip);
    let loaded = load_text("t.yaml", &workload("Deployment", "web", ""), Strictness::Strict).unwrap();
    assert!(loaded.objects.is_empty());
    assert_eq!(loaded.skipped, [("apps/v1 Deployment".to_owned(), 1)].into());
}
