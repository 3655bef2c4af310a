//! Tables that do not fit.

use bulkhead_classifier::{
    Action, AddressSet, Addresses, Key, OriginId, PartedSet, PortRange, Service, Services, protocol,
};

use super::*;
use crate::renderer::plain::{PlainList, PlainPod, PlainRule};

/// Room for a table of some rules, but not of thousands.
const MAX_BYTES: usize = 1 << 15;

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn pod(name: &str) -> PodName {
    PodName::new("x", name)
}

/// Returns a list whose rules allow sources or destinations at TCP ports and deny the rest.
fn list(revision: u64, allowed: &[(Addresses, u16)]) -> Arc<PlainList> {
    let origin = OriginId(100 + u32::try_from(revision).unwrap());
    let rule = |(peers, port): &(Addresses, u16)| {
        let service = Service { protocols: (protocol::TCP, protocol::TCP), ports: PortRange::one(*port) };
        let services = Services::from([service].into_iter().collect::<bulkhead_classifier::ServiceSet>());
        PlainRule { peers: peers.clone(), services, names: None, action: Action::Allow, origin }
    };
    let deny = PlainRule { peers: Addresses::Any, services: Services::Any, names: None, action: Action::Deny, origin };
    let rules = allowed.iter().map(rule).chain([deny]).collect();
    Arc::new(PlainList { revision, previous: None, rules, own_node: Vec::new() })
}

/// Returns a list that does not fit and differs from every other.
fn huge(revision: u64) -> Arc<PlainList> {
    let peer = |at: u32| Addresses::prefix(IpAddr::from((0x1400_0000 + 2 * at).to_be_bytes()).into());
    let allowed: Vec<_> = (0..6_000u32).map(|at| (peer(at), u16::try_from(at % 7).unwrap())).collect();
    list(revision, &allowed)
}

type Lists = (Option<Arc<PlainList>>, Option<Arc<PlainList>>);

/// Returns a change of pods: name, address, ingress and egress.
fn pods(all: &[(&str, &str, Lists)]) -> PodChanges {
    let plain = |(name, of, (ingress, egress)): &(&str, &str, Lists)| {
        let (ingress, egress) = (ingress.clone(), egress.clone());
        let plain =
            PlainPod { node: "n".into(), addresses: vec![address(of)], mac: None, ingress, egress, hairpin: None };
        (pod(name), Some(Arc::new(plain)))
    };
    all.iter().map(plain).collect()
}

/// Creates a renderer of a small node and renders these pods.
fn renderer(all: &[(&str, &str, Lists)]) -> NodeRenderer {
    let mut renderer = NodeRenderer::new("n".into(), false);
    renderer.beside.max_bytes = MAX_BYTES;
    renderer.render(true, &pods(all), None);
    assert_eq!(renderer.refusals().count(), 0, "these fit");
    renderer
}

/// Whether the table of a pod, or the exit, allows a packet.
fn passes(renderer: &NodeRenderer, to: Option<&str>, src: &str, dst: &str, port: u16) -> bool {
    let published = renderer.published().unwrap();
    let wanted = to.map_or(Attachment::Uplink, |name| Attachment::Pod(pod(name)));
    let interface = published.interfaces.iter().find(|interface| interface.attachment == wanted).unwrap();
    let key = Key::new(address(src), address(dst), protocol::TCP, 40_000, port);
    published.tables[interface.table].tables.lookup(&key).is_allow()
}

fn told(renderer: &NodeRenderer) -> Vec<(String, Instead)> {
    renderer.refusals().map(|refusal| (refusal.subject, refusal.instead)).collect()
}

#[test]
fn a_table_that_does_not_fit_concerns_its_pod_alone() {
    let any = |port| list(u64::from(port), &[(Addresses::Any, port)]);
    let mut renderer =
        renderer(&[("web", "10.0.0.1", (Some(any(80)), None)), ("db", "10.0.0.2", (Some(any(81)), None))]);
    // At once: an existing pod and a new pod that do not fit, and one that fits.
    let (was, new) = (huge(1), huge(2));
    let change = pods(&[
        ("web", "10.0.0.1", (Some(was), None)),
        ("db", "10.0.0.2", (Some(any(82)), None)),
        ("new", "10.0.0.3", (Some(new), None)),
    ]);
    renderer.render(false, &change, None);
    let to = |renderer: &NodeRenderer, name, dst, port| passes(renderer, Some(name), "10.9.9.9", dst, port);
    assert_eq!([80, 81, 6].map(|port| to(&renderer, "web", "10.0.0.1", port)), [true, false, false]);
    assert_eq!([81, 82].map(|port| to(&renderer, "db", "10.0.0.2", port)), [false, true]);
    assert!((0..100).all(|port| !passes(&renderer, Some("new"), "20.0.0.0", "10.0.0.3", port)));
    assert_eq!(told(&renderer), [("x/new".into(), Instead::Closed), ("x/web".into(), Instead::LastGood)]);
    assert_eq!(renderer.work().refused, 2);
    // Changes of other pods do not cause another attempt.
    renderer.render(false, &pods(&[("db", "10.0.0.2", (Some(any(83)), None))]), None);
    assert_eq!(renderer.work().refused, 2);
    assert!(to(&renderer, "web", "10.0.0.1", 80) && to(&renderer, "db", "10.0.0.2", 83));
    // The list is still too large, so the closed interface stays closed. Then both fit.
    renderer.render(false, &pods(&[("new", "10.0.0.3", (Some(huge(3)), None))]), None);
    assert_eq!(told(&renderer)[0], ("x/new".into(), Instead::Closed));
    let change = pods(&[("web", "10.0.0.1", (Some(any(6)), None)), ("new", "10.0.0.3", (Some(any(7)), None))]);
    renderer.render(false, &change, None);
    assert_eq!(told(&renderer), []);
    assert_eq!([80, 6].map(|port| to(&renderer, "web", "10.0.0.1", port)), [false, true]);
    assert!(to(&renderer, "new", "10.0.0.3", 7));
}

/// The last table of a pod does not have the denials of a new pod's egress rules.
#[test]
fn tables_that_stay_let_nothing_through_from_sources_that_they_do_not_know() {
    let open = |revision| list(revision, &[(Addresses::Any, 80)]);
    let client = ("client", "10.0.0.5", (None, Some(list(50, &[(Addresses::Any, 80)]))));
    let mut renderer = renderer(&[("web", "10.0.0.1", (Some(open(1)), None)), client.clone()]);
    renderer.render(false, &pods(&[("web", "10.0.0.1", (Some(huge(2)), None))]), None);
    let to_web = |renderer: &NodeRenderer, src| passes(renderer, Some("web"), src, "10.0.0.1", 80);
    assert!(to_web(&renderer, "10.0.0.5") && to_web(&renderer, "10.0.0.6"));
    // It may not send to any pod.
    renderer.render(false, &pods(&[("new", "10.0.0.6", (None, Some(list(60, &[]))))]), None);
    assert!(to_web(&renderer, "10.0.0.5") && !to_web(&renderer, "10.0.0.6") && to_web(&renderer, "10.9.9.9"));
    assert_eq!(told(&renderer), [("x/web".into(), Instead::LastGood)]);
}

/// The replacement table does not end with that list.
#[test]
fn a_list_that_does_not_fit_is_not_followed_where_the_last_table_stays() {
    let version = |members: u32| {
        let address = |at: u32| IpAddr::from((0x1e00_0000 + 2 * at).to_be_bytes());
        Addresses::Parted(Arc::new(PartedSet::new(vec![Arc::new((0..members).map(address).collect::<AddressSet>())])))
    };
    // All pods have the same policy.
    let web = |revision, allowed: &[(Addresses, u16)]| {
        let list = PlainList { revision, previous: None, rules: list(1, allowed).rules.clone(), own_node: Vec::new() };
        pods(&[("web", "10.0.0.1", (Some(Arc::new(list)), None))])
    };
    let one = |at: u16| (Addresses::prefix(address(&format!("10.8.0.{at}")).into()), 90 + at);
    let fits: Vec<_> = (0..5).map(one).chain([(version(2_000), 80)]).collect();
    let mut renderer = renderer(&[]);
    renderer.render(false, &web(1, &fits), None);
    let huge = |at: u32| IpAddr::from((0x1400_0000 + 2 * at).to_be_bytes());
    let huge = Addresses::from((0..6_000).map(huge).collect::<AddressSet>());
    for (revision, members) in [(2, 2_000), (3, 2_001), (4, 2_002)] {
        renderer.render(false, &web(revision, &[(huge.clone(), 70), (version(members), 80)]), None);
        assert_eq!(told(&renderer), [("x/web".into(), Instead::LastGood)], "{members} members");
        let to_web = |src, port| passes(&renderer, Some("web"), src, "10.0.0.1", port);
        assert_eq!([70, 80, 90].map(|port| to_web("20.0.0.0", port)), [false; 3]);
        assert!(to_web("30.0.0.0", 80) && !to_web("30.0.15.160", 80) && to_web("10.8.0.4", 94));
    }
}

#[test]
fn an_exit_that_does_not_fit_stays_and_denies_new_pods_that_are_restricted() {
    let small = list(1, &[(Addresses::Any, 80)]);
    let mut renderer = renderer(&[("old", "10.0.0.1", (None, Some(small))), ("open", "10.0.0.2", (None, None))]);
    let exit = |renderer: &NodeRenderer, src, port| passes(renderer, None, src, "20.0.0.0", port);
    let change = pods(&[("old", "10.0.0.1", (None, Some(huge(2)))), ("new", "10.0.0.3", (None, Some(huge(3))))]);
    renderer.render(false, &change, None);
    assert_eq!(told(&renderer), [("the exit of node n".into(), Instead::LastGood)]);
    assert_eq!([80, 0].map(|port| exit(&renderer, "10.0.0.1", port)), [true, false], "as before");
    assert_eq!([80, 0].map(|port| exit(&renderer, "10.0.0.2", port)), [true, true], "not concerned");
    assert_eq!([80, 0].map(|port| exit(&renderer, "10.0.0.3", port)), [false, false], "new");
    let fits =
        pods(&[("old", "10.0.0.1", (None, Some(list(4, &[(Addresses::Any, 81)])))), ("new", "10.0.0.3", (None, None))]);
    renderer.render(false, &fits, None);
    assert_eq!(told(&renderer), []);
    assert_eq!([80, 81].map(|port| exit(&renderer, "10.0.0.1", port)), [false, true]);
    assert!(exit(&renderer, "10.0.0.3", 80));
}

#[test]
fn the_first_exit_is_closed_where_it_does_not_fit() {
    let mut renderer = NodeRenderer::new("n".into(), false);
    renderer.beside.max_bytes = MAX_BYTES;
    renderer.render(true, &pods(&[("old", "10.0.0.1", (None, Some(huge(2))))]), None);
    assert_eq!(told(&renderer), [("the exit of node n".into(), Instead::Closed)]);
    assert!(!passes(&renderer, None, "10.0.0.2", "20.0.0.0", 80));
}
