//! The cost of an event, in counted steps, depends on the change and not on the state's size.

use bulkhead_classifier::{Addresses, PartedSet};

use crate::object::{ContainerPort, PolicyPort, Transport};
use crate::renderer::plain::PART;
use crate::selector::Selector;
use crate::work::Work;

use super::*;

const PODS: u32 = 20_000;

fn address(at: u32) -> String {
    std::net::Ipv4Addr::from(0x0a00_0001 + 2 * at).to_string()
}

fn with_port(at: u32, number: u16) -> Object {
    let Object::Pod(mut pod) = pod(&format!("n{}/p{at}", at % 100), &address(at), "other", "") else { unreachable!() };
    Arc::make_mut(&mut pod).ports.push(ContainerPort { name: "http".into(), transport: Transport::Tcp, port: number });
    Object::Pod(pod)
}

fn http() -> Option<Vec<PolicyPort>> {
    Some(vec![PolicyPort::Named { transport: Transport::Tcp, name: "http".into() }])
}

fn all_pods() -> Option<Vec<Peer>> {
    let namespaces = NamespaceScope::Selected(Selector::everything());
    Some(vec![Peer::Pods(PodPeer { namespaces, pods: Selector::everything(), filter: None })])
}

/// Returns a node with one pod, and many pods on other nodes that declare `http`.
fn large(policies: Vec<Object>) -> Pipeline {
    let mut objects = vec![namespace("x", ""), pod("x/a", "192.168.0.1", "n", "")];
    objects.extend((0..100).map(|at| namespace(&format!("n{at}"), "")));
    objects.extend((0..PODS).map(|at| with_port(at, 8080)));
    objects.extend(policies);
    let mut pipeline = Pipeline::new(Scope::Node("n".into()));
    pipeline.resync(objects).unwrap();
    pipeline
}

fn cost(pipeline: &mut Pipeline, event: Event) -> Work {
    let before = pipeline.work();
    pipeline.apply(event).unwrap();
    let after = pipeline.work();
    Work {
        pods: after.pods - before.pods,
        intervals: after.intervals - before.intervals,
        policies: after.policies - before.policies,
    }
}

#[test]
fn a_pod_event_visits_the_pod_alone_where_port_names_may_be_anybodys() {
    let block = Peer::Block(IpBlock { cidr: "10.0.0.0/8".parse().unwrap(), except: vec![] });
    let rules = [None, Some(vec![block]), all_pods()].map(|peers| PolicyRule { peers, ports: http() });
    let policies = rules.into_iter().zip(["x/p", "x/q", "x/r"]);
    let mut pipeline = large(policies.map(|(rule, name)| policy(name, "", None, Some(vec![rule]))).collect());
    let last = PODS - 1;
    let key = |port| tcp("192.168.0.1", &address(last), port);
    assert!(allowed(&pipeline, "n", &key(8080)) && !allowed(&pipeline, "n", &key(8081)));
    let gone = cost(&mut pipeline, Event::DeletePod(name(&format!("n{}/p{last}", last % 100))));
    assert!(!allowed(&pipeline, "n", &key(8080)));
    let back = cost(&mut pipeline, Event::Apply(with_port(last, 8081)));
    assert!(!allowed(&pipeline, "n", &key(8080)) && allowed(&pipeline, "n", &key(8081)));
    for work in [gone, back] {
        // The name's second number is a new set, which the policies must name.
        assert_eq!((work.pods, work.policies <= 3), (1, true));
        // One part of four equal sets: the addresses of the group, and of the port name in the group, on all pods, and in the block. Then
        // the one pod with the second number.
        assert!(work.intervals <= PART as u64 + 4, "{work:?}");
    }
}

#[test]
fn a_pod_event_in_a_group_of_all_pods_writes_one_part_of_it() {
    let policies = (0..5).map(|at| {
        let rule = PolicyRule { peers: all_pods(), ports: None };
        policy(&format!("x/p{at}"), "", Some(vec![rule.clone()]), Some(vec![rule]))
    });
    let mut pipeline = large(policies.collect());
    let rules = |pipeline: &Pipeline| -> Vec<Rule> {
        let tables = pipeline.node_tables("n").unwrap();
        tables.tables[0].tables.rules().iter().cloned().collect()
    };
    let before = rules(&pipeline);
    let work = cost(&mut pipeline, Event::DeletePod(name("n7/p7")));
    assert_eq!((work.pods, work.policies), (1, 0));
    assert!(work.intervals <= PART as u64, "{work:?}");
    assert!(!allowed(&pipeline, "n", &tcp(&address(7), "192.168.0.1", 1)));
    assert!(allowed(&pipeline, "n", &tcp(&address(8), "192.168.0.1", 1)));
    let after = rules(&pipeline);
    assert_eq!(before.len(), after.len());
    let large = |rules: &[Rule]| -> Vec<Arc<PartedSet>> {
        let sets = rules.iter().filter_map(|rule| match &rule.src {
            Addresses::Parted(set) => Some(set.clone()),
            Addresses::Any | Addresses::Set(_) => None,
        });
        sets.collect()
    };
    let [before, after] = [large(&before), large(&after)];
    assert!(
        before.len() == 5 && [&before, &after].iter().all(|sets| sets.iter().all(|set| Arc::ptr_eq(set, &sets[0])))
    );
    let shared = before[0].parts().iter().zip(after[0].parts()).filter(|(a, b)| Arc::ptr_eq(a, b));
    let parts = before[0].parts().len();
    assert!(parts > 4, "{parts} parts");
    assert_eq!(shared.count(), parts - 1, "all but one part");
}

#[test]
fn a_pod_that_no_group_has_costs_nothing_but_the_look_at_it() {
    let rule = PolicyRule { peers: all_pods(), ports: None };
    let mut pipeline = large(vec![policy("x/p", "", Some(vec![rule]), None)]);
    let Object::Pod(mut waiting) = with_port(PODS, 1) else { unreachable!() };
    Arc::make_mut(&mut waiting).addresses.clear();
    let work = cost(&mut pipeline, Event::Apply(Object::Pod(waiting)));
    assert_eq!(work, Work { pods: 1, intervals: 0, policies: 0 });
}

/// Returns a pipeline whose node has large tables at its exit and its pod.
fn with_large_tables() -> Pipeline {
    let policies = (0..3).map(|at| {
        let rule = |ports| PolicyRule { peers: all_pods(), ports };
        policy(&format!("x/p{at}"), "", Some(vec![rule(None)]), Some(vec![rule(http())]))
    });
    large(policies.collect())
}

#[test]
fn a_pod_event_compiles_no_large_table_and_no_table_is_left_to_a_scan() {
    let mut pipeline = with_large_tables();
    let first = pipeline.table_work();
    assert_eq!((first.built, first.followed, first.beside), (2, 0, 0), "the pod's table and the exit's");
    let out = |at: u32| tcp("192.168.0.1", &address(at), 8080);
    for at in 0..300 {
        let before = pipeline.table_work();
        let pod = at / 2 * 31;
        if at % 2 == 0 {
            pipeline.apply(Event::DeletePod(name(&format!("n{}/p{pod}", pod % 100)))).unwrap();
        } else {
            pipeline.apply(Event::Apply(with_port(pod, 8080))).unwrap();
        }
        let after = pipeline.table_work();
        assert_eq!((after.built, after.followed - before.followed), (first.built, 2), "event {at}");
        assert_eq!(allowed(&pipeline, "n", &out(pod)), at % 2 == 1);
        assert!(allowed(&pipeline, "n", &out(pod + 1)));
        for table in &pipeline.node_tables("n").unwrap().tables {
            assert!(!table.tables.describe().contains("scan"), "{}: {}", table.name, table.tables.describe());
        }
    }
    assert_eq!(pipeline.table_work().beside, 0, "what refers to sets is never out of date");
}

#[test]
fn large_tables_say_what_a_scan_of_their_rules_says_after_every_event() {
    let mut pipeline = with_large_tables();
    let (mut compared, mut allows) = (0, 0);
    for at in 0..120_u32 {
        let pod = at.wrapping_mul(2_654_435_761) % PODS;
        let name = name(&format!("n{}/p{pod}", pod % 100));
        let event = match at % 8 {
            0..4 => Event::DeletePod(name),
            4..6 => Event::Apply(with_port(pod, 8081)),
            6 => Event::Apply(deny_all("x/d")),
            _ => Event::DeletePolicy(super::name("x/d")),
        };
        pipeline.apply(event).unwrap();
        if at % 5 == 0 {
            pipeline.finish_builds();
        }
        for table in &pipeline.node_tables("n").unwrap().tables {
            for other in [pod, pod + 1, at * 7 % PODS] {
                for key in [
                    tcp("192.168.0.1", &address(other), 8080),
                    tcp("192.168.0.1", &address(other), 8081),
                    tcp(&address(other), "192.168.0.1", 8080),
                ] {
                    let truth = bulkhead_classifier::linear::scan(table.tables.rules().iter(), &key);
                    assert_eq!(table.tables.lookup(&key), truth, "{} {key:?} after event {at}", table.name);
                    compared += 1;
                    allows += u32::from(truth.is_allow());
                }
            }
        }
    }
    assert!(compared > 2_000 && allows > 200, "{allows} of {compared}");
    let work = pipeline.table_work();
    assert!(work.followed > 100 && work.built > 2, "{work:?}");
}
