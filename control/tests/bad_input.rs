//! Faulty objects fail closed for exactly the pods that the policy selects, and are reported once with object and path. No content of a
//! file makes the pipeline panic, differ from the oracle, or allow more than the undamaged file did.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::oracle::{Flow, Owner, State};
use crate::random::{Probes, Rng, shuffled};
use crate::vswitch::Vswitches;
use bulkhead_control::cache::Event;
use bulkhead_control::object::{ISOLATION_ANNOTATION, IngressIsolation, Object, PodName, PolicyName};
use bulkhead_control::source::{Loaded, Options, Semantics, SourceErrors, Strictness, Unenforced, load_text};
use serde_json::{Map, Value, json};

/// A cluster in which x/victim, x/bystander and x/idle are pods of one namespace. No policy selects x/victim and x/idle.
const CLUSTER: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: x, labels: {team: red}}
---
apiVersion: v1
kind: Namespace
metadata: {name: other, labels: {team: blue}}
---
apiVersion: v1
kind: Node
metadata: {name: n1}
spec: {podCIDRs: [10.1.0.0/24, "fd01::/64"]}
status: {addresses: [{type: InternalIP, address: 192.168.0.1}]}
---
apiVersion: v1
kind: Node
metadata: {name: n2}
status: {addresses: [{type: InternalIP, address: 192.168.0.2}, {type: Hostname, address: n2}]}
---
apiVersion: v1
kind: Pod
metadata: {namespace: x, name: victim, labels: {app: victim}}
spec: {nodeName: n1, containers: [{name: c, ports: [{name: web, containerPort: 80}]}]}
status: {phase: Running, podIP: 10.1.0.1, podIPs: [{ip: 10.1.0.1}, {ip: "fd01::1"}]}
---
apiVersion: v1
kind: Pod
metadata: {namespace: x, name: bystander, labels: {app: bystander}}
spec:
  nodeName: n1
  containers: [{name: c, ports: [{name: web, containerPort: 8080, protocol: TCP}]}]
  initContainers: [{name: s, restartPolicy: Always, ports: [{name: dns, containerPort: 53, protocol: UDP}]}]
status: {phase: Running, podIPs: [{ip: 10.1.0.2}, {ip: "fd01::2"}]}
---
apiVersion: v1
kind: Pod
metadata: {namespace: x, name: idle}
spec: {nodeName: n2}
status: {phase: Running, podIPs: [{ip: 10.1.0.4}, {ip: "fd01::4"}]}
---
apiVersion: v1
kind: Pod
metadata: {namespace: other, name: client, labels: {app: client}}
spec: {nodeName: n2, containers: [{name: c, ports: [{name: web, containerPort: 81}]}]}
status: {phase: Running, podIPs: [{ip: 10.1.0.3}, {ip: "fd01::3"}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: x, name: innocent}
spec:
  podSelector: {matchLabels: {app: bystander}}
  policyTypes: [Ingress, Egress]
  ingress:
    - from:
        - namespaceSelector: {matchExpressions: [{key: team, operator: In, values: [blue]}]}
          podSelector: {matchExpressions: [{key: app, operator: Exists}]}
      ports: [{port: web}, {port: 80, endPort: 90, protocol: UDP}]
    - from: [{podSelector: {}}]
      ports: [{protocol: SCTP}]
  egress:
    - to: [{ipBlock: {cidr: 10.1.0.0/16, except: [10.1.0.1/32]}}]
      ports: [{port: web}, {port: 53, protocol: UDP}]
    - to: [{ipBlock: {cidr: "fd01::/64"}}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: other, name: innocent}
spec:
  podSelector: {}
  ingress:
    - from: [{namespaceSelector: {matchLabels: {team: red}}}]
"#;

/// Faults in a policy outside its subject, each with the field that the error must name. Ignoring the fault would widen the policy.
const FAULTS: [(&str, &str); 58] = [
    // Structure.
    ("ingres: [{}]", "spec.ingres"),
    ("ingress: {}", "spec.ingress"),
    ("ingress: [null]", "spec.ingress[0]"),
    ("ingress: [[]]", "spec.ingress[0]"),
    ("ingress: all", "spec.ingress"),
    ("ingress: [{form: [{podSelector: {}}]}]", "spec.ingress[0].form"),
    ("ingress: [{to: [{podSelector: {}}]}]", "spec.ingress[0].to"),
    ("egress: [{from: [{podSelector: {}}]}]", "spec.egress[0].from"),
    ("egress: [{to: {}}]", "spec.egress[0].to"),
    ("ingress: [{}, {ports: {}}]", "spec.ingress[1].ports"),
    ("priority: 7", "spec.priority"),
    ("policyTypes: [ingress]", "spec.policyTypes[0]"),
    ("policyTypes: [Egress, Both]", "spec.policyTypes[1]"),
    ("policyTypes: Egress", "spec.policyTypes"),
    ("policyTypes: [null]", "spec.policyTypes[0]"),
    // Peers.
    ("ingress: [{from: [{}]}]", "spec.ingress[0].from[0]"),
    ("ingress: [{from: [null]}]", "spec.ingress[0].from[0]"),
    ("ingress: [{from: [{podSelector: null}]}]", "spec.ingress[0].from[0]"),
    ("ingress: [{from: [{podSelector: []}]}]", "spec.ingress[0].from[0].podSelector"),
    ("ingress: [{from: [{namespaceSelector: all}]}]", "spec.ingress[0].from[0].namespaceSelector"),
    ("ingress: [{from: [{serviceSelector: {}}]}]", "spec.ingress[0].from[0].serviceSelector"),
    ("egress: [{to: [{podSelector: {}}, {fqdns: ['*']}]}]", "spec.egress[0].to[1].fqdns"),
    ("ingress: [{from: [{podSelector: {}, ipBlock: {cidr: 10.0.0.0/8}}]}]", "spec.ingress[0].from[0].ipBlock"),
    ("ingress: [{from: [{podSelector: {app: client}}]}]", "spec.ingress[0].from[0].podSelector.app"),
    // Selectors.
    (
        "ingress: [{from: [{podSelector: {matchLabels: {app: 'no spaces'}}}]}]",
        "spec.ingress[0].from[0].podSelector.matchLabels.app",
    ),
    (
        "ingress: [{from: [{podSelector: {matchLabels: {'-a': b}}}]}]",
        "spec.ingress[0].from[0].podSelector.matchLabels.-a",
    ),
    (
        "ingress: [{from: [{podSelector: {matchExpressions: [{key: app, operator: NotExists}]}}]}]",
        "spec.ingress[0].from[0].podSelector.matchExpressions[0].operator",
    ),
    (
        "ingress: [{from: [{podSelector: {matchExpressions: [{key: app, operator: NotIn}]}}]}]",
        "spec.ingress[0].from[0].podSelector.matchExpressions[0].values",
    ),
    (
        "ingress: [{from: [{podSelector: {matchExpressions: [{key: app, operator: Exists, values: [a]}]}}]}]",
        "spec.ingress[0].from[0].podSelector.matchExpressions[0].values",
    ),
    (
        "ingress: [{from: [{namespaceSelector: {matchExpressions: [{operator: Exists}]}}]}]",
        "spec.ingress[0].from[0].namespaceSelector.matchExpressions[0]",
    ),
    // Blocks.
    ("ingress: [{from: [{ipBlock: {}}]}]", "spec.ingress[0].from[0].ipBlock"),
    ("ingress: [{from: [{ipBlock: {cidr: everyone}}]}]", "spec.ingress[0].from[0].ipBlock.cidr"),
    ("ingress: [{from: [{ipBlock: {cidr: 10.0.0.1}}]}]", "spec.ingress[0].from[0].ipBlock.cidr"),
    ("ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/33}}]}]", "spec.ingress[0].from[0].ipBlock.cidr"),
    ("ingress: [{from: [{ipBlock: {cidr: 010.0.0.0/8}}]}]", "spec.ingress[0].from[0].ipBlock.cidr"),
    ("ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/08}}]}]", "spec.ingress[0].from[0].ipBlock.cidr"),
    ("ingress: [{from: [{ipBlock: {cidr: '::ffff:10.0.0.0/104'}}]}]", "spec.ingress[0].from[0].ipBlock.cidr"),
    ("ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0, excpet: []}}]}]", "spec.ingress[0].from[0].ipBlock.excpet"),
    (
        "egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [11.0.0.0/16]}}]}]",
        "spec.egress[0].to[0].ipBlock.except[0]",
    ),
    ("egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/8]}}]}]", "spec.egress[0].to[0].ipBlock.except[0]"),
    ("egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0, except: ['fd00::/8']}}]}]", "spec.egress[0].to[0].ipBlock.except[0]"),
    (
        "egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16, x]}}]}]",
        "spec.egress[0].to[0].ipBlock.except[1]",
    ),
    ("egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: 10.1.0.0/16}}]}]", "spec.egress[0].to[0].ipBlock.except"),
    // Ports.
    ("ingress: [{ports: [{port: 0}]}]", "spec.ingress[0].ports[0].port"),
    ("ingress: [{ports: [{port: 65536}]}]", "spec.ingress[0].ports[0].port"),
    ("ingress: [{ports: [{port: -80}]}]", "spec.ingress[0].ports[0].port"),
    ("ingress: [{ports: [{port: 80.5}]}]", "spec.ingress[0].ports[0].port"),
    ("ingress: [{ports: [{port: '80'}]}]", "spec.ingress[0].ports[0].port"),
    ("ingress: [{ports: [{port: a-name-of-sixteen}]}]", "spec.ingress[0].ports[0].port"),
    ("ingress: [{ports: [{port: [80]}]}]", "spec.ingress[0].ports[0].port"),
    ("ingress: [{ports: [80]}]", "spec.ingress[0].ports[0]"),
    ("ingress: [{ports: [{protocol: ICMP}]}]", "spec.ingress[0].ports[0].protocol"),
    ("ingress: [{ports: [{port: 80, protocol: tcp}]}]", "spec.ingress[0].ports[0].protocol"),
    ("ingress: [{ports: [{port: 90, endPort: 80}]}]", "spec.ingress[0].ports[0].endPort"),
    ("ingress: [{ports: [{endPort: 80}]}]", "spec.ingress[0].ports[0].endPort"),
    ("ingress: [{ports: [{port: web, endPort: 80}]}]", "spec.ingress[0].ports[0].endPort"),
    ("ingress: [{ports: [{port: 80, endPort: 65536}]}]", "spec.ingress[0].ports[0].endPort"),
    ("ingress: [{ports: [{port: 80, endport: 90}]}]", "spec.ingress[0].ports[0].endport"),
];

/// Faults in the subject: the policy then selects all pods of its namespace. Traffic that other policies allow to x/bystander stays
/// allowed, because policies are additive.
const SUBJECT_FAULTS: [(&str, &str); 5] = [
    ("podSelector: []", "spec.podSelector"),
    ("podSelector: {app: victim}", "spec.podSelector.app"),
    ("podSelector: {matchLabels: {app: 7}}", "spec.podSelector.matchLabels.app"),
    (
        "podSelector: {matchExpressions: [{key: app, operator: Is, values: [victim]}]}",
        "spec.podSelector.matchExpressions[0].operator",
    ),
    (
        "podSelector: {matchExpressions: [{key: app, operator: In, values: []}]}",
        "spec.podSelector.matchExpressions[0].values",
    ),
];

/// Reads with the semantics of `extensions/v1beta1`, in which a namespace can be faulty as well.
fn read(text: &str, strictness: Strictness) -> Result<Loaded, SourceErrors> {
    let semantics = Semantics::V1beta1 { default: IngressIsolation::ClusterDefault };
    load_text(
        "state.yaml",
        text,
        Options { strictness, semantics, unenforced: Unenforced::Report, ..Options::default() },
    )
}

fn lenient(text: &str) -> Result<Loaded, SourceErrors> {
    read(text, Strictness::Lenient)
}

fn with_policy(api_version: &str, spec: &str) -> String {
    format!(
        "{CLUSTER}---\napiVersion: {api_version}\nkind: NetworkPolicy\nmetadata: {{namespace: x, name: bad}}\nspec:\n{spec}\n"
    )
}

fn tables(objects: &[Object]) -> Vswitches {
    let mut vswitches = Vswitches::cluster();
    vswitches.resync(objects);
    vswitches
}

/// The flows between the cluster's addresses that the tests compare.
fn flows() -> Vec<Flow> {
    let v4 = ["10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4", "192.168.0.1", "192.168.0.2", "8.8.8.8"];
    let v6 = ["fd01::1", "fd01::2", "fd01::3", "fd01::4", "2001:db8::1"];
    let mut flows = Vec::new();
    for family in [&v4[..], &v6[..]] {
        let ends: Vec<IpAddr> = family.iter().map(|end| end.parse().unwrap()).collect();
        for (&src, &dst) in ends.iter().flat_map(|src| ends.iter().map(move |dst| (src, dst))) {
            for (protocol, port) in [(6, 80), (6, 81), (6, 8080), (17, 53), (17, 85), (132, 80), (1, 0)] {
                if src != dst {
                    flows.push(Flow { src, dst, protocol, port });
                }
            }
        }
    }
    flows
}

/// Checks that the policy isolates exactly the pods for which `subject` holds, except from their own node, and is reported once, at `path`.
fn fails_closed(text: &str, path: &str, subject: impl Fn(&PodName) -> bool) {
    let before = State::of(&lenient(CLUSTER).unwrap().objects);
    let loaded = lenient(text).unwrap_or_else(|errors| panic!("{errors}"));
    let reports: Vec<_> = loaded.warnings.shown().iter().map(|e| (e.object.as_deref(), e.path.as_str())).collect();
    assert_eq!(reports, [(Some("NetworkPolicy x/bad"), path)], "{text}\n{}", loaded.warnings);
    let after = State::of(&loaded.objects);
    assert!(after.policies[&PolicyName::new("x", "bad")].fault.is_some());
    let (old, new) = (tables(&before.objects()), tables(&loaded.objects));
    let is_subject =
        |end| matches!(before.owner(end), Owner::Pod(pod) if &*pod.name.namespace == "x" && subject(&pod.name));
    for flow in flows() {
        let expected = if is_subject(flow.src) || is_subject(flow.dst) {
            before.judge(&flow).own_node
        } else {
            old.allow(&before, &flow)
        };
        assert_eq!(new.allow(&after, &flow), expected, "{path}: {flow:?}");
        assert_eq!(after.allowed(&flow), expected, "{path}: {flow:?}, oracle");
    }
    let errors = read(text, Strictness::Strict).expect_err("a strict reader refuses it");
    assert_eq!((errors.total(), errors.shown()[0].path.as_str()), (1, path), "{errors}");
}

#[test]
fn every_fault_below_the_subject_shuts_off_the_subjects_alone() {
    for (part, path) in FAULTS {
        let spec = format!("  podSelector: {{matchLabels: {{app: victim}}}}\n  {part}");
        fails_closed(&with_policy("networking.k8s.io/v1", &spec), path, |pod| &*pod.name == "victim");
    }
}

#[test]
fn a_fault_in_the_subject_shuts_off_the_namespace() {
    for (subject, path) in SUBJECT_FAULTS {
        let spec = format!("  {subject}\n  ingress: [{{}}]\n  egress: [{{}}]");
        fails_closed(&with_policy("networking.k8s.io/v1", &spec), path, |pod| &*pod.name != "bystander");
    }
}

#[test]
fn an_api_version_that_is_not_read_shuts_off_the_subjects_alone() {
    let spec = "  podSelector: {matchLabels: {app: victim}}\n  ingress: [{}]";
    for version in ["extensions/v1beta2", "networking.k8s.io/v1beta1", "networking.k8s.io/v2", "networking.k8s/v1"] {
        fails_closed(&with_policy(version, spec), "apiVersion", |pod| &*pod.name == "victim");
    }
}

#[test]
fn several_faults_of_one_policy_shut_off_the_same_pods_and_are_each_reported() {
    let spec = "  podSelector: {matchLabels: {app: victim}}\n  policyTypes: [Ingress, Neither]\n  ingress: [{ports: [{port: 0}, {port: 0}]}]";
    let loaded = lenient(&with_policy("networking.k8s.io/v1", spec)).unwrap();
    let paths: Vec<_> = loaded.warnings.shown().iter().map(|error| error.path.as_str()).collect();
    assert_eq!(paths, ["spec.policyTypes[1]", "spec.ingress[0].ports[0].port", "spec.ingress[0].ports[1].port"]);
}

/// The cluster's objects as JSON.
fn documents() -> Vec<Value> {
    CLUSTER.split("---\n").map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

fn list(items: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

const WORDS: [&str; 29] = [
    "metadata",
    "annotations",
    "spec",
    "status",
    "name",
    "namespace",
    "labels",
    "podSelector",
    "namespaceSelector",
    "matchLabels",
    "matchExpressions",
    "key",
    "operator",
    "values",
    "ingress",
    "egress",
    "from",
    "to",
    "ports",
    "port",
    "endPort",
    "protocol",
    "ipBlock",
    "cidr",
    "except",
    "policyTypes",
    "podIPs",
    "hostNetwork",
    "containers",
];
const TEXTS: [&str; 16] = [
    "",
    "x",
    "In",
    "Exists",
    "TCP",
    "SCTP",
    "web",
    "10.0.0.0/8",
    "fd00::/8",
    "::ffff:1.2.3.4",
    "10.1.0.1",
    "Ingress",
    "Egress",
    "\u{202e}",
    "-1",
    "99999999999999999999",
];
const NUMBERS: [i64; 8] = [0, 1, 80, 65_535, 65_536, -1, i64::MAX, i64::MIN];

/// Any JSON value, made of words that occur in objects.
fn any_json(rng: &mut Rng, depth: usize) -> Value {
    match rng.below(if depth == 0 { 6 } else { 10 }) {
        0 => Value::Null,
        1 => Value::from(rng.chance(50)),
        2 => Value::from(rng.pick(&NUMBERS)),
        3..6 => Value::from(rng.pick(&TEXTS)),
        6 | 7 => (0..rng.below(4)).map(|_| any_json(rng, depth - 1)).collect(),
        _ => {
            let mut fields = Map::new();
            for _ in 0..rng.below(5) {
                fields.insert(rng.pick(&WORDS).to_owned(), any_json(rng, depth - 1));
            }
            fields.into()
        }
    }
}

fn damage(rng: &mut Rng, value: &mut Value) {
    let descend = rng.chance(85);
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let keys: Vec<String> = fields.keys().cloned().collect();
            let key = keys[rng.below(keys.len())].clone();
            match rng.below(5) {
                _ if descend => damage(rng, &mut fields[&key]),
                0 => drop(fields.remove(&key)),
                1 => drop(fields.insert(rng.pick(&WORDS).to_owned(), any_json(rng, 2))),
                2 => {
                    let moved = fields.remove(&key).unwrap_or_default();
                    fields.insert(format!("{key}s"), moved);
                }
                _ => drop(fields.insert(key, any_json(rng, 2))),
            }
        }
        Value::Array(items) if !items.is_empty() => {
            let at = rng.below(items.len());
            match rng.below(3) {
                _ if descend => damage(rng, &mut items[at]),
                0 => items.push(any_json(rng, 2)),
                1 => drop(items.remove(at)),
                _ => items[at] = any_json(rng, 2),
            }
        }
        other => *other = any_json(rng, 2),
    }
}

/// Checks that a pipeline agrees with the oracle on random flows. Returns the number of flows.
fn equals_oracle(rng: &mut Rng, state: &State, running: &Vswitches, context: &str) -> usize {
    let probes = Probes::of(state, true);
    let mut compared = 0;
    for flow in (0..60).filter_map(|_| probes.flow(rng)) {
        assert_eq!(running.allow(state, &flow), state.allowed(&flow), "{flow:?}\n{context}");
        compared += 1;
    }
    compared
}

/// The seeds of a random test: `number` of them, and more for the seconds in the environment variable `BULKHEAD_FUZZ_SECONDS`. Without the
/// variable, a test is the same everywhere.
fn seeds(number: u64) -> impl Iterator<Item = u64> {
    let seconds = std::env::var("BULKHEAD_FUZZ_SECONDS").map_or(0, |seconds| seconds.parse().unwrap());
    let end = Instant::now() + Duration::from_secs(seconds);
    (0..).take_while(move |&seed| seed < number || Instant::now() < end)
}

#[test]
fn a_damaged_file_is_refused_or_lets_no_more_through_than_the_whole_one() {
    let documents = documents();
    let before = State::of(&lenient(&list(&documents)).unwrap().objects);
    let (mut refused, mut shut, mut valid, mut compared) = (0, 0, 0, 0);
    for seed in seeds(6_000) {
        let mut rng = Rng::new(seed);
        let mut damaged = documents.clone();
        let at = rng.below(damaged.len());
        damage(&mut rng, &mut damaged[at]);
        let context = format!("seed {seed}: {}", damaged[at]);
        let text = list(&damaged);
        let Ok(loaded) = lenient(&text) else {
            refused += 1;
            continue;
        };
        // The running pipeline receives the undamaged file first, and then the damage's events.
        let mut after = before.clone();
        let mut running = tables(&before.objects());
        let whole = State::of(&loaded.objects);
        for event in replaced(&before, &whole) {
            after.apply(&event);
            running.apply(&event);
        }
        assert_eq!(after, whole, "{context}");
        compared += equals_oracle(&mut rng, &after, &running, &context);
        // If the strict reader accepts the file, it has another meaning and may allow more.
        if read(&text, Strictness::Strict).is_ok() {
            valid += 1;
            continue;
        }
        shut += 1;
        // A renamed object is another object's duplicate or a new object, so the result may be wider.
        if ["namespace", "name"].iter().any(|key| damaged[at]["metadata"][key] != documents[at]["metadata"][key]) {
            continue;
        }
        assert!(!loaded.warnings.is_empty(), "{context}");
        compared += is_no_wider(&before, &after, &running, &context);
    }
    println!("{refused} refused, {shut} shut, {valid} valid, {compared} flows");
    // A faulty object never makes the whole file fail.
    assert!(refused == 0 && shut > 900 && valid > 300, "{refused} refused, {shut} shut, {valid} valid");
    assert!(compared > 300_000, "{compared} flows");
}

/// Checks that the tables allow nothing that the oracle denied before. Returns the number of compared flows. Addresses that a pod lost are
/// skipped: their interface has no table, and nothing passes.
fn is_no_wider(before: &State, after: &State, running: &Vswitches, context: &str) -> usize {
    let is_pod = |state: &State, end| matches!(state.owner(end), Owner::Pod(_));
    let is_closed = |end| is_pod(before, end) && !is_pod(after, end);
    let flows: Vec<_> = flows().into_iter().filter(|flow| !is_closed(flow.src) && !is_closed(flow.dst)).collect();
    for flow in &flows {
        assert!(!running.allow(after, flow) || before.allowed(flow), "wider: {flow:?}\n{context}");
    }
    flows.len()
}

/// The cluster with isolation by annotation in x, and a policy there with a negative namespace selector.
fn isolated_documents() -> Vec<Value> {
    let mut documents = documents();
    documents[0]["metadata"]["annotations"] = json!({ISOLATION_ANNOTATION: ISOLATED});
    documents.push(json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"namespace": "x", "name": "strangers"},
        "spec": {"podSelector": {"matchLabels": {"app": "victim"}}, "ingress": [{"from": [
            {"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["blue"]}]}},
        ]}]},
    }));
    documents
}

const ISOLATED: &str = r#"{"ingress": {"isolation": "DefaultDeny"}}"#;

#[test]
fn no_damage_of_the_metadata_of_a_namespace_or_pod_opens_a_namespace_that_isolates() {
    let documents = isolated_documents();
    let objects = lenient(&list(&documents)).unwrap().objects;
    let before = State::of(&objects);
    let targets: Vec<_> = (0..documents.len())
        .filter(|&at| matches!(documents[at]["kind"].as_str(), Some("Namespace" | "Pod")))
        .collect();
    let (mut refused, mut namespaces, mut pods, mut twice, mut valid) = (0, 0, 0, 0, 0);
    for seed in seeds(6_000) {
        let mut rng = Rng::new(seed);
        // Half of the time x itself, which is the first target.
        let at = if rng.chance(50) { 0 } else { rng.pick(&targets) };
        let mut object = documents[at].clone();
        match rng.below(10) {
            0 => damage(&mut rng, &mut object),
            1 | 2 if at > 1 => damage(&mut rng, &mut object["spec"]),
            1 => object["metadata"]["annotations"][ISOLATION_ANNOTATION] = any_json(&mut rng, 2),
            _ => damage(&mut rng, &mut object["metadata"]),
        }
        let context = format!("seed {seed}: {object}");
        let is_another =
            ["namespace", "name"].iter().any(|key| object["metadata"][key] != documents[at]["metadata"][key]);
        let mut damaged = documents.clone();
        // Replaces the good object, or adds a second one.
        let beside = rng.chance(30);
        match beside {
            true => damaged.insert(rng.below(documents.len() + 1), object),
            false => damaged[at] = object,
        }
        let text = list(&damaged);
        let strict = read(&text, Strictness::Strict).is_ok();
        let Ok(loaded) = lenient(&text) else {
            assert!(!strict, "lenient refuses what strict takes: {context}");
            refused += 1;
            continue;
        };
        if strict {
            valid += 1;
            continue;
        }
        match (beside, at < 2) {
            (true, _) => twice += 1,
            (false, true) => namespaces += 1,
            (false, false) => pods += 1,
        }
        let after = State::of(&loaded.objects);
        // One pipeline follows the changes; another starts from scratch, in any order.
        let mut running = tables(&objects);
        let whole = State::of(&loaded.objects);
        replaced(&State::of(&objects), &whole).iter().for_each(|event| running.apply(event));
        let mut fresh = Vswitches::cluster();
        shuffled(whole.objects(), seed).into_iter().for_each(|object| fresh.apply(&Event::Apply(object)));
        for vswitches in [&running, &fresh] {
            equals_oracle(&mut rng, &after, vswitches, &context);
            // An object that lost its name is missing or another one.
            if beside || !is_another {
                is_no_wider(&before, &after, vswitches, &context);
            }
        }
    }
    let reached = format!("{refused} refused, {namespaces} namespaces, {pods} pods, {twice} twice, {valid} valid");
    println!("{reached}");
    assert!(refused == 0 && namespaces > 300 && pods > 30 && twice > 300 && valid > 300, "{reached}");
}

/// The events that lead from one state to another.
fn replaced(old: &State, new: &State) -> Vec<Event> {
    let namespaces = old.namespaces.keys().filter(|name| !new.namespaces.contains_key(*name)).cloned();
    let nodes = old.nodes.keys().filter(|name| !new.nodes.contains_key(*name)).cloned();
    let pods = old.pods.keys().filter(|name| !new.pods.contains_key(name)).cloned();
    let policies = old.policies.keys().filter(|name| !new.policies.contains_key(name)).cloned();
    let gone = namespaces.map(Event::DeleteNamespace).chain(nodes.map(Event::DeleteNode));
    let gone = gone.chain(pods.map(Event::DeletePod)).chain(policies.map(Event::DeletePolicy));
    gone.chain(new.objects().into_iter().map(Event::Apply)).collect()
}

#[test]
fn arbitrary_objects_never_panic_and_mean_what_the_oracle_says() {
    let kinds = [
        ("networking.k8s.io/v1", "NetworkPolicy"),
        ("networking.k8s.io/v1", "NetworkPolicy"),
        ("v1", "Pod"),
        ("v1", "Namespace"),
        ("v1", "Node"),
    ];
    let base = documents();
    let (mut taken, mut compared) = (0, 0);
    for seed in seeds(6_000) {
        let mut rng = Rng::new(seed);
        let mut items = base.clone();
        for at in 0..1 + rng.below(4) {
            let (api_version, kind) = rng.pick(&kinds);
            let mut object = json!({"apiVersion": api_version, "kind": kind});
            object["metadata"] = json!({"name": format!("any-{at}"), "namespace": "x"});
            for part in ["spec", "status"] {
                // A NetworkPolicy has no status.
                if kind != "NetworkPolicy" || part == "spec" {
                    object[part] = any_json(&mut rng, 5);
                }
            }
            items.push(object);
        }
        let text = list(&items);
        let strict = read(&text, Strictness::Strict).is_ok();
        let Ok(loaded) = lenient(&text) else {
            assert!(!strict, "lenient refuses what strict takes: {text}");
            continue;
        };
        taken += 1;
        let state = State::of(&loaded.objects);
        let mut vswitches = Vswitches::cluster();
        let objects = shuffled(loaded.objects, seed);
        objects.into_iter().for_each(|object| vswitches.apply(&Event::Apply(object)));
        compared += equals_oracle(&mut rng, &state, &vswitches, &text);
    }
    assert!(taken > 3_000, "only {taken} files were read");
    assert!(compared > 100_000, "only {compared} flows were compared");
}
