//! Selects the flows of a client by Hubble's `FlowFilter`s.
//!
//! A filter matches the message that would be sent. It matches if each of its set fields does; a field matches if one of its values does.
//! A flow is sent if the whitelist is empty or one of its filters matches, and no filter of the blacklist matches.
//!
//! Flows have no DNS names and no HTTP fields here, so a filter on these never matches. In a blacklist it is accepted, because Hubble UI
//! sends two in each request. In a whitelist it would hide every flow without an explanation, so the request is refused.

mod end;

use self::end::EndFilter;
use bulkhead_answers::output::printable;
use bulkhead_observe::hubble::flow::{self, EventTypeFilter, Flow, FlowFilter, Protocol, TcpFlags};
use bulkhead_observe::hubble::observer::GetFlowsRequest;

/// Maximum number of values in all filters of a request, because each flow is compared with each value.
const MOST: usize = 1024;

/// The whitelist (`wanted`) and blacklist (`unwanted`) of a request.
#[derive(Clone, Debug, Default)]
pub(super) struct Filters {
    wanted: Vec<Filter>,
    unwanted: Vec<Filter>,
}

#[derive(Clone, Debug, Default)]
struct Filter {
    source: EndFilter,
    destination: EndFilter,
    verdicts: Vec<i32>,
    reasons: Vec<i32>,
    events: Vec<EventTypeFilter>,
    protocols: Vec<KnownProtocol>,
    replies: Vec<bool>,
    tcp_flags: Vec<TcpFlags>,
    nodes: Vec<String>,
    versions: Vec<i32>,
    directions: Vec<i32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KnownProtocol {
    Tcp,
    Udp,
    Sctp,
    Icmp,
    Icmpv4,
    Icmpv6,
}

impl Filters {
    /// Parses the filters of a request.
    ///
    /// # Errors
    /// If a value is invalid, there are more than [`MOST`], or the whitelist has a field that no flow has.
    pub(super) fn new(request: &GetFlowsRequest) -> Result<Self, String> {
        let values: usize = request.whitelist.iter().chain(&request.blacklist).map(|filter| 1 + values(filter)).sum();
        if values > MOST {
            return Err(format!("the filters have {values} values, more than {MOST}"));
        }
        if let Some(field) = request.whitelist.iter().find_map(unknowable) {
            return Err(format!("FlowFilter.{field} would show nothing: the vswitch knows neither DNS names nor HTTP"));
        }
        let unwanted = request.blacklist.iter().filter(|filter| unknowable(filter).is_none());
        Ok(Self {
            wanted: request.whitelist.iter().map(Filter::new).collect::<Result<_, _>>()?,
            unwanted: unwanted.map(Filter::new).collect::<Result<_, _>>()?,
        })
    }

    /// Whether to send the flow to the client.
    pub(super) fn select(&self, flow: &Flow) -> bool {
        let agrees = |filter: &Filter| filter.agrees(flow);
        (self.wanted.is_empty() || self.wanted.iter().any(agrees)) && !self.unwanted.iter().any(agrees)
    }
}

/// Returns the name and values of each field of the filter that no flow has here.
fn unknowables(filter: &FlowFilter) -> [(&'static str, &[String]); 7] {
    [
        ("source_fqdn", &filter.source_fqdn),
        ("destination_fqdn", &filter.destination_fqdn),
        ("dns_query", &filter.dns_query),
        ("http_status_code", &filter.http_status_code),
        ("http_method", &filter.http_method),
        ("http_path", &filter.http_path),
        ("http_url", &filter.http_url),
    ]
}

/// Returns the name of the first field that the filter sets although no flow has it here.
fn unknowable(filter: &FlowFilter) -> Option<&'static str> {
    unknowables(filter).into_iter().find(|(_, values)| !values.is_empty()).map(|(name, _)| name)
}

fn values(filter: &FlowFilter) -> usize {
    let texts = [
        &filter.source_ip,
        &filter.source_pod,
        &filter.source_label,
        &filter.source_port,
        &filter.destination_ip,
        &filter.destination_pod,
        &filter.destination_label,
        &filter.destination_port,
        &filter.protocol,
        &filter.node_name,
    ];
    let numbers = [&filter.verdict, &filter.drop_reason_desc, &filter.ip_version, &filter.traffic_direction];
    texts.iter().map(|list| list.len()).sum::<usize>()
        + unknowables(filter).iter().map(|(_, list)| list.len()).sum::<usize>()
        + numbers.iter().map(|list| list.len()).sum::<usize>()
        + filter.source_identity.len()
        + filter.destination_identity.len()
        + filter.source_workload.len()
        + filter.destination_workload.len()
        + filter.event_type.len()
        + filter.tcp_flags.len()
        + filter.reply.len()
}

impl Filter {
    fn new(asked: &FlowFilter) -> Result<Self, String> {
        Ok(Self {
            source: EndFilter::new(
                (&asked.source_ip, &asked.source_pod, &asked.source_label, &asked.source_port),
                &asked.source_identity,
                &asked.source_workload,
            )?,
            destination: EndFilter::new(
                (&asked.destination_ip, &asked.destination_pod, &asked.destination_label, &asked.destination_port),
                &asked.destination_identity,
                &asked.destination_workload,
            )?,
            verdicts: asked.verdict.clone(),
            reasons: asked.drop_reason_desc.clone(),
            events: asked.event_type.clone(),
            protocols: read(&asked.protocol, protocol)?,
            replies: asked.reply.clone(),
            tcp_flags: asked.tcp_flags.clone(),
            nodes: read(&asked.node_name, node)?,
            versions: asked.ip_version.clone(),
            directions: asked.traffic_direction.clone(),
        })
    }

    fn agrees(&self, flow: &Flow) -> bool {
        let event = flow.event_type.unwrap_or_default();
        let has_event = |wanted: &EventTypeFilter| {
            wanted.r#type == event.r#type && (!wanted.match_sub_type || wanted.sub_type == event.sub_type)
        };
        let protocol = flow.l4.as_ref().and_then(|l4| l4.protocol.as_ref());
        let (addresses, ports) = (flow.ip.as_ref(), protocol.and_then(ports));
        let version = addresses.map_or(flow::IpVersion::NotUsed as i32, |ip| ip.ip_version);
        any(&self.verdicts, |verdict| *verdict == flow.verdict)
            && any(&self.reasons, |reason| *reason == flow.drop_reason_desc)
            && any(&self.events, has_event)
            && any(&self.protocols, |wanted| protocol.is_some_and(|protocol| wanted.is(protocol)))
            && any(&self.replies, |reply| flow.is_reply == Some(*reply))
            && any(&self.tcp_flags, |wanted| has_flags(protocol, wanted.bits()))
            && any(&self.nodes, |pattern| matches_pattern(pattern, &flow.node_name))
            && any(&self.versions, |wanted| *wanted == version)
            && any(&self.directions, |direction| *direction == flow.traffic_direction)
            && self.source.agrees(
                addresses.map(|ip| &*ip.source),
                flow.source.as_ref(),
                ports.map(|(source, _)| source),
            )
            && self.destination.agrees(
                addresses.map(|ip| &*ip.destination),
                flow.destination.as_ref(),
                ports.map(|(_, destination)| destination),
            )
    }
}

impl KnownProtocol {
    const fn is(self, protocol: &Protocol) -> bool {
        match self {
            Self::Tcp => matches!(protocol, Protocol::Tcp(_)),
            Self::Udp => matches!(protocol, Protocol::Udp(_)),
            Self::Sctp => matches!(protocol, Protocol::Sctp(_)),
            Self::Icmp => matches!(protocol, Protocol::Icmpv4(_) | Protocol::Icmpv6(_)),
            Self::Icmpv4 => matches!(protocol, Protocol::Icmpv4(_)),
            Self::Icmpv6 => matches!(protocol, Protocol::Icmpv6(_)),
        }
    }
}

/// Whether a field is unset, or one of its values agrees.
fn any<T>(wanted: &[T], agrees: impl Fn(&T) -> bool) -> bool {
    wanted.is_empty() || wanted.iter().any(agrees)
}

fn ports(protocol: &Protocol) -> Option<(u32, u32)> {
    match protocol {
        Protocol::Tcp(tcp) => Some((tcp.source_port, tcp.destination_port)),
        Protocol::Udp(ports) | Protocol::Sctp(ports) => Some((ports.source_port, ports.destination_port)),
        Protocol::Icmpv4(_) | Protocol::Icmpv6(_) => None,
    }
}

/// Whether the packet is TCP and has at least the wanted flags.
fn has_flags(protocol: Option<&Protocol>, wanted: u16) -> bool {
    let Some(Protocol::Tcp(tcp)) = protocol else { return false };
    tcp.flags.unwrap_or_default().bits() & wanted == wanted
}

/// Whether the whole name matches the pattern, in which `*` matches any text, also none.
fn matches_pattern(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        let Some(at) = name.find(part) else { return false };
        name = &name[at + part.len()..];
    }
    name.ends_with(last)
}

fn read<T>(texts: &[String], one: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    texts.iter().map(|text| one(text)).collect()
}

fn protocol(text: &str) -> Result<KnownProtocol, String> {
    Ok(match &*text.to_ascii_lowercase() {
        "tcp" => KnownProtocol::Tcp,
        "udp" => KnownProtocol::Udp,
        "sctp" => KnownProtocol::Sctp,
        "icmp" => KnownProtocol::Icmp,
        "icmpv4" => KnownProtocol::Icmpv4,
        "icmpv6" => KnownProtocol::Icmpv6,
        _ => {
            return Err(format!(
                "protocol `{}` is not supported: tcp, udp, sctp, icmp, icmpv4, icmpv6",
                printable(text)
            ));
        }
    })
}

/// Checks a pattern for node names. Refuses an empty one and one with a cluster (`cluster/node`), as flows have no cluster names.
fn node(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains('/') {
        return Err(format!("node `{}` is not supported: write a node name; * matches any text", printable(text)));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_observe::hubble::flow::{Endpoint, EventType, Icmp, Ip, Layer4, Tcp, Workload};

    /// Returns a dropped SYN from shop/web-1 to the node.
    fn dropped() -> Flow {
        let protocol = Protocol::Tcp(Tcp { source_port: 4000, destination_port: 80, flags: Some(TcpFlags::of(2)) });
        let ip = Ip { source: "10.0.0.1".into(), destination: "192.0.2.1".into(), ip_version: 1 };
        Flow {
            verdict: 2,
            drop_reason_desc: 133,
            ip: Some(ip),
            l4: Some(Layer4 { protocol: Some(protocol) }),
            source: Some(Endpoint {
                identity: 300,
                namespace: "shop".into(),
                labels: vec!["k8s:app=web".into()],
                pod_name: "web-1".into(),
                workloads: vec![Workload { name: "web".into(), kind: "Deployment".into() }],
            }),
            destination: Some(Endpoint { identity: 1, labels: vec!["reserved:host".into()], ..Endpoint::default() }),
            node_name: "node-1".into(),
            event_type: Some(EventType { r#type: 1, sub_type: 133 }),
            traffic_direction: 2,
            is_reply: Some(false),
            ..Flow::default()
        }
    }

    fn selects(whitelist: &[FlowFilter], blacklist: &[FlowFilter], flow: &Flow) -> bool {
        let (whitelist, blacklist) = (whitelist.to_vec(), blacklist.to_vec());
        Filters::new(&GetFlowsRequest { whitelist, blacklist, ..GetFlowsRequest::default() }).unwrap().select(flow)
    }

    fn with(change: impl FnOnce(&mut FlowFilter)) -> FlowFilter {
        let mut filter = FlowFilter::default();
        change(&mut filter);
        filter
    }

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_field_selects_by_what_is_told() {
        let cases = [
            (with(|filter| filter.source_ip = texts(&["10.0.0.0/8"])), true),
            (with(|filter| filter.source_ip = texts(&["10.0.0.2", "2001:db8::/32"])), false),
            (with(|filter| filter.destination_ip = texts(&["192.0.2.1"])), true),
            (with(|filter| filter.source_pod = texts(&["shop/"])), true),
            (with(|filter| filter.source_pod = texts(&["shop/we"])), true),
            (with(|filter| filter.source_pod = texts(&["/web"])), true),
            (with(|filter| filter.source_pod = texts(&["web"])), false),
            (with(|filter| filter.destination_pod = texts(&["/"])), false),
            (with(|filter| filter.source_label = texts(&["app=web"])), true),
            (with(|filter| filter.destination_label = texts(&["reserved:host"])), true),
            (with(|filter| filter.source_label = texts(&["reserved:host"])), false),
            (with(|filter| filter.destination_port = texts(&["80"])), true),
            (with(|filter| filter.source_port = texts(&["80"])), false),
            (with(|filter| filter.source_identity = vec![300]), true),
            (with(|filter| filter.destination_identity = vec![2]), false),
            (with(|filter| filter.source_workload = vec![Workload { name: "web".into(), kind: String::new() }]), true),
            (with(|filter| filter.source_workload = vec![Workload { name: "web".into(), kind: "Job".into() }]), false),
            (with(|filter| filter.verdict = vec![1, 2]), true),
            (with(|filter| filter.verdict = vec![1]), false),
            (with(|filter| filter.drop_reason_desc = vec![133]), true),
            (with(|filter| filter.drop_reason_desc = vec![169]), false),
            (
                with(|filter| filter.event_type = vec![EventTypeFilter { r#type: 1, ..EventTypeFilter::default() }]),
                true,
            ),
            (
                with(|filter| {
                    filter.event_type = vec![EventTypeFilter { r#type: 1, match_sub_type: true, sub_type: 0 }];
                }),
                false,
            ),
            (with(|filter| filter.protocol = texts(&["TCP"])), true),
            (with(|filter| filter.protocol = texts(&["udp", "icmp"])), false),
            (with(|filter| filter.reply = vec![false]), true),
            (with(|filter| filter.reply = vec![true]), false),
            (with(|filter| filter.tcp_flags = vec![TcpFlags::of(2)]), true),
            (with(|filter| filter.tcp_flags = vec![TcpFlags::of(0x12)]), false),
            (with(|filter| filter.node_name = texts(&["node-1"])), true),
            (with(|filter| filter.node_name = texts(&["*-1"])), true),
            (with(|filter| filter.node_name = texts(&["node-2*"])), false),
            (with(|filter| filter.ip_version = vec![1]), true),
            (with(|filter| filter.ip_version = vec![2]), false),
            (with(|filter| filter.traffic_direction = vec![2]), true),
            (with(|filter| filter.traffic_direction = vec![1]), false),
        ];
        for (filter, expected) in cases {
            assert_eq!(selects(std::slice::from_ref(&filter), &[], &dropped()), expected, "{filter:?}");
            assert_eq!(selects(&[], std::slice::from_ref(&filter), &dropped()), !expected, "not {filter:?}");
            // A flow without packet fields matches no filter but the one for its verdict.
            let lost = Flow { verdict: 2, ..Flow::default() };
            let is_selected = selects(std::slice::from_ref(&filter), &[], &lost);
            assert_eq!(is_selected, filter.verdict.contains(&2), "{filter:?}");
        }
    }

    #[test]
    fn fields_add_up_and_filters_are_alternatives() {
        let (web, other) = (
            with(|filter| filter.source_pod = texts(&["shop/web"])),
            with(|filter| filter.destination_pod = texts(&["shop/web"])),
        );
        assert!(
            selects(&[web.clone(), other.clone()], &[], &dropped())
                && !selects(std::slice::from_ref(&other), &[], &dropped())
        );
        let both = FlowFilter { verdict: vec![1], ..web.clone() };
        assert!(!selects(&[both], &[], &dropped()));
        assert!(
            !selects(&[FlowFilter::default()], &[web], &dropped())
                && selects(&[FlowFilter::default()], &[other], &dropped())
        );
        let ping = Layer4 { protocol: Some(Protocol::Icmpv6(Icmp { r#type: 128, code: 0 })) };
        let ping = Flow { l4: Some(ping), ..dropped() };
        assert!(selects(&[with(|filter| filter.protocol = texts(&["icmp"]))], &[], &ping));
        assert!(!selects(&[with(|filter| filter.source_port = texts(&["0"]))], &[], &ping), "it has no ports");
    }

    /// The request of Hubble UI 0.9 to 0.13 for one namespace.
    #[test]
    fn the_user_interface_is_answered_though_it_hides_names_that_nobody_knows() {
        let whitelist = [
            FlowFilter { source_pod: texts(&["shop/"]), reply: vec![false], ..FlowFilter::default() },
            FlowFilter { destination_pod: texts(&["shop/"]), reply: vec![false], ..FlowFilter::default() },
        ];
        let blacklist = [
            with(|filter| filter.source_label = texts(&["reserved:unknown", "reserved:host", "k8s:k8s-app=kube-dns"])),
            with(|filter| filter.destination_label = texts(&["reserved:unknown", "k8s:app=prometheus"])),
            FlowFilter {
                destination_label: texts(&["k8s:k8s-app=kube-dns"]),
                destination_port: texts(&["53"]),
                ..FlowFilter::default()
            },
            with(|filter| filter.source_fqdn = texts(&["*.cluster.local*"])),
            with(|filter| filter.destination_fqdn = texts(&["*.cluster.local*"])),
        ];
        assert!(selects(&whitelist, &blacklist, &dropped()));
        // A blacklist filter with an unknown field hides nothing, even if its other fields match.
        let both =
            FlowFilter { destination_fqdn: texts(&["a.b"]), source_pod: texts(&["shop/"]), ..FlowFilter::default() };
        assert!(selects(&[], &[both], &dropped()));
    }

    #[test]
    fn what_means_nothing_is_refused() {
        for wrong in [
            with(|filter| filter.source_ip = texts(&["10.0.0.256"])),
            with(|filter| filter.destination_pod = texts(&[""])),
            with(|filter| filter.source_label = texts(&["=x"])),
            with(|filter| filter.destination_port = texts(&["http"])),
            with(|filter| filter.protocol = texts(&["http"])),
            with(|filter| filter.node_name = texts(&["cluster/node"])),
            with(|filter| filter.source_workload = vec![Workload::default()]),
            with(|filter| filter.verdict = vec![1; MOST]),
        ] {
            let request = GetFlowsRequest { blacklist: vec![wrong], ..GetFlowsRequest::default() };
            assert!(Filters::new(&request).is_err(), "{request:?}");
        }
        for names_of_dns in [
            with(|filter| filter.destination_fqdn = texts(&["a.b"])),
            with(|filter| filter.http_status_code = texts(&["500"])),
        ] {
            let whitelist = vec![FlowFilter::default(), names_of_dns];
            let request = GetFlowsRequest { whitelist, ..GetFlowsRequest::default() };
            assert!(Filters::new(&request).unwrap_err().contains("would show nothing"), "{request:?}");
        }
    }

    #[test]
    fn a_star_stands_for_anything() {
        for (pattern, name, expected) in [
            ("node", "node", true),
            ("node", "node-1", false),
            ("*", "", true),
            ("n*", "node", true),
            ("*e", "node", true),
            ("n*d*e", "node", true),
            ("n*x*e", "node", false),
            ("no*ode", "node", false),
        ] {
            assert_eq!(matches_pattern(pattern, name), expected, "{pattern} {name}");
        }
    }
}
