//! Settings of masquerading.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use bulkhead_dataplane::SourcePorts;
use ipnet::IpNet;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_saphyr::Spanned;

use super::faults::{Faults, line};

/// Settings of masquerading: the source translation of pods' connections to other networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MasqueradeConfig {
    /// Source addresses, at most one per family. A family without one uses the node's first address.
    pub addresses: Vec<IpAddr>,
    /// Networks to which packets keep the pods' addresses, besides the cluster's.
    pub except: Vec<IpNet>,
    /// The source ports that masqueraded connections get.
    pub ports: SourcePorts,
}

impl MasqueradeConfig {
    /// Leaves out these source ports: those of the tunnel and of probes, at which the node receives packets of other nodes.
    pub(super) fn without(self, ports: [u16; 2]) -> Self {
        Self { ports: self.ports.without(ports), ..self }
    }
}

/// The `masquerade` field as parsed. `None` for `false` or no value.
#[derive(Debug, Default)]
pub(super) struct Written(Option<Fields>);

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Fields {
    addresses: Vec<Spanned<String>>,
    except: Vec<Spanned<String>>,
    ports: Option<Spanned<String>>,
}

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Forms;

        impl<'de> Visitor<'de> for Forms {
            type Value = Written;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false, or an object with settings of masquerading")
            }

            fn visit_bool<E>(self, on: bool) -> Result<Written, E> {
                Ok(Written(on.then(Fields::default)))
            }

            fn visit_unit<E>(self) -> Result<Written, E> {
                Ok(Written(None))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Written, A::Error> {
                Fields::deserialize(MapAccessDeserializer::new(map)).map(|fields| Written(Some(fields)))
            }
        }

        deserializer.deserialize_any(Forms)
    }
}

/// Checks the settings. `None` if masquerading is off.
pub(super) fn check(written: &Written, faults: &mut Faults<'_>) -> Option<MasqueradeConfig> {
    let fields = written.0.as_ref()?;
    let mut addresses: Vec<IpAddr> = Vec::new();
    for text in &fields.addresses {
        let unusable = |ip: &IpAddr| ip.is_unspecified() || ip.is_multicast() || ip.is_loopback();
        let Some(address) = text.value.parse().ok().filter(|ip| !unusable(ip)) else {
            let problem = format!("`{}` is not a valid address of a node", text.value);
            faults.add(line(text), "masquerade.addresses", problem, "write addresses of the node, one per family");
            continue;
        };
        if addresses.iter().any(|other| other.is_ipv4() == address.is_ipv4()) {
            let problem = format!("{address} is a second address of its family");
            faults.add(line(text), "masquerade.addresses", problem, "keep one of them");
        }
        addresses.push(address);
    }
    let mut except = Vec::new();
    for text in &fields.except {
        match text.value.parse::<IpNet>() {
            Ok(block) => except.push(block.trunc()),
            Err(_) => {
                let problem = format!("`{}` is not a prefix", text.value);
                faults.add(line(text), "masquerade.except", problem, "write address/length: 192.168.0.0/16, fc00::/7");
            }
        }
    }
    let ports = fields.ports.as_ref().and_then(|text| {
        let ranges = text.value.split(',').map(range).collect::<Option<Vec<_>>>().and_then(SourcePorts::new);
        if ranges.is_none() {
            let help = "write the first and the last port, 1024 or more: 61000-65535; up to three ranges, in the order of use, with commas between";
            faults.add(line(text), "masquerade.ports", format!("`{}` is not a range of ports", text.value), help);
        }
        ranges
    });
    Some(MasqueradeConfig { addresses, except, ports: ports.unwrap_or_default() })
}

/// Parses `61000-65535`. Rejects ports below 1024, which are reserved for services (RFC 6335 §6).
fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-')?;
    let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (1024 <= first && first <= last).then_some(first..=last)
}
