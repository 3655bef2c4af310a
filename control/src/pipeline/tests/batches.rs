//! Random events give the same state for every division into batches, and the deltas of sets lead to that state.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::mpsc;

use bulkhead_classifier::OriginId;
use proptest::test_runner::TestRunner;

use super::*;
use crate::contract::SetMirror;
use crate::filter::Filter;
use crate::object::{ContainerPort, PolicyPort, Region, Transport};
use crate::renderer::BoxError;
use crate::selector::Selector;

/// A renderer that keeps only the contents of transactions.
#[derive(Default)]
struct Listener {
    sets: SetMirror,
    endpoints: BTreeMap<PodName, Arc<Endpoint>>,
    transactions: usize,
    changed: usize,
}

impl Renderer for Listener {
    fn name(&self) -> String {
        "listener".into()
    }

    fn render(&mut self, transaction: &Transaction) -> Result<(), BoxError> {
        for delta in transaction.sets.iter().filter(|_| !transaction.resync) {
            let before = self.sets.get(delta.set).cloned();
            let members = before.clone().unwrap_or_default();
            assert!(delta.added.intersect(&members).is_empty(), "what was there is not added: {delta:?}");
            assert!(delta.removed.subtract(&members).is_empty(), "what was not there does not leave: {delta:?}");
            let changes = !(delta.added.is_empty() && delta.removed.is_empty());
            assert!(changes || before.is_none(), "a set that is as it was is not told of: {delta:?}");
            self.changed += usize::from(before.is_some());
        }
        self.sets.apply(transaction);
        if transaction.resync {
            self.endpoints.clear();
        }
        for (name, endpoint) in &transaction.endpoints {
            let old = match endpoint {
                Some(endpoint) => self.endpoints.insert(name.clone(), endpoint.clone()),
                None => self.endpoints.remove(name),
            };
            assert!(transaction.resync || old != *endpoint, "an endpoint that is as it was is not told of: {name}");
        }
        self.transactions += 1;
        Ok(())
    }
}

impl Listener {
    /// Checks that every set named by a rule exists.
    fn check(&self) {
        let rules = self.endpoints.values().flat_map(|endpoint| endpoint.rules.lists()).flat_map(|list| &list.rules);
        for rule in rules {
            if let crate::contract::Peers::Sets(sets) = &rule.peers {
                assert!(sets.iter().all(|set| self.sets.get(*set).is_some()), "{rule:?}");
            }
        }
    }
}

fn any_port() -> impl Strategy<Value = PolicyPort> {
    prop_oneof![
        Just(PolicyPort::Named { transport: Transport::Tcp, name: "http".into() }),
        (80u16..83).prop_map(|first| PolicyPort::Range { transport: Transport::Tcp, first, last: first }),
    ]
}

/// As [`any_event`], also with port names, blocks, both families, terminated pods and shared addresses.
fn any_richer_event() -> impl Strategy<Value = Event> {
    let role = || prop_oneof![Just("role=a"), Just("role=b"), Just("role=c")];
    let ns = || prop_oneof![Just("x"), Just("y")];
    let addresses = prop_oneof![
        6 => (1u8..7).prop_map(|at| format!("10.0.0.{at}")),
        2 => (1u8..7).prop_map(|at| format!("10.0.0.{at},fd00::{at}")),
        1 => Just(String::new()),
    ];
    let ports = prop::option::of(80u16..83);
    let pods = (ns(), 0u8..5, addresses, prop_oneof![Just("n1"), Just("n2")], role(), ports, 0u8..12);
    let pods = pods.prop_map(|(ns, number, addresses, node, role, port, ended)| {
        let Object::Pod(mut pod) = pod(&format!("{ns}/p{number}"), &addresses, node, role) else { unreachable!() };
        let pod = Arc::make_mut(&mut pod);
        pod.ports.extend(port.map(|port| ContainerPort { name: "http".into(), transport: Transport::Tcp, port }));
        pod.finished = ended == 0;
        pod.host_network = ended == 1;
        Event::Apply(pod.clone().into())
    });
    let peer = prop_oneof![
        3 => (ns(), role()).prop_map(|(ns, role)| Peer::Pods(PodPeer {
            namespaces: NamespaceScope::Own(ns.into()),
            pods: crate::fixtures::selector(role),
            filter: None,
        })),
        2 => role().prop_map(|team| Peer::Pods(PodPeer {
            namespaces: NamespaceScope::Selected(crate::fixtures::selector(&team.replace("role", "team"))),
            pods: Selector::everything(),
            filter: None,
        })),
        1 => Just(Peer::Pods(PodPeer {
            namespaces: NamespaceScope::Selected(Selector::everything()),
            pods: Selector::everything(),
            filter: None,
        })),
        1 => Just(Peer::Block(IpBlock { cidr: "10.0.0.0/29".parse().unwrap(), except: vec!["10.0.0.2/32".parse().unwrap()] })),
    ];
    // Pods by a label of their namespace, in one namespace or in all.
    let filtered = (ns(), any::<bool>(), role(), any::<bool>()).prop_map(|(ns, is_own, team, is_not)| {
        let own = NamespaceScope::Own(ns.into());
        let team = crate::fixtures::selector(&team.replace("role", "team")).requirements()[0].clone();
        let label = Filter::NamespaceLabel(team);
        let filter = if is_not { Filter::Not(Box::new(label)) } else { label };
        Peer::Pods(PodPeer {
            namespaces: if is_own { own } else { NamespaceScope::Selected(Selector::everything()) },
            pods: Selector::everything(),
            filter: Some(Arc::new(filter)),
        })
    });
    let part = prop_oneof![2 => peer.clone(), 1 => filtered.clone(), 1 => Just(Peer::Nodes(Selector::everything()))];
    let union = || prop::collection::vec(part.clone(), 0..3);
    let region = (prop::collection::vec(union(), 0..3), union())
        .prop_map(|(all, none)| Peer::Region(Arc::new(Region { all, none })));
    let peer = prop_oneof![3 => peer, 1 => filtered, 2 => region];
    let rule = (
        prop::option::of(prop::collection::vec(peer, 0..3)),
        prop::option::of(prop::collection::vec(any_port(), 0..3)),
    )
        .prop_map(|(peers, ports)| PolicyRule { peers, ports })
        .boxed();
    let rules = move || prop::option::of(prop::collection::vec(rule.clone(), 0..3));
    prop_oneof![
        6 => pods,
        3 => (ns(), 0u8..5).prop_map(|(ns, n)| Event::DeletePod(name(&format!("{ns}/p{n}")))),
        4 => (ns(), 0u8..3, role(), rules(), rules()).prop_map(|(ns, n, subject, ingress, egress)| {
            Event::Apply(policy(&format!("{ns}/q{n}"), subject, ingress, egress))
        }),
        1 => (ns(), 0u8..3).prop_map(|(ns, n)| Event::DeletePolicy(name(&format!("{ns}/q{n}")))),
        2 => (ns(), role()).prop_map(|(ns, team)| Event::Apply(namespace(ns, &team.replace("role", "team")))),
        1 => ns().prop_map(|ns| Event::DeleteNamespace(ns.into())),
    ]
}

#[test]
fn batches_of_any_size_end_where_one_batch_and_a_fresh_start_end_and_the_deltas_alone_give_every_set() {
    let reached = RefCell::new([0usize; 4]);
    let mut runner = TestRunner::new(ProptestConfig::with_cases(400));
    let history = prop::collection::vec(prop::collection::vec(any_richer_event(), 1..12), 1..12);
    let run = |batches: Vec<Vec<Event>>| {
        let mut batched = Pipeline::new(Scope::Cluster);
        let listener = batched.register(Listener::default());
        for batch in &batches {
            batched.apply_batch(batch.iter().cloned()).unwrap();
            // Two accounts of every set: the book with the cache, and the deltas.
            let told = batched.renderer(listener);
            told.check();
            let mirrored: BTreeMap<_, _> = told.sets.sets().map(|(set, members)| (set, members.clone())).collect();
            prop_assert_eq!(&mirrored, &batched.processor.sets(&batched.cache));
        }
        let mut at_once = Pipeline::new(Scope::Cluster);
        at_once.apply_batch(batches.iter().flatten().cloned()).unwrap();
        let mut fresh = Pipeline::new(Scope::Cluster);
        for event in batches.iter().flatten() {
            for event in fresh.claims.resolve(&fresh.cache, event.clone()) {
                fresh.cache.apply(event);
            }
        }
        let quarantined = fresh.claims.quarantined(&fresh.cache);
        fresh.cache.quarantine(quarantined);
        fresh.render_all().unwrap();
        let end = enforced(&batched);
        prop_assert_eq!(&end, &enforced(&at_once), "at once");
        prop_assert_eq!(&end, &enforced(&fresh), "from scratch");
        // A resync without changes publishes nothing and keeps the sets' identities.
        let generations = |pipeline: &Pipeline| -> Vec<u64> {
            pipeline.all_node_tables().iter().map(|tables| tables.generation).collect()
        };
        let (before, sets) = (generations(&batched), batched.renderer(listener).sets.clone());
        batched.render_all().unwrap();
        prop_assert_eq!(before, generations(&batched));
        prop_assert_eq!(&sets, &batched.renderer(listener).sets);
        // After the deletion of all objects, no set, endpoint or table is left.
        let cache = batched.cache();
        let pods = cache.pods().map(|(_, pod)| Event::DeletePod(pod.name.clone()));
        let all: Vec<_> = pods.chain(cache.policies().keys().cloned().map(Event::DeletePolicy)).collect();
        let told = batched.renderer(listener).sets.sets().count();
        batched.apply_batch(all).unwrap();
        let end_of_all = batched.renderer(listener);
        prop_assert_eq!((end_of_all.sets.sets().count(), end_of_all.endpoints.len()), (0, 0));
        prop_assert!(batched.processor.sets(&batched.cache).is_empty() && batched.told.is_empty());
        prop_assert!(batched.acl().unwrap().holds_nothing());
        let mut reached = reached.borrow_mut();
        reached[0] += end_of_all.changed;
        reached[1] += usize::from(end_of_all.transactions < batches.len() + 2);
        reached[2] += told;
        reached[3] += end.iter().flat_map(|(_, rules)| rules).filter(|(rule, _)| rule.action == Action::Deny).count();
        Ok(())
    };
    runner.run(&history, run).unwrap();
    let [changed, silent, sets, denies] = reached.into_inner();
    assert!(changed > 100 && silent > 50 && sets > 100 && denies > 500, "{changed} {silent} {sets} {denies}");
}

#[test]
fn a_batch_that_changes_nothing_in_the_end_tells_and_publishes_nothing() {
    let mut objects = redis();
    objects.extend([allow_backend(), egress_to_web()]);
    let mut pipeline = cluster(objects);
    let listener = pipeline.register(Listener::default());
    let before = pipeline.node_tables("n1").unwrap();
    // A remote peer and a local pod restart, a policy is deleted and created again, and a label is added and removed.
    pipeline
        .apply_batch([
            Event::DeletePod(name("default/backend2")),
            Event::DeletePod(name("default/db")),
            Event::DeletePolicy(name("default/allow-backend")),
            Event::Apply(namespace("default", "team=red")),
            Event::Apply(allow_backend()),
            Event::Apply(pod("default/db", "10.244.1.2", "n1", "role=db")),
            Event::Apply(pod("default/backend2", "10.244.2.5", "n2", "role=backend")),
            Event::Apply(namespace("default", "")),
        ])
        .unwrap();
    assert_eq!(pipeline.renderer(listener).transactions, 0);
    assert!(Arc::ptr_eq(&before, &pipeline.node_tables("n1").unwrap()));
}

#[test]
fn a_batch_is_published_once_and_a_table_that_no_event_concerns_is_the_one_of_before() {
    let mut objects = redis();
    objects.extend([pod("default/web", "10.244.1.9", "n1", "role=web"), allow_backend(), deny_all("other/deny")]);
    objects.push(policy("default/web", "role=web", Some(vec![from_pods("default", "role=frontend", None)]), None));
    let mut pipeline = cluster(objects);
    let tables_of = |pipeline: &Pipeline, pod: &str| {
        let node = pipeline.node_tables("n1").unwrap();
        let at = Attachment::Pod(name(pod));
        let interface = node.interfaces.iter().find(|interface| interface.attachment == at).unwrap();
        node.tables[interface.table].tables.clone()
    };
    let generation = pipeline.node_tables("n1").unwrap().generation;
    let (db, web) = (tables_of(&pipeline, "default/db"), tables_of(&pipeline, "default/web"));
    let pods = (10..20).map(|at| pod(&format!("default/b{at}"), &format!("10.244.2.{at}"), "n2", "role=backend"));
    pipeline.apply_batch(pods.map(Event::Apply)).unwrap();
    assert_eq!(pipeline.node_tables("n1").unwrap().generation, generation + 1);
    assert!(Arc::ptr_eq(&web, &tables_of(&pipeline, "default/web")));
    assert!(!Arc::ptr_eq(&db, &tables_of(&pipeline, "default/db")));
    assert!((10..20).all(|at| allowed(&pipeline, "n1", &tcp(&format!("10.244.2.{at}"), "10.244.1.2", 6379))));
}

#[test]
fn a_renderer_that_fails_is_named_and_makes_up_for_it_with_the_next_change() {
    /// Reports the size of each transaction, and fails on request.
    struct Fails(mpsc::Sender<usize>, mpsc::Receiver<()>);
    impl Renderer for Fails {
        fn name(&self) -> String {
            "flaky".into()
        }

        fn render(&mut self, transaction: &Transaction) -> Result<(), BoxError> {
            self.0.send(transaction.endpoints.len())?;
            match self.1.try_recv() {
                Ok(()) => Err("the stack is gone".into()),
                Err(_) => Ok(()),
            }
        }

        fn origins(&self) -> HashSet<OriginId> {
            HashSet::new()
        }
    }
    let ((told, heard), (fail, failing)) = (mpsc::channel(), mpsc::channel());
    let mut pipeline = cluster(redis());
    pipeline.register(Fails(told, failing));
    fail.send(()).unwrap();
    let error = pipeline.apply(Event::Apply(allow_backend())).unwrap_err();
    assert_eq!((error.renderer.as_str(), error.source.to_string().as_str()), ("flaky", "the stack is gone"));
    let isolated = |pipeline: &Pipeline| !allowed(pipeline, "n1", &tcp("10.244.1.3", "10.244.1.2", 6379));
    assert!(isolated(&pipeline), "the other renderer took it");
    pipeline.apply(Event::DeletePolicy(name("default/allow-backend"))).unwrap();
    assert!(!isolated(&pipeline));
    assert_eq!(heard.try_iter().collect::<Vec<_>>(), [1, 1]);
}
