//! Tables of the ACL renderer, which `bulkhead run` enforces.

use std::collections::BTreeMap;
use std::io::Write;

use bulkhead_classifier::{Addresses, PortRange, Rule, Services};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::renderer::acl::{AclTable, Interface, NodeTables};
use bulkhead_control::renderer::contiv::tuple::six_tuples;
use serde_json::{Value, json};

use crate::args::{Compile, Format};
use crate::output::{Columns, printable};
use crate::run;

/// Maximum number of set members listed as text. JSON lists all.
const SHOWN_MEMBERS: usize = 6;

pub(super) fn write(pipeline: &Pipeline, args: &Compile, out: &mut impl Write) -> anyhow::Result<()> {
    let tables = run::node_tables(pipeline, &args.node)?;
    match args.output {
        _ if args.stats => stats(&tables, args.output, out),
        Format::Text => text(pipeline, &tables, args.six_tuples, out),
        Format::Json => super::write_json(&document(pipeline, &tables, args.six_tuples), out),
    }
}

fn text(pipeline: &Pipeline, tables: &NodeTables, expand: bool, out: &mut impl Write) -> anyhow::Result<()> {
    writeln!(out, "node {}\n", printable(&tables.node))?;
    let mut ports = Columns::new(&["PORT", "ADDRESSES", "TABLE"]);
    for interface in tables.interfaces.iter() {
        let addresses = interface.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        ports.row([run::port_name(&interface.attachment).to_string(), addresses, names(tables, interface).join(", ")]);
    }
    ports.write(out)?;
    for table in &tables.tables {
        let rules = table.tables.rules();
        writeln!(out, "\ntable {}: {} rules, the first that matches decides", printable(&table.name), rules.len())?;
        for (at, rule) in rules.iter().enumerate() {
            let origin = super::named(pipeline, &[rule.origin]);
            let by_name = rule.names.as_ref().map(|names| format!(" by name {names}")).unwrap_or_default();
            if expand {
                for tuple in six_tuples(rule) {
                    writeln!(out, "  {at:>3} {tuple}{by_name}  # {origin}")?;
                }
            } else {
                let (src, dst) = (shown_addresses(&rule.src), shown_addresses(&rule.dst));
                let services = shown_services(&rule.services);
                writeln!(
                    out,
                    "  {at:>3} {:<5} {src} -> {dst} {services}{by_name}  # {origin}",
                    rule.action.to_string()
                )?;
            }
        }
    }
    Ok(())
}

/// Returns the names of the tables that judge an interface's packets, in order.
fn names<'a>(tables: &'a NodeTables, interface: &Interface) -> Vec<&'a str> {
    let all = interface.egress_table.into_iter().chain([interface.table]);
    all.map(|table| &*tables.tables[table].name).collect()
}

fn stats(tables: &NodeTables, form: Format, out: &mut impl Write) -> anyhow::Result<()> {
    let mut columns =
        Columns::new(&["TABLE", "RULES", "BYTES", "PROBES AT MOST", "RULES VERIFIED AT MOST", "COMPILED AS"]);
    let mut values = Vec::new();
    for AclTable { name, tables } in &tables.tables {
        let (rules, bytes, worst) = (tables.rules().len(), tables.bytes(), tables.worst_case());
        let cells = [rules, bytes, worst.probes, worst.entries].map(|n| n.to_string());
        columns.row([name.to_string()].into_iter().chain(cells).chain([tables.describe()]));
        values.push(json!({
            "table": name,
            "rules": rules,
            "memory_bytes": bytes,
            "worst_case": {
                "search_steps": worst.steps, "chunks": worst.chunks, "probes": worst.probes, "rules_verified": worst.entries,
            },
            "engine": tables.describe(),
        }));
    }
    match form {
        Format::Text => columns.write(out)?,
        Format::Json => writeln!(out, "{}", json!({ "node": tables.node, "tables": values }))?,
    }
    Ok(())
}

fn some(members: impl Iterator<Item = String>) -> String {
    let mut members = members.peekable();
    let mut shown: Vec<String> = members.by_ref().take(SHOWN_MEMBERS).collect();
    match members.count() {
        0 => {}
        more => shown.push(format!("... {more} more")),
    }
    match &*shown {
        [one] => one.clone(),
        _ => format!("{{{}}}", shown.join(", ")),
    }
}

/// Formats a set of addresses as text, with at most `SHOWN_MEMBERS` members.
pub fn shown_addresses(addresses: &Addresses) -> String {
    match addresses.members() {
        None => "any".into(),
        Some(set) => some(set.prefixes().map(|prefix| prefix.to_string())),
    }
}

/// Formats a set of services (protocols and ports) as text, with at most `SHOWN_MEMBERS` members.
pub fn shown_services(services: &Services) -> String {
    match services {
        Services::Any => "any".into(),
        Services::Set(set) => some(set.services().map(|service| service.to_string())),
    }
}

fn document(pipeline: &Pipeline, tables: &NodeTables, expand: bool) -> Value {
    let mut users: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    let ports: Vec<Value> = tables
        .interfaces
        .iter()
        .map(|interface| {
            let name = run::port_name(&interface.attachment).to_string();
            let judging = interface.egress_table.into_iter().chain([interface.table]);
            judging.for_each(|table| users.entry(table).or_default().push(name.clone()));
            let mut port =
                json!({ "port": name, "addresses": interface.addresses, "table": tables.tables[interface.table].name });
            if let Some(egress) = interface.egress_table {
                port["egress_table"] = tables.tables[egress].name.to_string().into();
            }
            port
        })
        .collect();
    let table = |(at, table): (usize, &AclTable)| {
        let rules: Vec<Value> = table.tables.rules().iter().map(|rule| rule_value(pipeline, rule, expand)).collect();
        json!({ "table": table.name, "ports": users.get(&at), "rules": rules })
    };
    json!({ "node": tables.node, "ports": ports, "tables": tables.tables.iter().enumerate().map(table).collect::<Vec<_>>() })
}

fn rule_value(pipeline: &Pipeline, rule: &Rule, expand: bool) -> Value {
    let addresses = |addresses: &Addresses| match addresses.members() {
        None => Value::Null,
        Some(set) => set.prefixes().map(|prefix| prefix.to_string()).collect(),
    };
    let services = match &rule.services {
        Services::Any => Value::Null,
        Services::Set(set) => set.services().map(|service| service.to_string()).collect(),
    };
    let origin = pipeline.origins().get(rule.origin);
    let mut value = json!({
        "action": rule.action.to_string(),
        "src": addresses(&rule.src),
        "dst": addresses(&rule.dst),
        "services": services,
        "origin": run::attribution(origin),
    });
    if let Some(names) = &rule.names {
        value["names"] = names.patterns().iter().map(ToString::to_string).collect();
    }
    debug_assert_eq!(rule.src_ports, PortRange::ALL);
    if expand {
        value["six_tuples"] = six_tuples(rule).map(|tuple| tuple.to_string()).collect();
    }
    value
}
