//! Parses claims files and reports faults precisely.
//!
//! ```text
//! claims:
//! - name: nobody outside reaches the database
//!   never: {from: outside, to: {namespace: shop, labels: {app: db}}, ports: [5432]}
//! ```
//! `docs/claims.schema.json` describes the same format for editors; a test compares it with [`FIELDS`].

use std::path::Path;
use std::sync::Arc;

use anyhow::{anyhow, bail};
use bulkhead_classifier::{PortRange, Service, ServiceSet};
use bulkhead_control::object::{Labels, Position, Transport};
use bulkhead_control::source;
use ipnet::IpNet;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::ends::{PodsOf, Who};
use crate::args::{EndName, Target};

/// The known fields of a claims file, by the YAML mapping that contains them. To check and correct misspelt fields.
pub(super) const FIELDS: [(&str, &[&str]); 4] = [
    ("file", &["claims"]),
    ("claim", &["name", "never", "always", "only"]),
    ("statement", &["from", "to", "ports"]),
    ("end", &["namespace", "namespaceLabels", "labels", "workload", "kind", "pod", "address"]),
];

/// The kind of a claim: which verdicts it demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// All connections are denied.
    Never,
    /// All connections are allowed.
    Always,
    /// Connections to `to` are denied unless they come from `from`.
    Only,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Never, Self::Always, Self::Only];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Always => "always",
            Self::Only => "only",
        }
    }
}

#[derive(Debug)]
pub(super) struct Claim {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) from: Who,
    pub(super) to: Who,
    /// Destination ports. All protocols and ports if the claim names none.
    pub(super) ports: ServiceSet,
    pub(super) file: Arc<str>,
    pub(super) line: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    claims: Vec<RawClaim>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawClaim {
    name: String,
    never: Option<RawStatement>,
    always: Option<RawStatement>,
    only: Option<RawStatement>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawStatement {
    from: Value,
    to: Value,
    ports: Option<Vec<Value>>,
}

/// A fault at a path in the file, with its fix.
struct Fault {
    path: String,
    problem: String,
    help: String,
}

type Checked<T> = Result<T, Fault>;

fn fault<T>(path: &str, problem: impl Into<String>, help: impl Into<String>) -> Checked<T> {
    Err(Fault { path: path.to_owned(), problem: problem.into(), help: help.into() })
}

/// Reads a claims file.
///
/// # Errors
/// If a part cannot be parsed, with file, line, field and fix.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<Claim>> {
    let file: Arc<str> = path.to_string_lossy().into();
    let text = source::text_of_file(path).map_err(|(problem, help)| anyhow!("{file}: {problem}\n  help: {help}"))?;
    parse(&file, &text)
}

pub(super) fn parse(file: &Arc<str>, text: &str) -> anyhow::Result<Vec<Claim>> {
    let tree: Value = serde_saphyr::from_str(text).map_err(|error| {
        let line = error.location().map_or_else(String::new, |place| format!(":{}", place.line()));
        let message = error.without_snippet().render_with_formatter(&serde_saphyr::UserMessageFormatter);
        let problem = message.split(" at line ").next().unwrap_or_default().to_owned();
        anyhow!("{file}{line}: {problem}\n  help: correct the YAML; examples/claims.yaml shows every form of claims")
    })?;
    let line = |path: &str| {
        let position = Position { file: file.clone(), document: 1, line: 1, path: "".into() };
        source::line_in(text, &position, path).unwrap_or(1)
    };
    let told = |Fault { path, problem, help }: Fault| {
        let field = if path.is_empty() { String::new() } else { format!(" {path}:") };
        anyhow!("{file}:{}:{field} {problem}\n  help: {help}", line(&path))
    };
    let raw: RawFile = serde_path_to_error::deserialize(&tree).map_err(|error| {
        let path = match error.path().to_string() {
            path if path == "." => String::new(),
            path => path,
        };
        told(Fault { path, problem: error.inner().to_string(), help: meant(&error.inner().to_string()) })
    })?;
    if raw.claims.is_empty() {
        bail!(
            "{file}: the file contains no claims\n  help: write at least one claim; examples/claims.yaml shows every form"
        );
    }
    let mut claims: Vec<Claim> = Vec::with_capacity(raw.claims.len());
    for (at, claim) in raw.claims.into_iter().enumerate() {
        let path = format!("claims[{at}]");
        let claim = checked(claim, &path, file, line(&path)).map_err(told)?;
        if let Some(other) = claims.iter().find(|other| other.name == claim.name) {
            let problem = format!("the claim name \"{}\" is already used in line {}", claim.name, other.line);
            return Err(told(Fault { path, problem, help: "give each claim a unique name".to_owned() }));
        }
        claims.push(claim);
    }
    Ok(claims)
}

/// Returns a hint for a parse error: the known field most similar to an unknown one, else the file with examples.
fn meant(message: &str) -> String {
    let written = message.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next());
    let known = FIELDS.into_iter().flat_map(|(_, fields)| fields.iter().copied());
    match written.and_then(|written| source::nearest_word(written, known)) {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None => "examples/claims.yaml shows every form of claims".to_owned(),
    }
}

fn checked(raw: RawClaim, path: &str, file: &Arc<str>, line: usize) -> Checked<Claim> {
    let statements = [raw.never, raw.always, raw.only];
    let mut given = Kind::ALL.into_iter().zip(statements).filter_map(|(kind, statement)| Some((kind, statement?)));
    let (Some((kind, statement)), None) = (given.next(), given.next()) else {
        return fault(
            path,
            "a claim needs exactly one of never, always and only",
            "split it into several claims, or remove the others",
        );
    };
    if raw.name.trim().is_empty() {
        return fault(
            &format!("{path}.name"),
            "the claim has no name",
            "add a `name` that says what the claim protects",
        );
    }
    let path = format!("{path}.{}", kind.name());
    Ok(Claim {
        from: who(&statement.from, &format!("{path}.from"), Side::From)?,
        to: who(&statement.to, &format!("{path}.to"), Side::To)?,
        ports: ports(statement.ports.as_deref(), &format!("{path}.ports"))?,
        name: raw.name,
        kind,
        file: file.clone(),
        line,
    })
}

/// An end of a claim. Only [`To`](Self::To) may name a Service, because connections never come from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// The field `from`.
    From,
    /// The field `to`.
    To,
}

/// The help for an end that is not written in any known form.
const WHO: &str = "write anyone, outside, NAMESPACE/NAME, KIND/NAMESPACE/NAME as in deploy/shop/web, node/NAME, service/NAMESPACE/NAME for `to`, labels \
                   with a namespace as in app=web -n shop, an address or block, a mapping such as {namespace: shop, labels: {app: web}}, or a list of these";

/// Parses an end: a name, a mapping, or a list of ends. `path` is the field's path in the file, which a fault names.
fn who(value: &Value, path: &str, side: Side) -> Checked<Who> {
    match value {
        Value::String(text) => named(text, path, side),
        Value::Object(fields) => pods(fields, path),
        Value::Array(list) if !list.is_empty() => {
            let each = list.iter().enumerate().map(|(at, one)| who(one, &format!("{path}[{at}]"), side));
            each.collect::<Checked<_>>().map(Who::AnyOf)
        }
        _ => fault(path, "this selects nothing", WHO),
    }
}

/// Parses an end that is one word: `anyone`, `outside`, a block of addresses, or a name as `--to` takes it.
fn named(text: &str, path: &str, side: Side) -> Checked<Who> {
    match text {
        "anyone" => return Ok(Who::Anyone),
        "outside" => return Ok(Who::Outside),
        _ => {}
    }
    if let Some(block) = block(text) {
        return block.map_or_else(|(problem, help)| fault(path, problem, help), |block| Ok(Who::Block(block)));
    }
    let parsed = match side {
        Side::From => text.parse().map(Target::End),
        Side::To => text.parse(),
    };
    match parsed {
        Ok(Target::Service(target)) => Ok(Who::Service(target)),
        // A pod, and not a workload of its name.
        Ok(Target::End(EndName::Pod(name))) if name.to_string() != text => {
            Ok(Who::Pods(PodsOf { namespaces: vec![name.namespace], pod: Some(name.name), ..PodsOf::default() }))
        }
        Ok(Target::End(name)) => Ok(Who::Named(name)),
        Err(problem) if text.contains('/') => fault(path, problem, WHO),
        Err(_) => fault(path, format!("\"{text}\" is nobody"), WHO),
    }
}

/// Parses text as a CIDR block or address. `None` if it looks like a name.
fn block(text: &str) -> Option<Result<IpNet, (String, String)>> {
    let is_address = |text: &str| text.contains(':') || text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let (address, length) = text.split_once('/').unwrap_or((text, ""));
    if address.is_empty() || !is_address(address) || (text.contains('/') && length.parse::<u8>().is_err()) {
        return None;
    }
    Some(source::block_or_address(text))
}

fn pods(fields: &Map<String, Value>, path: &str) -> Checked<Who> {
    let (_, known) = FIELDS[3];
    if let Some(unknown) = fields.keys().find(|key| !known.contains(&key.as_str())) {
        let help = match source::nearest_word(unknown, known.iter().copied()) {
            Some(nearest) => format!("did you mean `{nearest}`?"),
            None => format!("write one of {}", known.join(", ")),
        };
        return fault(path, format!("unknown field `{unknown}`"), help);
    }
    let at = |key: &str| format!("{path}.{key}");
    let text = |key: &str| match fields.get(key) {
        None => Ok(None),
        Some(Value::String(text)) if !text.is_empty() => Ok(Some(text.as_str())),
        Some(_) => fault(
            &at(key),
            format!("`{key}` is not a name"),
            "write a single word, in quotes if it looks like a number",
        ),
    };
    if let Some(address) = text("address")? {
        if fields.len() > 1 {
            return fault(
                path,
                "`address` cannot be combined with other fields",
                "write a list with two items, each after a `- `",
            );
        }
        let Some(Ok(block)) = block(address) else {
            return fault(
                &at("address"),
                format!("\"{address}\" is not an IP address or CIDR block"),
                "write for example 10.0.0.0/8 or fd00::1",
            );
        };
        return Ok(Who::Block(block));
    }
    let labels = |key: &str| -> Checked<Labels> {
        let Some(value) = fields.get(key) else { return Ok(Labels::new()) };
        let all = value.as_object().filter(|all| !all.is_empty());
        let Some(all) = all else {
            return fault(&at(key), "no labels", "write `key: value` pairs, or omit the field to select all");
        };
        let pair = |(name, value): (&String, &Value)| match value {
            Value::String(text) => Ok((name.as_str().into(), text.as_str().into())),
            _ => fault(&format!("{}[\"{name}\"]", at(key)), "the value is not a string", "put the value in quotes"),
        };
        all.iter().map(pair).collect()
    };
    let mut namespaces: Vec<Arc<str>> = match fields.get("namespace") {
        Some(Value::Array(list)) if !list.is_empty() => {
            let name = |(at, value): (usize, &Value)| match value {
                Value::String(text) if !text.is_empty() => Ok(text.as_str().into()),
                _ => fault(&format!("{path}.namespace[{at}]"), "not a name", "write the name of a namespace"),
            };
            list.iter().enumerate().map(name).collect::<Checked<_>>()?
        }
        _ => text("namespace")?.map(Arc::from).into_iter().collect(),
    };
    let mut name = |key: &str| -> Checked<Option<Arc<str>>> {
        match (text(key)?, namespaces.is_empty()) {
            (None, _) => Ok(None),
            (Some(text), no_namespace) => match text.split_once('/') {
                Some((namespace, name)) if no_namespace && !namespace.is_empty() && !name.is_empty() => {
                    namespaces.push(namespace.into());
                    Ok(Some(name.into()))
                }
                None => Ok(Some(text.into())),
                Some(_) => fault(
                    &at(key),
                    format!("\"{text}\" already names a namespace, so `namespace` is redundant"),
                    "remove one of the two",
                ),
            },
        }
    };
    let (workload, pod) = (name("workload")?, name("pod")?);
    if fields.is_empty() {
        return fault(path, "this selects nothing", WHO);
    }
    if fields.contains_key("kind") && workload.is_none() {
        return fault(&at("kind"), "`kind` needs `workload`", "add the name of the workload");
    }
    Ok(Who::Pods(PodsOf {
        kind: text("kind")?.map(Arc::from),
        namespace_labels: labels("namespaceLabels")?,
        labels: labels("labels")?,
        namespaces,
        workload,
        pod,
    }))
}

/// Parses the ports of a claim.
fn ports(list: Option<&[Value]>, path: &str) -> Checked<ServiceSet> {
    let Some(list) = list else { return Ok(ServiceSet::all()) };
    if list.is_empty() {
        return fault(
            path,
            "an empty list of ports covers no connection",
            "omit `ports` to cover all protocols and ports",
        );
    }
    let one = |(at, value): (usize, &Value)| {
        let path = format!("{path}[{at}]");
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => String::new(),
        };
        match service(&text) {
            Some(service) => Ok(service),
            None => fault(
                &path,
                format!("\"{text}\" is not a port"),
                "write 80, 53/UDP, 8000-9000/TCP, or UDP for all ports of a protocol",
            ),
        }
    };
    list.iter().enumerate().map(one).collect()
}

fn service(text: &str) -> Option<Service> {
    let transport = |name: &str| Transport::from_name(&name.to_ascii_uppercase());
    let of = |transport: Transport, first, last| Service {
        protocols: (transport.number(), transport.number()),
        ports: PortRange { first, last },
    };
    if let Some(transport) = transport(text) {
        return Some(of(transport, 0, u16::MAX));
    }
    let (ports, protocol) = text.split_once('/').unwrap_or((text, "TCP"));
    let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
    let number = |text: &str| text.parse::<u16>().ok().filter(|&port| port > 0);
    let (first, last) = (number(first)?, number(last)?);
    (first <= last).then_some(())?;
    Some(of(transport(protocol)?, first, last))
}
