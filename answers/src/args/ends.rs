//! Parsing of connection ends and ports.

use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use bulkhead_classifier::protocol;
use bulkhead_control::object::{PodName, Transport};
use bulkhead_control::reachability::Protocol;
use bulkhead_control::selector::{Condition, Requirement, Selector};
use bulkhead_dataplane::conversation;

/// A destination port and its protocol, or type and code of an ICMP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortProtocol {
    /// Destination port, 1 to 65535. For ICMP, the type times 256 plus the code.
    pub port: u16,
    /// Protocol: TCP, UDP, SCTP, ICMP or ICMPv6.
    pub protocol: Protocol,
}

impl PortProtocol {
    /// Returns the port of a connection to a pod.
    pub fn new(port: u16, transport: Transport) -> Self {
        Self { port, protocol: transport.into() }
    }

    /// Returns the port as printed: `80`, or for ICMP the type, `8`, or the type and another code than 0, `3:4`.
    pub fn number(self) -> String {
        match self.port.to_be_bytes() {
            [kind, 0] if self.protocol.is_icmp() => kind.to_string(),
            [kind, code] if self.protocol.is_icmp() => format!("{kind}:{code}"),
            _ => self.port.to_string(),
        }
    }

    /// Whether packets of this address family can have the protocol.
    pub const fn is_of_family(self, is_ipv4: bool) -> bool {
        self.protocol.is_of_family(is_ipv4)
    }
}

impl std::fmt::Display for PortProtocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.number(), self.protocol)
    }
}

impl FromStr for PortProtocol {
    type Err = String;

    /// Parses `80/TCP`, `80/tcp`, or `8/ICMP` and `8:0/ICMP` with type and code. The protocol of `80` is TCP. `ICMP` is an echo request.
    fn from_str(text: &str) -> Result<Self, String> {
        let (port, protocol) = match text.to_ascii_uppercase().as_str() {
            "ICMP" => ("8", "ICMP"),
            "ICMPV6" => ("128", "ICMPv6"),
            _ => text.split_once('/').unwrap_or((text, "TCP")),
        };
        let number = match protocol.to_ascii_uppercase().as_str() {
            "ICMP" => protocol::ICMP,
            "ICMPV6" => protocol::ICMPV6,
            name => {
                let transport = Transport::from_name(name);
                let unknown = || format!("unknown protocol `{protocol}`; write TCP, UDP, SCTP, ICMP or ICMPv6");
                let port = port.parse().ok().filter(|&port: &u16| port > 0);
                let port =
                    port.ok_or_else(|| format!("`{text}` has no port from 1 to 65535; write for example 80/TCP"))?;
                return Ok(Self::new(port, transport.ok_or_else(unknown)?));
            }
        };
        let (kind, code) = port.split_once(':').unwrap_or((port, "0"));
        let message = kind.parse().ok().zip(code.parse().ok());
        let (kind, code): (u8, u8) = message
            .ok_or_else(|| format!("`{text}` has no type from 0 to 255; write for example 8/ICMP or 13:0/ICMP"))?;
        if !conversation::may_begin(number, kind) {
            return Err(format!(
                "{protocol} type {kind} begins no conversation: answers and errors pass with the session that they belong to, and neighbour \
                 discovery needs no policy"
            ));
        }
        Ok(Self { port: u16::from_be_bytes([kind, code]), protocol: Protocol::Number(number) })
    }
}

/// One end of a connection as the user names it: for `--from` and `--to` of `explain` and `why`, and `--pod` of `policies`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndName {
    /// `shop/web`: the pod with this name, or else the pods of the workload with this name.
    Pod(PodName),
    /// `deploy/shop/web`: the pods of a workload. `pod/shop/web` is a pod.
    Workload(Workload),
    /// `app=web -n shop`: the pods with these labels in a namespace.
    Labels(PodLabels),
    /// A node by name: `node/n1`. A pod of a namespace called `node` is written the same way, see [`Self::of_namespace_node`].
    Node(Arc<str>),
    /// The address of a pod, or one outside the cluster.
    Address(IpAddr),
}

/// A workload by kind and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// The kind as in objects, such as `Deployment`.
    pub kind: &'static str,
    /// Namespace and name.
    pub name: PodName,
}

/// Pods by namespace and labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodLabels {
    /// The pods' namespace.
    pub namespace: Arc<str>,
    /// The labels that the pods must have.
    pub selector: Selector,
}

/// The kinds of workloads, with the names that kubectl accepts in lower case.
const KINDS: [(&str, &[&str]); 8] = [
    ("Pod", &["pod", "pods", "po"]),
    ("Deployment", &["deployment", "deployments", "deploy"]),
    ("StatefulSet", &["statefulset", "statefulsets", "sts"]),
    ("DaemonSet", &["daemonset", "daemonsets", "ds"]),
    ("ReplicaSet", &["replicaset", "replicasets", "rs"]),
    ("ReplicationController", &["replicationcontroller", "replicationcontrollers", "rc"]),
    ("CronJob", &["cronjob", "cronjobs", "cj"]),
    ("Job", &["job", "jobs"]),
];

/// Returns the kind that a word names, such as `Deployment` for `deploy`.
fn kind_named(word: &str) -> Option<&'static str> {
    let word = word.to_ascii_lowercase();
    KINDS.iter().find(|(_, words)| words.contains(&word.as_str())).map(|(kind, _)| *kind)
}

/// Whether the word names the kind Node, as kubectl accepts it.
fn is_word_for_node(word: &str) -> bool {
    ["node", "nodes", "no"].iter().any(|known| word.eq_ignore_ascii_case(known))
}

/// Whether the word names the kind Service, as kubectl accepts it.
pub(super) fn is_word_for_service(word: &str) -> bool {
    ["service", "services", "svc"].iter().any(|known| word.eq_ignore_ascii_case(known))
}

/// Parses the name of a node: `n1` or `node/n1`.
///
/// # Errors
/// If the name is missing after `node/`.
pub(super) fn node_name(text: &str) -> Result<String, String> {
    match text.split_once('/').filter(|(kind, _)| is_word_for_node(kind)) {
        Some((_, "")) => Err(format!("`{text}` has no name; write node/NAME")),
        Some((_, name)) => Ok(name.to_owned()),
        None => Ok(text.to_owned()),
    }
}

/// Lists the forms that [`EndName`] is parsed from, for the error about a text in none of them.
const END_FORMS: &str = "namespace/pod, KIND/NAMESPACE/NAME as in deploy/shop/web, node/NAME, an IP address or labels with a \
                         namespace as in `app=web -n shop`";

impl FromStr for EndName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse::<IpAddr>() {
            // Packets of an IPv4 address mapped to IPv6 are IPv4.
            return Ok(Self::Address(address.to_canonical()));
        }
        if text.contains('=') || text.contains(' ') {
            return text.parse().map(Self::Labels);
        }
        let wrong = || format!("`{text}` is neither {END_FORMS}");
        match text.split_once('/') {
            Some((first, name)) if is_word_for_node(first) && !name.is_empty() => Ok(Self::Node(name.into())),
            Some((first, rest)) if rest.contains('/') && is_word_for_service(first) => Err(format!(
                "`{text}` is a Service, which opens no connections and which no policy selects; name the pods behind it, for example \
                 `app=web -n shop`"
            )),
            Some((first, rest)) if !first.is_empty() && !rest.is_empty() => {
                match (kind_named(first), rest.split_once('/')) {
                    (Some(_), Some((namespace, name))) if namespace.is_empty() || name.is_empty() => Err(wrong()),
                    (Some("Pod"), Some((namespace, name))) => Ok(Self::Pod(PodName::new(namespace, name))),
                    (Some(kind), Some((namespace, name))) => {
                        Ok(Self::Workload(Workload { kind, name: PodName::new(namespace, name) }))
                    }
                    // A planned pod's name may contain a slash.
                    _ => Ok(Self::Pod(PodName::new(first, rest))),
                }
            }
            _ => Err(wrong()),
        }
    }
}

impl FromStr for PodLabels {
    type Err = String;

    /// Parses `app=web,tier=front -n shop`. The namespace may also come first.
    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (labels, namespace) = match words[..] {
            [labels, "-n" | "--namespace", namespace] | ["-n" | "--namespace", namespace, labels] => {
                (labels, namespace)
            }
            _ => return Err(format!("`{text}` needs labels and a namespace; write for example `app=web -n shop`")),
        };
        let requirement = |pair: &str| {
            let (key, value) = pair.split_once("==").or_else(|| pair.split_once('='))?;
            (!key.is_empty() && !key.ends_with('!'))
                .then(|| Requirement { key: key.into(), condition: Condition::In(vec![value.into()]) })
        };
        let wrong = |pair: &str| format!("`{pair}` is no label; write KEY=VALUE, several with commas between them");
        let requirements: Result<Vec<_>, _> =
            labels.split(',').map(|pair| requirement(pair).ok_or_else(|| wrong(pair))).collect();
        Ok(Self { namespace: namespace.into(), selector: Selector::new(requirements?) })
    }
}

impl EndName {
    /// Returns the pod of the namespace `node` that is written like a node of this name.
    pub fn of_namespace_node(name: &str) -> PodName {
        PodName::new("node", name)
    }
}

impl std::fmt::Display for EndName {
    /// Writes the form that parsing accepts.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pod(name) => write!(f, "{name}"),
            Self::Workload(Workload { kind, name }) => write!(f, "{}/{name}", kind.to_ascii_lowercase()),
            Self::Labels(PodLabels { namespace, selector }) => write!(f, "{selector} -n {namespace}"),
            Self::Node(name) => write!(f, "node/{name}"),
            Self::Address(address) => write!(f, "{address}"),
        }
    }
}

/// A name that `reach --focus` takes. A text without `/`, `=`, `:` and spaces that is no address is a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Focus {
    /// All ends of a namespace: `shop`.
    Namespace(Arc<str>),
    /// The ends that `explain` would take for this name.
    End(EndName),
}

impl FromStr for Focus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.contains(['/', '=', ' ', ':']) || text.parse::<IpAddr>().is_ok() {
            return text.parse().map(Self::End);
        }
        Ok(Self::Namespace(text.into()))
    }
}

impl std::fmt::Display for Focus {
    /// Writes the form that parsing accepts.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Namespace(name) => f.write_str(name),
            Self::End(name) => name.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_taken_as_people_write_them() {
        let tcp80 = PortProtocol::new(80, Transport::Tcp);
        assert_eq!("80".parse(), Ok(tcp80));
        assert_eq!("80/tcp".parse(), Ok(tcp80));
        assert_eq!("9/SCTP".parse(), Ok(PortProtocol::new(9, Transport::Sctp)));
        for wrong in ["0/TCP", "65536/TCP", "http/TCP", "/TCP", "", "80/GRE"] {
            assert!(wrong.parse::<PortProtocol>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_port_of_icmp_is_a_type_with_or_without_a_code() {
        let read =
            |text: &str| text.parse::<PortProtocol>().map(|port| (port.port, port.protocol.number(), port.to_string()));
        for (text, port, number, shown) in [
            ("8/ICMP", 0x0800, 1, "8/ICMP"),
            ("icmp", 0x0800, 1, "8/ICMP"),
            ("13:2/icmp", 0x0d02, 1, "13:2/ICMP"),
            ("128:0/icmpv6", 0x8000, 58, "128/ICMPv6"),
            ("ICMPv6", 0x8000, 58, "128/ICMPv6"),
        ] {
            assert_eq!(read(text), Ok((port, number, shown.to_owned())), "{text}");
        }
        for wrong in ["/ICMP", "256/ICMP", "8:/ICMP", "8:256/ICMP", "8:0:0/ICMP", "echo/ICMP"] {
            assert!(read(wrong).unwrap_err().contains("no type"), "{wrong}");
        }
        for never in ["0/ICMP", "3/ICMP", "5/ICMP", "11/ICMP", "129/ICMPv6", "1/ICMPv6", "135/ICMPv6"] {
            assert!(read(never).unwrap_err().contains("begins no conversation"), "{never}");
        }
    }

    #[test]
    fn an_end_is_a_workload_or_labels_in_any_spelling_that_kubectl_takes() {
        let web = |kind| EndName::Workload(Workload { kind, name: PodName::new("shop", "web") });
        for (text, kind) in [
            ("deploy/shop/web", "Deployment"),
            ("Deployment/shop/web", "Deployment"),
            ("sts/shop/web", "StatefulSet"),
            ("cj/shop/web", "CronJob"),
        ] {
            assert_eq!(text.parse(), Ok(web(kind)), "{text}");
            assert_eq!(web(kind).to_string().parse(), Ok(web(kind)), "{text}");
        }
        assert_eq!("pod/shop/web".parse(), Ok(EndName::Pod(PodName::new("shop", "web"))));
        // The name of a planned pod that shares it with another workload, and a pod of a namespace named like a kind.
        assert_eq!("shop/job/web".parse(), Ok(EndName::Pod(PodName::new("shop", "job/web"))));
        assert_eq!("deploy/web".parse(), Ok(EndName::Pod(PodName::new("deploy", "web"))));
        let both: EndName = "tier=front,app=web -n shop".parse().unwrap();
        assert_eq!("-n shop app==web,tier=front".parse(), Ok(both.clone()));
        assert_eq!(both.to_string(), "app=web,tier=front -n shop");
        for (wrong, help) in [
            ("app=web", "needs labels and a namespace"),
            ("app=web -n", "needs labels and a namespace"),
            ("app=web,x -n shop", "`x` is no label"),
            ("app!=web -n shop", "`app!=web` is no label"),
            ("deploy/shop/", "is neither"),
            ("svc/shop/db", "is a Service, which opens no connections"),
            ("web", "is neither"),
        ] {
            let error = wrong.parse::<EndName>().unwrap_err();
            assert!(error.contains(help), "{wrong}: {error}");
        }
    }

    #[test]
    fn an_end_is_a_pod_a_node_or_an_address() {
        assert_eq!("x/a".parse(), Ok(EndName::Pod(PodName::new("x", "a"))));
        for node in ["node/n1", "nodes/n1", "no/n1"] {
            assert_eq!(node.parse(), Ok(EndName::Node("n1".into())), "{node}");
            assert_eq!(node_name(node).as_deref(), Ok("n1"), "{node}");
        }
        assert_eq!(node_name("n1").as_deref(), Ok("n1"));
        assert!(node_name("node/").is_err());
        assert_eq!("fd00::1".parse(), Ok(EndName::Address("fd00::1".parse().unwrap())));
        assert!(
            "a".parse::<EndName>().is_err() && "/a".parse::<EndName>().is_err() && "node/".parse::<EndName>().is_err()
        );
    }
}
