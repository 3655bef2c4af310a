//! The server's state, as listed by the API.

use std::collections::BTreeSet;
use std::net::IpAddr;

use bulkhead_classifier::{PortRange, protocol};
use ipnet::IpNet;
use serde_json::Value;

use super::super::{Family, Remote, SecurityRule};
use crate::origin::Direction;

/// The part of the server's state that Bulkhead uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Managed security groups: with the owner's tag, or created without a tag by an interrupted run.
    pub groups: Vec<ListedGroup>,
    /// All ports.
    pub ports: Vec<ListedPort>,
}

/// A security group at the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedGroup {
    /// The group's ID at the server.
    pub id: String,
    /// The tags.
    pub tags: Vec<String>,
    /// The rules.
    pub rules: Vec<ListedRule>,
}

/// A rule at the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedRule {
    /// The rule's ID at the server.
    pub id: String,
    /// The rule, with the ID of its remote group. `None` for a rule that Bulkhead would never write.
    pub rule: Option<SecurityRule>,
}

/// A port at the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedPort {
    /// The port's ID at the server.
    pub id: String,
    /// The fixed addresses.
    pub addresses: Vec<IpAddr>,
    /// Additional addresses or blocks that the port may send from. A rule that names the port's group as remote also covers them.
    pub pairs: Vec<String>,
    /// Whether the server applies security groups to the port.
    pub secured: bool,
    /// The IDs of its groups.
    pub groups: BTreeSet<String>,
}

fn text(value: &Value, key: &str) -> Option<String> {
    value.get(key)?.as_str().map(str::to_owned)
}

fn texts(value: &Value, key: &str) -> Vec<String> {
    value
        .get(key)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

impl ListedGroup {
    /// Parses an element of `security_groups`. `None` if it is not a group.
    pub fn of(value: &Value) -> Option<Self> {
        let rules = value.get("security_group_rules").and_then(Value::as_array).into_iter().flatten();
        Some(Self {
            id: text(value, "id")?,
            tags: texts(value, "tags"),
            rules: rules.filter_map(ListedRule::of).collect(),
        })
    }
}

impl ListedRule {
    /// Parses an element of `security_group_rules`. `None` if it is not a rule.
    pub fn of(value: &Value) -> Option<Self> {
        Some(Self { id: text(value, "id")?, rule: rule(value) })
    }
}

fn rule(value: &Value) -> Option<SecurityRule> {
    let family = match value.get("ethertype")?.as_str()? {
        "IPv4" => Family::V4,
        "IPv6" => Family::V6,
        _ => return None,
    };
    let direction = match value.get("direction")?.as_str()? {
        "ingress" => Direction::Ingress,
        "egress" => Direction::Egress,
        _ => return None,
    };
    let protocol = match value.get("protocol") {
        None | Some(Value::Null) => None,
        Some(Value::String(name)) => match &**name {
            "tcp" => Some(protocol::TCP),
            "udp" => Some(protocol::UDP),
            "sctp" => Some(protocol::SCTP),
            "any" | "0" => None,
            // Other protocol names occur only in rules that Bulkhead does not write.
            number => Some(number.parse().ok()?),
        },
        Some(number) => Some(u8::try_from(number.as_u64()?).ok()?).filter(|number| *number > 0),
    };
    let port = |key: &str| match value.get(key) {
        None | Some(Value::Null) => Some(None),
        Some(number) => Some(Some(u16::try_from(number.as_u64()?).ok()?)),
    };
    let ports = match (port("port_range_min")?, port("port_range_max")?) {
        (None, None) => None,
        (Some(first), Some(last)) if first <= last => Some(PortRange { first, last }),
        _ => return None,
    };
    let given = |key: &str| value.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    if given("remote_address_group_id").is_some() {
        return None;
    }
    let remote = match (given("remote_group_id"), given("remote_ip_prefix")) {
        (None, None) => Remote::Any,
        (Some(group), None) => Remote::Group(group.into()),
        (None, Some(prefix)) => match prefix.parse::<IpNet>().ok()?.trunc() {
            all if all.prefix_len() == 0 => Remote::Any,
            prefix => Remote::Prefix(prefix),
        },
        (Some(_), Some(_)) => return None,
    };
    Some(SecurityRule { direction, family, protocol, ports, remote })
}

impl ListedPort {
    /// Parses an element of `ports`. `None` if it is not a port.
    pub fn of(value: &Value) -> Option<Self> {
        let list = |key: &str| value.get(key).and_then(Value::as_array).into_iter().flatten();
        let addresses = list("fixed_ips").filter_map(|fixed| fixed.get("ip_address")?.as_str()?.parse().ok());
        Some(Self {
            id: text(value, "id")?,
            addresses: addresses.collect(),
            pairs: list("allowed_address_pairs").filter_map(|pair| text(pair, "ip_address")).collect(),
            secured: value.get("port_security_enabled").and_then(Value::as_bool).unwrap_or(true),
            groups: texts(value, "security_groups").into_iter().collect(),
        })
    }
}
