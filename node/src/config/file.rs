//! The configuration file as parsed, before it is checked: field names and types, and the line of each value.

use std::fmt;

use bulkhead_control::object::Denied;
use bulkhead_control::service::Settings;
use bulkhead_control::source::nearest_word;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use serde_saphyr::Spanned;

use super::{
    Attach, ConfigError, Dataplane, EncapsulationMode, EngineName, ForeignPolicies, Poll, WhenMissing, WhenRefused,
    WhenUnreachable, Window, XdpModeName,
};
use super::{encapsulation, hubble, masquerade, names, node_ranges};
use crate::args::LogFormat;
use crate::log::Verbosity;
use bulkhead_answers::args::{EnforcementName, NamespaceDefault, PolicySemantics};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) node: Option<Spanned<String>>,
    pub(super) renderers: Option<Spanned<Vec<Spanned<String>>>>,
    pub(super) dataplane: Option<Spanned<Dataplane>>,
    pub(super) nftables: Option<Nftables>,
    #[serde(default)]
    pub(super) attach: Attach,
    #[serde(default)]
    pub(super) slow_path: SlowPath,
    #[serde(default = "yes")]
    pub(super) tcx: bool,
    pub(super) pins: Option<Spanned<String>>,
    pub(super) flow_lease: Option<Spanned<String>>,
    pub(super) away_grace: Option<Spanned<String>>,
    pub(super) big_tcp: Option<Spanned<u32>>,
    pub(super) mode: Option<Spanned<Mode>>,
    #[serde(default)]
    pub(super) xdp_mode: XdpModeName,
    #[serde(default = "yes")]
    pub(super) flow_cache: bool,
    pub(super) state: Spanned<State>,
    #[serde(default)]
    pub(super) services: Services,
    pub(super) masquerade: Option<masquerade::Written>,
    #[serde(default)]
    pub(super) names: names::Written,
    #[serde(default)]
    pub(super) encapsulation: EncapsulationMode,
    #[serde(default)]
    pub(super) vxlan: encapsulation::Vxlan,
    #[serde(default)]
    pub(super) probe: encapsulation::Probe,
    #[serde(default)]
    pub(super) denied: Answer,
    #[serde(default = "refuse")]
    pub(super) unreachable: Answer,
    pub(super) enforce: Option<Spanned<Enforce>>,
    pub(super) engine: Option<Spanned<EngineName>>,
    pub(super) enforcement: Option<Spanned<EnforcementName>>,
    pub(super) audit: Option<Audit>,
    pub(super) journal: Option<Journal>,
    #[serde(default)]
    pub(super) workers: Workers,
    #[serde(default)]
    pub(super) sessions: Sessions,
    #[serde(default)]
    pub(super) admin: Admin,
    pub(super) hubble: Option<hubble::Written>,
    #[serde(default)]
    pub(super) log: Log,
    pub(super) ports: Option<Vec<Spanned<Port>>>,
    #[serde(default)]
    pub(super) routes: Vec<Route>,
}

/// A kind of node whose settings go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Mode {
    /// A node of a cluster without another network plugin and without kube-proxy. The node's kernel keeps its network cards.
    Cluster,
}

const fn yes() -> bool {
    true
}

const fn refuse() -> Answer {
    Answer::Refuse
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct State {
    pub(super) paths: Option<Spanned<Vec<String>>>,
    pub(super) kubernetes: Option<Spanned<Kubernetes>>,
    pub(super) lenient: Option<Spanned<bool>>,
    pub(super) policy_semantics: Option<Spanned<PolicySemantics>>,
    pub(super) namespace_default: Option<Spanned<NamespaceDefault>>,
    #[serde(default)]
    pub(super) ignore: Vec<Spanned<String>>,
    pub(super) foreign_policies: Option<Spanned<ForeignPolicies>>,
    pub(super) when_missing: Option<Spanned<WhenMissing>>,
    pub(super) when_refused: Option<Spanned<WhenRefused>>,
    #[serde(default)]
    pub(super) node_ranges: node_ranges::Written,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Kubernetes {
    pub(super) kubeconfig: Option<Spanned<String>>,
    pub(super) context: Option<Spanned<String>>,
    pub(super) when_unreachable: WhenUnreachable,
    pub(super) folder: Option<Spanned<String>>,
    pub(super) stale_after: Option<Spanned<String>>,
}

/// The `services` field: settings of Services. `None` for `off`.
#[derive(Debug)]
pub(super) struct Services(pub(super) Option<Settings>);

impl Default for Services {
    fn default() -> Self {
        Self(Some(Settings::default()))
    }
}

impl<'de> Deserialize<'de> for Services {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;

        impl<'de> Visitor<'de> for Written {
            type Value = Services;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the word off, or an object with settings of Services")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Services, E> {
                if text == "off" { Ok(Services(None)) } else { Err(E::invalid_value(Unexpected::Str(text), &self)) }
            }

            /// YAML 1.1 reads `off` as a boolean.
            fn visit_bool<E: de::Error>(self, on: bool) -> Result<Services, E> {
                if on { Err(E::invalid_value(Unexpected::Bool(on), &self)) } else { Ok(Services(None)) }
            }

            fn visit_unit<E: de::Error>(self) -> Result<Services, E> {
                Ok(Services::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Services, A::Error> {
                Settings::deserialize(MapAccessDeserializer::new(map)).map(|settings| Services(Some(settings)))
            }
        }

        deserializer.deserialize_any(Written)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Nftables {
    pub(super) pod_interfaces: Vec<Spanned<String>>,
}

/// Whether the sender of a dropped packet is answered.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Answer {
    #[default]
    Drop,
    Refuse,
}

impl From<Answer> for Denied {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Drop => Self::Drop,
            Answer::Refuse => Self::Refuse,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Enforce {
    Destination,
    Source,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Audit {
    pub(super) folder: Option<Spanned<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Journal {
    pub(super) folder: Option<Spanned<String>>,
    pub(super) megabytes: Option<Spanned<u32>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct SlowPath {
    pub(super) packets_per_second: Option<u32>,
    pub(super) burst: Option<Spanned<u32>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Workers {
    pub(super) cores: Option<Spanned<Vec<usize>>>,
    pub(super) poll: Poll,
    pub(super) frames: Option<Spanned<u32>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Sessions {
    pub(super) folder: Option<Spanned<String>>,
    pub(super) capacity: Option<Spanned<usize>>,
    pub(super) tcp_pickup: bool,
    pub(super) tcp_window: Window,
    pub(super) timeouts: Timeouts,
    pub(super) shares: Shares,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Shares {
    pub(super) half_open: Option<Spanned<u8>>,
    pub(super) pod: Option<Spanned<u8>>,
    pub(super) outside: Option<Spanned<u8>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Timeouts {
    pub(super) tcp_new: Option<Spanned<String>>,
    pub(super) tcp_established: Option<Spanned<String>>,
    pub(super) tcp_half_closed: Option<Spanned<String>>,
    pub(super) tcp_closed: Option<Spanned<String>>,
    pub(super) udp_unreplied: Option<Spanned<String>>,
    pub(super) udp_stream: Option<Spanned<String>>,
    pub(super) idle: Option<Spanned<String>>,
    pub(super) icmp_echo: Option<Spanned<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Admin {
    pub(super) socket: Option<Spanned<String>>,
    pub(super) ports_folder: Option<Spanned<String>>,
    pub(super) listen: Option<Spanned<String>>,
    pub(super) service_health: Option<Spanned<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Log {
    pub(super) format: LogFormat,
    pub(super) level: Verbosity,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    Pod,
    Uplink,
    Host,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Port {
    pub(super) name: Option<Spanned<String>>,
    pub(super) kind: Kind,
    pub(super) pod: Option<Spanned<String>>,
    pub(super) interface: Spanned<String>,
    pub(super) mac: Option<Spanned<String>>,
    pub(super) netns: Option<Spanned<String>>,
    pub(super) peer: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) fix_offloads: bool,
    pub(super) create: Option<Spanned<Create>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Create {
    pub(super) mtu: Option<Spanned<u32>>,
    pub(super) networks: Vec<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Route {
    pub(super) prefix: Spanned<String>,
    pub(super) via: Option<Spanned<String>>,
    pub(super) port: Option<Spanned<String>>,
}

/// Parses the text. The parser stops at the first error.
pub(super) fn parse(file: &str, text: &str) -> Result<File, ConfigError> {
    let options = serde_saphyr::options! {
        // A YAML tag would request a type that is unknown here.
        reject_unsupported_tags: true,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let line = error.location().map(|place| place.line());
        let message = error.without_snippet().render_with_formatter(&serde_saphyr::UserMessageFormatter);
        let problem = message.split(" at line ").next().unwrap_or_default();
        // "unknown field `x`", "missing field `x`": the quoted name is the field.
        let named = problem.split('`').nth(1).filter(|_| problem.contains(" field "));
        let (before, value) = error.location().map_or(("", ""), |place| around(text, place.line(), place.column()));
        let field = named.unwrap_or_else(|| field_before(before)).to_owned();
        let (problem, example) = match problem {
            "expected sequence start" => ("expected a list".to_owned(), Some(format!("{field}: [{value}]"))),
            "expected mapping start" => ("expected fields".to_owned(), None),
            other => (other.to_owned(), None),
        };
        let help = match () {
            () if let Some(example) = example.filter(|_| !field.is_empty()) => format!("write `{example}`"),
            () if problem.starts_with("unknown field") => meant(&problem),
            () if problem.starts_with("missing field") => "add it; examples/node.yaml shows every field".to_owned(),
            () if text.trim().is_empty() => "the file is empty; start from examples/node.yaml".to_owned(),
            () => "correct the YAML; examples/node.yaml shows every field".to_owned(),
        };
        ConfigError { file: file.into(), line, field, problem, help }
    })
}

/// Splits a line at a column: the text before it, and the value there. Both numbers start at 1.
fn around(text: &str, line: u64, column: u64) -> (&str, &str) {
    let place = |number: u64| usize::try_from(number).unwrap_or(usize::MAX).saturating_sub(1);
    let line = text.lines().nth(place(line)).unwrap_or_default();
    let at = line.char_indices().nth(place(column)).map_or(line.len(), |(at, _)| at);
    let (before, value) = line.split_at(at);
    let value = value.split([',', '}', ']', '#']).next().unwrap_or_default();
    (before, value.trim())
}

/// Returns the name of the field whose value follows this text. Empty if the name is on another line.
fn field_before(line: &str) -> &str {
    let name = line.trim_end().strip_suffix(':').unwrap_or_default();
    name.rsplit([' ', ',', '{', '[']).next().unwrap_or_default()
}

/// Returns the remedy for the parser's error "unknown field `x`, expected one of y, z".
fn meant(problem: &str) -> String {
    let known = problem.split("expected one of ").nth(1).into_iter().flat_map(|names| names.split(", "));
    match problem.split('`').nth(1).and_then(|written| nearest_word(written, known)) {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None => "correct the name, or remove the field".to_owned(),
    }
}
