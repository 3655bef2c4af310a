//! The resolver's settings: the value of `services` in a configuration, or a separate file.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::source::{self, nearest_word};

/// Properties of the cluster that the resolver cannot learn from objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Blocks of pod addresses, besides the nodes' podCIDRs and the addresses of known pods.
    #[serde(deserialize_with = "blocks")]
    pub cluster_cidrs: Vec<IpNet>,
    /// Blocks of cluster addresses. Packets to addresses in them that no Service has are dropped; elsewhere such packets pass.
    #[serde(deserialize_with = "blocks")]
    pub service_cidrs: Vec<IpNet>,
    /// The node's addresses at which node ports answer.
    pub node_port_addresses: NodePortAddresses,
    /// Whether to rewrite the source wherever Kubernetes permits, not only if replies would otherwise miss this node.
    pub masquerade_all: bool,
    /// Value of the label `service.kubernetes.io/service-proxy-name` on Services to handle. Empty for Services without the label.
    pub service_proxy_name: String,
    /// Blocks of permitted external addresses; `None` permits all. An author of a Service can claim any permitted address (CVE-2020-8554).
    #[serde(deserialize_with = "some_blocks", skip_serializing_if = "Option::is_none")]
    pub external_ips: Option<Vec<IpNet>>,
    /// Source addresses for rewritten connections, at most one per family. If empty, the first address of the node's podCIDR per family.
    #[serde(deserialize_with = "source_addresses")]
    pub source_addresses: Vec<IpAddr>,
    /// Seed for the hash that chooses a backend. Must be the same on all nodes, so that they choose the same backend.
    pub hash_seed: String,
}

/// The node's addresses at which node ports answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// The primary address of each family: the first in the Node object.
    #[default]
    Primary,
    /// Every node address in one of these blocks.
    In(Vec<IpNet>),
}

impl Serialize for NodePortAddresses {
    /// Writes the value in the form that a settings file has.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Primary => serializer.collect_seq(["primary"]),
            Self::In(blocks) => serializer.collect_seq(blocks),
        }
    }
}

impl<'de> Deserialize<'de> for NodePortAddresses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        match &texts[..] {
            [] => Err(D::Error::custom("node_port_addresses is empty: write [primary], or blocks of addresses")),
            [only] if only == "primary" => Ok(Self::Primary),
            all if all.iter().any(|text| text == "primary") => {
                Err(D::Error::custom("`primary` cannot be combined: write [primary], or blocks of addresses"))
            }
            all => all.iter().map(|text| block(text)).collect::<Result<_, _>>().map(Self::In).map_err(D::Error::custom),
        }
    }
}

fn block(text: &str) -> Result<IpNet, String> {
    source::block(text).map_err(|(problem, help)| format!("{problem}: {help}"))
}

fn blocks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpNet>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts.iter().map(|text| block(text)).collect::<Result<_, _>>().map_err(D::Error::custom)
}

/// Reads source addresses: unicast, not loopback, at most one per family.
fn source_addresses<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpAddr>, D::Error> {
    let mut addresses: Vec<IpAddr> = Vec::new();
    for text in Vec::<String>::deserialize(deserializer)? {
        let address =
            source::address(&text).map_err(|(problem, help)| D::Error::custom(format!("{problem}: {help}")))?;
        if address.is_unspecified() || address.is_multicast() || address.is_loopback() {
            return Err(D::Error::custom(format!("source_addresses: no host can answer to {address}")));
        }
        if let Some(other) = addresses.iter().find(|other| other.is_ipv4() == address.is_ipv4()) {
            let why = format!("source_addresses: {other} and {address} are of one family: keep one of them");
            return Err(D::Error::custom(why));
        }
        addresses.push(address);
    }
    Ok(addresses)
}

fn some_blocks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<IpNet>>, D::Error> {
    blocks(deserializer).map(Some)
}

/// An error in a settings file: position, problem and remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct SettingsError {
    /// The file's name, as the user wrote it.
    pub file: String,
    /// Line number, starting at 1. `None` if the error has no position.
    pub line: Option<u64>,
    /// The problem, as a phrase for users.
    pub problem: String,
    /// The remedy, as a phrase for users.
    pub help: String,
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}\n  help: {}", source::escaped(&self.problem), source::escaped(&self.help))
    }
}

/// All keys of a settings file, for remedies in errors.
const KEYS: [&str; 8] = [
    "cluster_cidrs",
    "service_cidrs",
    "node_port_addresses",
    "masquerade_all",
    "service_proxy_name",
    "external_ips",
    "source_addresses",
    "hash_seed",
];

impl Settings {
    /// Reads settings from JSON or YAML. `file` is the name for errors.
    ///
    /// # Errors
    /// The first syntax error, unknown key or invalid value.
    pub fn parse(file: &str, text: &str) -> Result<Self, SettingsError> {
        let options = serde_saphyr::options! {
            // A tag requests a type that this reader does not implement.
            reject_unsupported_tags: true,
            with_snippet: false,
        };
        let wrong = |line, problem: String, help: String| SettingsError { file: file.to_owned(), line, problem, help };
        let keys = KEYS.join(", ");
        if text.trim().is_empty() {
            return Err(wrong(
                None,
                "the file is empty".into(),
                format!("write {{}} for the defaults; keys are {keys}"),
            ));
        }
        serde_saphyr::from_str_with_options(text, options).map_err(|error| {
            let line = error.location().map(|place| place.line());
            let message = error.without_snippet().render_with_formatter(&serde_saphyr::UserMessageFormatter);
            let problem = message.split(" at line ").next().unwrap_or_default().lines().next().unwrap_or_default();
            let written = problem.split('`').nth(1).filter(|_| problem.starts_with("unknown field"));
            let help = match written.map(|written| nearest_word(written, KEYS)) {
                Some(Some(nearest)) => format!("did you mean `{nearest}`?"),
                Some(None) => format!("remove it; keys are {keys}"),
                None => format!("correct it; keys are {keys}"),
            };
            wrong(line, problem.to_owned(), help)
        })
    }

    /// Whether to handle a Service with this service-proxy-name label. `proxy` is `None` if the Service has no such label.
    pub(super) fn is_ours(&self, proxy: Option<&str>) -> bool {
        match proxy {
            None => self.service_proxy_name.is_empty(),
            Some(name) => !self.service_proxy_name.is_empty() && *name == *self.service_proxy_name,
        }
    }
}
