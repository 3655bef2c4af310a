//! A Neutron server for tests: security groups, rules, ports and tags with the API's checks, and an evaluator of the traffic that the
//! groups allow. It follows the API reference ("OpenStack Networking API v2.0") and the reference server's checks. It uses none of the
//! project's types: bodies are JSON. Like the server, it refuses unknown attributes.
#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses a part of this; tests may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Map, Value, json};

/// The maximum number of characters in a tag of older servers. Newer ones allow 255.
const MAX_TAG: usize = 60;
const MAX_NAME: usize = 255;

/// A response: status and body.
pub(crate) type Answer = (u16, Value);

/// The server's state.
#[derive(Clone, Debug)]
pub(crate) struct Neutron {
    pub(crate) groups: BTreeMap<String, Value>,
    pub(crate) ports: BTreeMap<String, Value>,
    /// The project's quota of groups.
    pub(crate) max_groups: usize,
    pub(crate) max_rules: usize,
    /// The maximum number of elements per page, even if a request has a larger `limit`.
    pub(crate) page: usize,
    /// The method and path of each request that changed something.
    pub(crate) changes: Vec<String>,
    pub(crate) lists: usize,
    given: u64,
}

impl Default for Neutron {
    fn default() -> Self {
        Self {
            groups: BTreeMap::new(),
            ports: BTreeMap::new(),
            max_groups: 1_000,
            max_rules: 100_000,
            page: 1_000,
            changes: Vec::new(),
            lists: 0,
            given: 0,
        }
    }
}

fn refused(status: u16, kind: &str, message: impl Into<String>) -> Answer {
    (status, json!({"NeutronError": {"type": kind, "message": message.into(), "detail": ""}}))
}

impl Neutron {
    fn id(&mut self) -> String {
        self.given += 1;
        format!("00000000-0000-4000-8000-{:012x}", self.given)
    }

    /// Creates a port, as Kuryr does for a pod. Returns its ID.
    pub(crate) fn add_port(&mut self, addresses: &[IpAddr], groups: &[&str]) -> String {
        let id = self.id();
        let fixed: Vec<Value> =
            addresses.iter().map(|address| json!({"ip_address": address, "subnet_id": "s"})).collect();
        let port = json!({
            "id": id, "name": "", "network_id": "net-1", "fixed_ips": fixed, "security_groups": groups,
            "port_security_enabled": true, "allowed_address_pairs": [], "device_owner": "compute:kuryr",
        });
        self.ports.insert(id.clone(), port);
        id
    }

    /// Creates a group that another tool owns. Returns its ID.
    pub(crate) fn add_group(&mut self, name: &str, rules: &[Value]) -> String {
        let id = self.id();
        let rules: Vec<Value> = rules
            .iter()
            .map(|rule| {
                let mut rule = rule.clone();
                rule["id"] = self.id().into();
                rule["security_group_id"] = id.clone().into();
                rule
            })
            .collect();
        let group = json!({"id": id, "name": name, "description": "", "tags": [], "security_group_rules": rules});
        self.groups.insert(id.clone(), group);
        id
    }

    pub(crate) fn handle(&mut self, method: &str, target: &str, body: &str) -> Answer {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let Ok(body) = (if body.is_empty() { Ok(Value::Null) } else { serde_json::from_str(body) }) else {
            return refused(400, "HTTPBadRequest", "the body is not JSON");
        };
        if method == "GET" {
            self.lists += 1;
        }
        let answer = match (method, &parts[..]) {
            ("GET", ["v2.0", "security-groups"]) => self.list("security_groups", query),
            ("GET", ["v2.0", "ports"]) => self.list("ports", query),
            ("POST", ["v2.0", "security-groups"]) => self.create_group(&body),
            ("DELETE", ["v2.0", "security-groups", id]) => self.delete_group(id),
            ("PUT", ["v2.0", "security-groups", id, "tags"]) => self.set_tags(id, &body),
            ("POST", ["v2.0", "security-group-rules"]) => self.create_rule(&body),
            ("DELETE", ["v2.0", "security-group-rules", id]) => self.delete_rule(id),
            ("PUT", ["v2.0", "ports", id]) => self.set_port(id, &body),
            _ => refused(404, "HTTPNotFound", format!("{method} {path}")),
        };
        if method != "GET" && answer.0 < 300 {
            self.changes.push(format!("{method} {path}"));
        }
        answer
    }

    fn list(&self, kind: &str, query: &str) -> Answer {
        let all = if kind == "ports" { &self.ports } else { &self.groups };
        let (mut limit, mut marker, mut found) = (self.page, None, all.values().collect::<Vec<_>>());
        for (key, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            let value = decoded(value);
            match key {
                "limit" => limit = limit.min(value.parse().unwrap()),
                "marker" => marker = Some(value),
                "fields" => {}
                "tags" => {
                    let asked: Vec<&str> = value.split(',').collect();
                    let has = |of: &Value, tag: &str| of["tags"].as_array().unwrap().iter().any(|known| known == tag);
                    found.retain(|of| asked.iter().all(|tag| has(of, tag)));
                }
                "name" | "description" | "network_id" => found.retain(|of| of[key] == value),
                _ => return refused(400, "HTTPBadRequest", format!("unknown filter {key}")),
            }
        }
        if let Some(marker) = marker {
            let Some(at) = found.iter().position(|of| of["id"] == marker) else {
                return refused(400, "BadRequest", format!("the marker {marker} could not be found"));
            };
            found.drain(..=at);
        }
        let more = found.len() > limit;
        found.truncate(limit);
        let mut answer = json!({ kind: found });
        if more {
            // An unresolvable name, as from a server behind a proxy that it does not know.
            answer[format!("{kind}_links")] = json!([{"rel": "next", "href": "http://inside.invalid/next"}]);
        }
        (200, answer)
    }

    fn create_group(&mut self, body: &Value) -> Answer {
        let Some(given) = only(&body["security_group"], &["name", "description"]) else {
            return refused(400, "HTTPBadRequest", "unrecognized attributes");
        };
        let text = |key: &str| given.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        if text("name") == "default" {
            return refused(409, "SecurityGroupDefaultAlreadyExists", "default security group already exists");
        }
        if text("name").len() > MAX_NAME || text("description").len() > MAX_NAME {
            return refused(400, "HTTPBadRequest", "name or description too long");
        }
        let rules: usize = self.rules().count();
        if self.groups.len() >= self.max_groups {
            return refused(409, "OverQuota", "Quota exceeded for resources: ['security_group'].");
        }
        if rules + 2 > self.max_rules {
            return refused(409, "OverQuota", "Quota exceeded for resources: ['security_group_rule'].");
        }
        let id = self.id();
        // The egress rules that the server adds to every new group.
        let rules: Vec<Value> = ["IPv4", "IPv6"]
            .iter()
            .map(|family| {
                json!({
                    "id": self.id(), "security_group_id": id, "direction": "egress", "ethertype": family, "protocol": null,
                    "port_range_min": null, "port_range_max": null, "remote_ip_prefix": null, "remote_group_id": null,
                })
            })
            .collect();
        let group = json!({
            "id": id, "name": text("name"), "description": text("description"), "tags": [], "stateful": true,
            "security_group_rules": rules,
        });
        self.groups.insert(id, group.clone());
        (201, json!({"security_group": group}))
    }

    fn delete_group(&mut self, id: &str) -> Answer {
        if !self.groups.contains_key(id) {
            return refused(404, "SecurityGroupNotFound", format!("Security group {id} does not exist"));
        }
        if self.ports.values().any(|port| port["security_groups"].as_array().unwrap().iter().any(|of| of == id)) {
            return refused(409, "SecurityGroupInUse", format!("Security Group {id} in use."));
        }
        self.groups.remove(id);
        for group in self.groups.values_mut() {
            group["security_group_rules"].as_array_mut().unwrap().retain(|rule| rule["remote_group_id"] != id);
        }
        (204, Value::Null)
    }

    fn set_tags(&mut self, id: &str, body: &Value) -> Answer {
        let Some(group) = self.groups.get_mut(id) else {
            return refused(404, "TagResourceNotFound", format!("Resource security_groups {id} could not be found."));
        };
        let tags: Vec<&str> = body["tags"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let unique: BTreeSet<&&str> = tags.iter().collect();
        if unique.len() != tags.len()
            || tags.iter().any(|tag| tag.is_empty() || tag.len() > MAX_TAG || tag.contains(','))
        {
            return refused(400, "InvalidInput", format!("invalid tags {tags:?}"));
        }
        group["tags"] = body["tags"].clone();
        (200, json!({"tags": group["tags"]}))
    }

    fn create_rule(&mut self, body: &Value) -> Answer {
        const ATTRIBUTES: [&str; 9] = [
            "security_group_id",
            "direction",
            "ethertype",
            "protocol",
            "port_range_min",
            "port_range_max",
            "remote_ip_prefix",
            "remote_group_id",
            "description",
        ];
        let Some(given) = only(&body["security_group_rule"], &ATTRIBUTES) else {
            return refused(400, "HTTPBadRequest", "unrecognized attributes");
        };
        let mut rule = Value::Object(given.clone());
        for key in ATTRIBUTES {
            rule.as_object_mut().unwrap().entry(key).or_insert(Value::Null);
        }
        if rule["ethertype"].is_null() {
            rule["ethertype"] = "IPv4".into();
        }
        if let Err((kind, why)) = checked(&rule) {
            return refused(400, kind, why);
        }
        for key in ["security_group_id", "remote_group_id"] {
            let known = rule[key].as_str().is_some_and(|id| self.groups.contains_key(id));
            let is_absent = key == "remote_group_id" && rule[key].is_null();
            if !known && !is_absent {
                return refused(404, "SecurityGroupNotFound", format!("Security group {} does not exist", rule[key]));
            }
        }
        let group = rule["security_group_id"].as_str().unwrap().to_owned();
        let rules = self.groups[&group]["security_group_rules"].as_array().unwrap();
        if rules.iter().any(|known| key_of(known) == key_of(&rule)) {
            return refused(409, "SecurityGroupRuleExists", "Security group rule already exists.");
        }
        if self.rules().count() >= self.max_rules {
            return refused(409, "OverQuota", "Quota exceeded for resources: ['security_group_rule'].");
        }
        rule["id"] = self.id().into();
        self.groups.get_mut(&group).unwrap()["security_group_rules"].as_array_mut().unwrap().push(rule.clone());
        (201, json!({"security_group_rule": rule}))
    }

    fn delete_rule(&mut self, id: &str) -> Answer {
        for group in self.groups.values_mut() {
            let rules = group["security_group_rules"].as_array_mut().unwrap();
            if let Some(at) = rules.iter().position(|rule| rule["id"] == id) {
                rules.remove(at);
                return (204, Value::Null);
            }
        }
        refused(404, "SecurityGroupRuleNotFound", format!("Security group rule {id} does not exist"))
    }

    fn set_port(&mut self, id: &str, body: &Value) -> Answer {
        let Some(given) = only(&body["port"], &["security_groups"]) else {
            return refused(400, "HTTPBadRequest", "unrecognized attributes");
        };
        let Some(groups) = given.get("security_groups").and_then(Value::as_array) else {
            return refused(400, "HTTPBadRequest", "no security_groups");
        };
        if let Some(unknown) = groups.iter().find(|group| !self.groups.contains_key(group.as_str().unwrap())) {
            return refused(404, "SecurityGroupNotFound", format!("Security group {unknown} does not exist"));
        }
        let Some(port) = self.ports.get_mut(id) else {
            return refused(404, "PortNotFound", format!("Port {id} could not be found."));
        };
        if port["port_security_enabled"] == false && !groups.is_empty() {
            return refused(400, "PortSecurityAndIPRequiredForSecurityGroups", "port security must be enabled");
        }
        port["security_groups"] = groups.clone().into();
        (200, json!({"port": port}))
    }

    fn rules(&self) -> impl Iterator<Item = &Value> {
        self.groups.values().flat_map(|group| group["security_group_rules"].as_array().unwrap())
    }

    /// The traffic that the groups allow now.
    pub(crate) fn verdicts(&self) -> Verdicts {
        let members = |group: &str| -> Vec<IpNet> {
            let member = |port: &&Value| port["security_groups"].as_array().unwrap().iter().any(|of| of == group);
            self.ports
                .values()
                .filter(member)
                .flat_map(|port| addresses(port).map(IpNet::from).chain(pairs(port)))
                .collect()
        };
        let rules_of = |port: &Value| -> Vec<Rule> {
            let groups = port["security_groups"].as_array().unwrap().iter();
            let rules =
                groups.flat_map(|id| self.groups[id.as_str().unwrap()]["security_group_rules"].as_array().unwrap());
            rules.map(|rule| Rule::of(rule, members)).collect()
        };
        let secured = self.ports.values().filter(|port| port["port_security_enabled"] != false);
        let of = secured.flat_map(|port| {
            let rules = std::rc::Rc::new(rules_of(port));
            addresses(port).map(move |address| (address, rules.clone()))
        });
        Verdicts(of.collect())
    }
}

/// The rules of each port, by its addresses.
pub(crate) struct Verdicts(BTreeMap<IpAddr, std::rc::Rc<Vec<Rule>>>);

struct Rule {
    egress: bool,
    v4: bool,
    protocol: Option<u8>,
    ports: (u64, u64),
    /// `None` for all addresses.
    remote: Option<Vec<IpNet>>,
}

impl Verdicts {
    /// Whether both ends allow a connection's first packet. An end without a port allows everything.
    pub(crate) fn passes(&self, src: IpAddr, dst: IpAddr, protocol: u8, port: u16) -> bool {
        self.side(true, src, dst, protocol, port) && self.side(false, dst, src, protocol, port)
    }

    fn side(&self, egress: bool, own: IpAddr, peer: IpAddr, protocol: u8, port: u16) -> bool {
        let Some(rules) = self.0.get(&own) else { return true };
        rules.iter().any(|rule| {
            (rule.egress, rule.v4) == (egress, peer.is_ipv4())
                && rule.protocol.is_none_or(|number| number == protocol)
                && (rule.ports.0..=rule.ports.1).contains(&port.into())
                && rule.remote.as_ref().is_none_or(|remote| remote.iter().any(|net| net.contains(&peer)))
        })
    }
}

impl Rule {
    fn of(rule: &Value, members: impl Fn(&str) -> Vec<IpNet>) -> Self {
        let protocol = match rule["protocol"].as_str() {
            None | Some("any" | "0") => None,
            Some("tcp") => Some(6),
            Some("udp") => Some(17),
            Some("sctp") => Some(132),
            Some(other) => Some(other.parse().unwrap()),
        };
        let ports = (rule["port_range_min"].as_u64().unwrap_or(0), rule["port_range_max"].as_u64().unwrap_or(65_535));
        let prefix = rule["remote_ip_prefix"].as_str().map(|prefix| vec![prefix.parse().unwrap()]);
        let remote = prefix.or_else(|| rule["remote_group_id"].as_str().map(members));
        Self { egress: rule["direction"] == "egress", v4: rule["ethertype"] == "IPv4", protocol, ports, remote }
    }
}

fn addresses(port: &Value) -> impl Iterator<Item = IpAddr> {
    port["fixed_ips"].as_array().unwrap().iter().map(|fixed| fixed["ip_address"].as_str().unwrap().parse().unwrap())
}

fn pairs(port: &Value) -> impl Iterator<Item = IpNet> {
    let pairs = port["allowed_address_pairs"].as_array().unwrap();
    pairs.iter().map(|pair| {
        let text = pair["ip_address"].as_str().unwrap();
        text.parse().unwrap_or_else(|_| text.parse::<IpAddr>().unwrap().into())
    })
}

/// The attributes. `None` if the value has unknown ones.
fn only<'a>(value: &'a Value, known: &[&str]) -> Option<&'a Map<String, Value>> {
    value.as_object().filter(|map| map.keys().all(|key| known.contains(&&**key)))
}

/// Checks a rule. Source: Neutron, `_validate_port_range`, `_validate_ip_prefix`, `_validate_ethertype_and_protocol`.
fn checked(rule: &Value) -> Result<(), (&'static str, String)> {
    let direction = rule["direction"].as_str().unwrap_or_default();
    let family = rule["ethertype"].as_str().unwrap_or_default();
    if !["ingress", "egress"].contains(&direction) || !["IPv4", "IPv6"].contains(&family) {
        return Err(("HTTPBadRequest", format!("direction {direction}, ethertype {family}")));
    }
    let (first, last) = (&rule["port_range_min"], &rule["port_range_max"]);
    if !(first.is_null() && last.is_null()) {
        let with_ports = matches!(rule["protocol"].as_str(), Some("tcp" | "udp" | "sctp" | "6" | "17" | "132"));
        let numbers = first.as_u64().zip(last.as_u64());
        match numbers {
            _ if rule["protocol"].is_null() => return Err(("SecurityGroupProtocolRequiredWithPorts", String::new())),
            _ if !with_ports => return Err(("SecurityGroupInvalidProtocolForPort", rule["protocol"].to_string())),
            Some((first, last)) if 0 < first && first <= last && last <= 65_535 => {}
            _ => return Err(("SecurityGroupInvalidPortRange", format!("{first}-{last}"))),
        }
    }
    if let Some(number) = rule["protocol"].as_str().and_then(|name| name.parse::<u16>().ok()) {
        let of_v6 = [41, 43, 44, 58, 59, 60].contains(&number);
        if number > 255 || (of_v6 && family == "IPv4") {
            return Err(("SecurityGroupEthertypeConflictWithProtocol", number.to_string()));
        }
    }
    if let Some(prefix) = rule["remote_ip_prefix"].as_str() {
        let Ok(net) = prefix.parse::<IpNet>() else { return Err(("InvalidCIDR", prefix.to_owned())) };
        if net.addr().is_ipv4() != (family == "IPv4") {
            return Err(("SecurityGroupRuleParameterConflict", format!("{family} for {prefix}")));
        }
        if !rule["remote_group_id"].is_null() {
            return Err(("SecurityGroupMultipleRemoteEntites", "one of both".to_owned()));
        }
    }
    Ok(())
}

/// The key by which two rules are duplicates. Source: Neutron, `_rule_to_key`.
fn key_of(rule: &Value) -> Vec<String> {
    let keys = [
        "direction",
        "ethertype",
        "port_range_max",
        "port_range_min",
        "protocol",
        "remote_group_id",
        "remote_ip_prefix",
    ];
    let one = |key: &str| match (key, &rule[key]) {
        (_, Value::Null) => "+".to_owned(),
        ("remote_ip_prefix", Value::String(all)) if all == "0.0.0.0/0" || all == "::/0" => "+".to_owned(),
        ("protocol", Value::String(name)) => match &**name {
            "tcp" => "6".to_owned(),
            "udp" => "17".to_owned(),
            "sctp" => "132".to_owned(),
            other => other.to_owned(),
        },
        (_, value) => value.to_string(),
    };
    keys.map(one).to_vec()
}

/// Decodes percent encoding.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next().unwrap(), rest.next().unwrap()];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).unwrap()
}
