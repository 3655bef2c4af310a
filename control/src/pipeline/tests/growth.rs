//! The pipeline's memory depends on the present state, not on the number of past events. The long test prints the memory of the process as
//! it runs: `cargo xtask growth [EVENTS]`.

use std::net::Ipv4Addr;
use std::time::Instant;

use super::*;
use crate::object::{ContainerPort, PolicyPort, Transport};

/// Counts of the things that a pipeline remembers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    /// Sets, lists and nodes of the renderer, and pods of the pipeline.
    told: [usize; 4],
    /// Groups, port names, blocks and node selectors in use.
    book: usize,
    /// Origins, interned inputs of tables, and shared sets.
    interned: [usize; 3],
}

fn held(pipeline: &Pipeline) -> Held {
    let acl = pipeline.acl().unwrap();
    let (sets, lists, interned, shared, nodes) = acl.held();
    Held {
        told: [sets, lists, nodes, pipeline.told.len()],
        book: pipeline.processor.held(),
        interned: [pipeline.origins.len(), interned, shared],
    }
}

/// SplitMix64, a random number generator.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u32::try_from((mixed ^ (mixed >> 31)) % u64::from(bound)).unwrap()
    }
}

const NAMESPACES: u32 = 8;
const NODES: u32 = 5;
/// Numbers of slots for pods and policies. A new object in a slot deletes the previous one.
const PODS: u32 = 120;
const POLICIES: u32 = 24;

/// A cluster whose objects change all the time. No name is used twice, as with pods of Deployments.
struct Churn {
    random: Random,
    given: u64,
    pods: Vec<Option<Event>>,
    policies: Vec<Option<Event>>,
    nodes: Vec<Option<Event>>,
}

impl Churn {
    fn new() -> Self {
        let places = |count: u32| (0..count).map(|_| None).collect();
        Self { random: Random(0x6f), given: 0, pods: places(PODS), policies: places(POLICIES), nodes: places(NODES) }
    }

    fn one_of(&mut self, all: &[&'static str]) -> &'static str {
        all[self.random.below(u32::try_from(all.len()).unwrap()) as usize]
    }

    /// Returns the next events: a new object, after the deletion of the previous one in its slot.
    fn next(&mut self) -> Vec<Event> {
        self.given += 1;
        let (given, kind) = (self.given, self.random.below(20));
        match kind {
            0..12 => {
                let at = self.random.below(PODS);
                let (place, name) = (at as usize, format!("ns{}/p{given}", self.random.below(NAMESPACES)));
                // Each address has two slots, so that pods contest it.
                let address = Ipv4Addr::from(0x0a00_0001 + at / 2 * 2 + self.random.below(2)).to_string();
                let node = format!("n{}", self.random.below(2));
                let app = self.one_of(&["app=a", "app=b", "app=c,tier=x"]);
                let Object::Pod(pod) = pod(&name, &address, &node, app) else { unreachable!() };
                let mut pod = Arc::unwrap_or_clone(pod);
                let port = 8_000 + u16::try_from(self.random.below(3)).unwrap();
                pod.ports.push(ContainerPort { name: "web".into(), transport: Transport::Tcp, port });
                pod.host_network = self.random.below(30) == 0;
                pod.finished = self.random.below(30) == 0;
                let gone = self.pods[place].replace(Event::DeletePod(pod.name.clone()));
                gone.into_iter().chain([Event::Apply(pod.into())]).collect()
            }
            12..16 => {
                let place = self.random.below(POLICIES) as usize;
                let name = format!("ns{}/q{given}", self.random.below(NAMESPACES));
                let (subject, ingress, egress) = (self.one_of(&["", "app=a", "app=b"]), self.rules(), self.rules());
                let policy = policy(&name, subject, ingress, egress);
                let gone = self.policies[place].replace(Event::DeletePolicy(super::name(&name)));
                gone.into_iter().chain([Event::Apply(policy)]).collect()
            }
            16..18 => {
                let (name, team) = (format!("ns{}", self.random.below(NAMESPACES)), self.random.below(3));
                vec![Event::Apply(namespace(&name, &format!("team=t{team},since=v{given}")))]
            }
            18 => vec![Event::DeleteNamespace(format!("ns{}", self.random.below(NAMESPACES)).into())],
            _ => {
                let place = self.random.below(NODES) as usize;
                // Nodes 0 and 1 have pods; the others are replaced under new names.
                let name = if place < 2 { format!("n{place}") } else { format!("other{given}") };
                let address = format!("192.168.{place}.{}", 1 + self.random.below(3));
                let gone = self.nodes[place].replace(Event::DeleteNode(name.as_str().into()));
                gone.into_iter().chain([Event::Apply(node(&name, &address))]).collect()
            }
        }
    }

    fn rules(&mut self) -> Option<Vec<PolicyRule>> {
        let count = self.random.below(4);
        (count < 3).then(|| (0..count).map(|_| self.rule()).collect())
    }

    fn rule(&mut self) -> PolicyRule {
        let app = self.one_of(&["", "app=a", "app=b", "tier=x"]);
        let pods = crate::fixtures::selector(app);
        let team = crate::fixtures::selector(self.one_of(&["", "team=t0", "team=t1"]));
        let own = format!("ns{}", self.random.below(NAMESPACES)).into();
        let block = format!("10.{}.0.0/16", self.random.below(250)).parse().unwrap();
        let peers = match self.random.below(5) {
            0 => None,
            1 => Some(vec![Peer::Pods(PodPeer { namespaces: NamespaceScope::Own(own), pods, filter: None })]),
            2 | 3 => Some(vec![Peer::Pods(PodPeer { namespaces: NamespaceScope::Selected(team), pods, filter: None })]),
            _ => Some(vec![Peer::Block(IpBlock { cidr: block, except: vec![] })]),
        };
        let port = 80 + u16::try_from(self.random.below(20)).unwrap();
        let ports = match self.random.below(3) {
            0 => None,
            1 => Some(vec![PolicyPort::Named { transport: Transport::Tcp, name: "web".into() }]),
            _ => Some(vec![PolicyPort::Range { transport: Transport::Tcp, first: port, last: port }]),
        };
        PolicyRule { peers, ports }
    }

    /// Deletes all objects.
    fn end(self) -> Vec<Event> {
        let namespaces = (0..NAMESPACES).map(|at| Event::DeleteNamespace(format!("ns{at}").into()));
        let places = self.policies.into_iter().chain(self.pods).chain(self.nodes);
        places.flatten().chain(namespaces).collect()
    }
}

/// Applies at least `events` events in batches, calls `look` after every `every` events, and deletes all objects at the end.
fn churn(pipeline: &mut Pipeline, events: u64, every: u64, mut look: impl FnMut(u64, &Pipeline)) {
    let mut churn = Churn::new();
    let (mut done, mut next) = (0, every);
    while done < events {
        let batch: Vec<Event> = (0..=churn.random.below(8)).flat_map(|_| churn.next()).collect();
        done += batch.len() as u64;
        pipeline.apply_batch(batch).unwrap();
        if done >= next {
            next += every;
            look(done, pipeline);
        }
    }
    let ending = churn.end();
    pipeline.apply_batch(ending).unwrap();
}

fn new(scope: Scope, kept: usize) -> Pipeline {
    let mut pipeline = Pipeline::new(scope);
    pipeline.origins = Origins::keeping(kept);
    pipeline.resync([]).unwrap();
    pipeline
}

#[test]
fn after_twenty_thousand_events_no_more_is_remembered_than_there_is() {
    for scope in [Scope::Node("n0".into()), Scope::Cluster] {
        let mut pipeline = new(scope.clone(), 100);
        let empty = held(&pipeline);
        let mut most = Vec::new();
        churn(&mut pipeline, 10_000, 10, |_, pipeline| most.push(held(pipeline)));
        let half = |of: &[Held]| {
            let most = |field: fn(&Held) -> usize| of.iter().map(field).max().unwrap();
            [
                most(|held| held.told[0]),
                most(|held| held.told[1]),
                most(|held| held.told[2]),
                most(|held| held.told[3]),
                most(|held| held.book),
                most(|held| held.interned[0]),
                most(|held| held.interned[1]),
                most(|held| held.interned[2]),
            ]
        };
        let (first, second) = most.split_at(most.len() / 2);
        let (first, second) = (half(first), half(second));
        // No set is large enough to be shared.
        assert!(first[..7].iter().all(|&most| most > 0), "{scope:?} {first:?}");
        assert!(first.iter().zip(second).all(|(&a, b)| b <= a + a / 4 + 8), "{scope:?} {first:?} {second:?}");
        // Sets, lists, pods and nodes are removed with the last event, independent of sweeps.
        let end = held(&pipeline);
        assert_eq!((end.told, end.book), (empty.told, empty.book), "{scope:?}");
        assert!(pipeline.acl().unwrap().holds_nothing());
        assert_eq!((pipeline.cache.pods().count(), pipeline.cache.policies().len()), (0, 0));
    }
}

/// Resident memory of the process, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|text| text.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

#[test]
#[ignore = "takes long: cargo xtask growth [EVENTS]"]
fn memory_does_not_grow_with_the_number_of_events() {
    let events = std::env::var("BULKHEAD_EVENTS").ok().and_then(|text| text.parse().ok()).unwrap_or(10_000_000);
    let started = Instant::now();
    let mut pipeline = new(Scope::Node("n0".into()), Origins::KEPT);
    let mut all = Vec::new();
    churn(&mut pipeline, events, (events / 100).max(1), |done, pipeline| {
        let (resident, held) = (resident(), held(pipeline));
        let Held { told: [sets, lists, nodes, pods], book, interned: [origins, interned, shared] } = held;
        println!(
            "{done:>9} events, {:>5} s: {resident:>7} KiB; {sets} sets, {lists} lists, {nodes} nodes, {pods} pods, {book} in the \
             book, {origins} origins, {interned} interned, {shared} shared",
            started.elapsed().as_secs(),
        );
        all.push(resident);
    });
    // The first quarter fills the memory of deleted rules' names.
    let quarter = all.len() / 4;
    let most = |of: &[u64]| of.iter().copied().max().unwrap_or(0);
    let (early, late) = (most(&all[..2 * quarter]), most(&all[2 * quarter..]));
    assert!(late <= early + early / 10, "{early} KiB in the first half, {late} in the second");
}
