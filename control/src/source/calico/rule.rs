//! Reads rules of Calico's policies.

use ipnet::IpNet;
use serde_json::Value;

use super::super::error::{Findings, Problem, quoted};
use super::super::names;
use super::super::path::FieldPath;
use super::super::raw::{Mapping, typed};
use super::raw::{RawAccounts, RawEntity, RawRule, RawService};
use super::{missing, objects, ports, selector};
use crate::foreign::calico::{Accounts, Action, Entity, Families, Rule};
use crate::object::ServiceName;
use crate::origin::Direction;

/// Reads a rule. With any problem, returns its replacement: a rule that decides nothing if it allows, and denies everything otherwise.
pub(super) fn read(
    direction: Direction,
    namespace: Option<&str>,
    value: &Value,
    base: &FieldPath,
    findings: &mut Findings,
) -> Rule {
    let before = findings.problems.len();
    let rule = match typed::<RawRule>(value, base) {
        Ok(raw) => Reader { direction, namespace, findings }.rule(&raw, base),
        Err(problem) => {
            findings.problems.push(problem);
            None
        }
    };
    rule.filter(|_| findings.problems.len() == before).unwrap_or_else(|| {
        let is_open = matches!(value.get("action").and_then(Value::as_str), Some("Allow" | "Log"));
        Rule::everything(if is_open { Action::Log } else { Action::Deny })
    })
}

struct Reader<'a> {
    direction: Direction,
    /// The policy's namespace. `None` if its kind has none.
    namespace: Option<&'a str>,
    findings: &'a mut Findings,
}

impl Reader<'_> {
    fn rule(&mut self, raw: &RawRule, base: &FieldPath) -> Option<Rule> {
        let action = self.action(raw.action.as_deref(), base);
        let families = self.families(raw.ip_version, base);
        let none = RawEntity::default();
        let source_of = raw.source.as_ref().map_or(&none, |Mapping(entity)| entity);
        let destination_of = raw.destination.as_ref().map_or(&none, |Mapping(entity)| entity);
        let source = self.entity(source_of, self.direction == Direction::Egress, &base.key("source"));
        let destination = self.entity(destination_of, self.direction == Direction::Ingress, &base.key("destination"));
        for (field, ports) in [("ports", &source_of.ports), ("notPorts", &source_of.not_ports)] {
            if ports.as_ref().is_some_and(|ports| !ports.is_empty()) {
                let help = "match the destination's ports: replies pass by the connection that they belong to";
                self.findings.problem(&base.key("source").key(field), "ports of the source cannot be matched", help);
            }
        }
        let names_destination = self.direction == Direction::Egress && action == Some(Action::Allow);
        self.check_names(source_of, false, &base.key("source"));
        self.check_names(destination_of, names_destination, &base.key("destination"));
        let ports = ports::read(raw, destination_of, base, self.findings);
        if destination.service.is_some()
            && [&destination_of.ports, &destination_of.not_ports].iter().any(|ports| ports.is_some())
        {
            let help = "remove them: the ports are those of the Service's endpoints";
            self.findings.problem(&base.key("destination"), "`services` cannot be combined with ports", help);
        }
        if raw.http.is_some() && (self.direction == Direction::Egress || action != Some(Action::Allow)) {
            let help = "write it in a rule of `ingress` with `action: Allow`";
            self.findings.problem(&base.key("http"), "`http` cannot be used here", help);
        }
        let has_http = raw.http.is_some();
        let own = if self.direction == Direction::Ingress { &destination } else { &source };
        // No packet of another endpoint has a loopback address of this one.
        let families = families?.and(if is_loopback(&own.nets) { Families::NONE } else { Families::BOTH });
        Some(Rule { action: action?, families, ports, source, destination, has_http })
    }

    fn action(&mut self, text: Option<&str>, base: &FieldPath) -> Option<Action> {
        const HELP: &str = "write Allow, Deny, Pass or Log";
        let problem = match text {
            Some("Allow") => return Some(Action::Allow),
            Some("Deny") => return Some(Action::Deny),
            Some("Pass") => return Some(Action::Pass),
            Some("Log") => return Some(Action::Log),
            Some(other) => Problem::new(&base.key("action"), format!("unknown action {}", quoted(other)), HELP),
            None => Problem::new(base, "missing field `action`", HELP),
        };
        self.findings.problems.push(problem);
        None
    }

    fn families(&mut self, version: Option<i64>, base: &FieldPath) -> Option<Families> {
        match version {
            None => Some(Families::BOTH),
            Some(4) => Some(Families { v4: true, v6: false }),
            Some(6) => Some(Families { v4: false, v6: true }),
            Some(other) => {
                let path = base.key("ipVersion");
                self.findings.problem(&path, format!("unknown version {other}"), "write 4 or 6");
                None
            }
        }
    }

    /// Reads a source or destination. `is_own` says whether it is the end of the policy's pods.
    fn entity(&mut self, raw: &RawEntity, is_own: bool, base: &FieldPath) -> Entity {
        let mut of = |text: &Option<String>, field: &str| {
            selector(text.as_deref(), field == "namespaceSelector", &base.key(field), self.findings)
        };
        let namespaces = of(&raw.namespace_selector, "namespaceSelector");
        let (own, not) = (of(&raw.selector, "selector"), of(&raw.not_selector, "notSelector"));
        let nets = objects::nets(raw.nets.as_deref(), &base.key("nets"), self.findings);
        let not_nets = objects::nets(raw.not_nets.as_deref(), &base.key("notNets"), self.findings);
        let accounts =
            raw.service_accounts.as_ref().map(|Mapping(raw)| self.accounts(raw, &base.key("serviceAccounts")));
        if is_own && is_loopback(&nets) && not_nets.is_empty() {
            let help = "remove the rule, if the policy is about pods alone";
            self.findings.warning(base, "traffic to a loopback address does not leave the pod", help);
        } else if is_own && !(nets.is_empty() && not_nets.is_empty()) {
            let help = "select the policy's own pods by `selector`";
            self.findings.problem(base, "addresses of the policy's own pods cannot be matched", help);
        }
        let service = raw.services.as_ref().and_then(|Mapping(service)| {
            let others = namespaces.is_some() || own.is_some() || not.is_some() || accounts.is_some();
            if others || !nets.is_empty() || !not_nets.is_empty() {
                let help = "write two rules";
                self.findings.problem(base, "`services` cannot be combined with selectors and nets", help);
            }
            self.service(service, is_own, &base.key("services"))
        });
        let accounts = accounts.filter(|accounts| !accounts.names.is_empty() || accounts.selector.is_some());
        let names = objects::names(raw.domains.as_deref(), &base.key("domains"), self.findings);
        Entity { nets, not_nets, selector: own, not_selector: not, namespaces, accounts, names, service }
    }

    /// Checks that domain names stand where Calico permits them.
    fn check_names(&mut self, raw: &RawEntity, is_permitted: bool, base: &FieldPath) {
        if raw.domains.as_ref().is_none_or(Vec::is_empty) {
            return;
        }
        if !is_permitted {
            let help = "write them in the destination of an egress rule with `action: Allow`; deny by `nets`";
            self.findings.problem(&base.key("domains"), "domain names cannot be used here", help);
        }
        let selectors = [&raw.selector, &raw.not_selector, &raw.namespace_selector];
        let has_selector = selectors.into_iter().flatten().any(|text| !text.is_empty());
        let has_nets = raw.nets.as_ref().is_some_and(|nets| !nets.is_empty());
        if has_selector || has_nets || raw.service_accounts.is_some() || raw.services.is_some() {
            let help = "write two rules";
            self.findings.problem(base, "`domains` cannot be combined with selectors and nets", help);
        }
    }

    fn accounts(&mut self, raw: &RawAccounts, base: &FieldPath) -> Accounts {
        let names = raw.names.iter().flatten().map(|name| name.as_str().into()).collect();
        let labels = selector(raw.selector.as_deref(), false, &base.key("selector"), self.findings);
        Accounts { names, selector: labels }
    }

    fn service(&mut self, raw: &RawService, is_own: bool, base: &FieldPath) -> Option<ServiceName> {
        if is_own {
            let help = "write it as the source of an ingress rule, or as the destination of an egress rule";
            self.findings.problem(base, "`services` cannot be the policy's own end", help);
            return None;
        }
        let Some(name) = raw.name.as_deref().filter(|name| names::is_dns_subdomain(name)) else {
            self.findings.problems.push(missing(base, "name"));
            return None;
        };
        let Some(namespace) = raw.namespace.as_deref().filter(|namespace| names::is_dns_label(namespace)) else {
            let help = match self.namespace {
                Some(own) => format!("write `namespace: {own}`: Calico finds no Service without it"),
                None => "add the Service's namespace".to_owned(),
            };
            self.findings.problem(base, "missing field `namespace`", help);
            return None;
        };
        Some(ServiceName::new(namespace, name))
    }
}

/// Whether there are blocks, and all of them are of loopback addresses. Policies of nodes often allow these in every direction.
fn is_loopback(nets: &[IpNet]) -> bool {
    let in_loopback = |net: &IpNet| match net {
        IpNet::V4(net) => net.addr().is_loopback() && net.prefix_len() >= 8,
        IpNet::V6(net) => net.addr().is_loopback() && net.prefix_len() == 128,
    };
    !nets.is_empty() && nets.iter().all(in_loopback)
}
