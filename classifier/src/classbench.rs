//! Reads ClassBench rule sets, and traces with expected results.
//!
//! A rule is one line, `@10.0.0.0/8 <tab> 0.0.0.0/0 <tab> 0 : 65535 <tab> 80 : 80 <tab> 0x06/0xFF`: source and destination prefix, source
//! and destination ports, protocol and its mask (00 or FF). Earlier lines have priority. A trace line is six decimals: source, destination,
//! source port, destination port, protocol, and the deciding rule's position, or -1 if no rule matches.
//! Source: Taylor and Turner, "ClassBench: A Packet Classification Benchmark", 2007, and its generators' output.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use ahash::RandomState;
use ipnet::Ipv4Net;

use crate::{Action, Addresses, Key, OriginId, PortRange, Rule, Service, Services, Tables};

/// A malformed line.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}; expected {expected}")]
pub struct FormatError {
    /// The line number, counted from 1.
    pub line: usize,
    /// A description of the problem.
    pub what: String,
    /// The expected form of the line.
    pub expected: &'static str,
}

const RULE: &str = "@SRC/LEN<tab>DST/LEN<tab>LOW : HIGH<tab>LOW : HIGH<tab>0xPP/0xMM";
const PACKET: &str = "six decimals: src dst src-port dst-port protocol match";

/// A packet of a trace, and the position of the rule that decides it. `None` if no rule matches.
pub type Answered = (Key, Option<usize>);

/// Parses a rule file. Every rule allows, and its origin is its position, counted from 0. Equal prefixes share one set.
///
/// # Errors
/// The first malformed line.
pub fn parse_rules(text: &str) -> Result<Vec<Rule>, FormatError> {
    let mut sets = Sets::default();
    let mut rules = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let rule = parse_rule(text, &mut sets).map_err(|what| FormatError { line, what, expected: RULE })?;
        let origin = u32::try_from(rules.len()).map_err(|_| FormatError {
            line,
            what: "more rules than 2^32".to_owned(),
            expected: RULE,
        })?;
        rules.push(Rule { origin: OriginId(origin), ..rule });
    }
    Ok(rules)
}

#[derive(Default)]
struct Sets {
    prefixes: HashMap<Ipv4Net, Addresses, RandomState>,
    services: HashMap<Service, Services, RandomState>,
}

fn parse_rule(text: &str, sets: &mut Sets) -> Result<Rule, String> {
    let rest = text.trim().strip_prefix('@').ok_or("no '@' at its start")?;
    let mut fields = rest.split_whitespace();
    let mut next = |name: &str| fields.next().ok_or_else(|| format!("no {name}"));
    let src = prefix(next("source prefix")?, sets)?;
    let dst = prefix(next("destination prefix")?, sets)?;
    let mut ports = || -> Result<PortRange, String> {
        let first = number(next("lowest port")?)?;
        if next("':' between ports")? != ":" {
            return Err("no ':' between ports".to_owned());
        }
        let last = number(next("highest port")?)?;
        if first > last {
            Err(format!("ports {first} : {last} are in the wrong order"))
        } else {
            Ok(PortRange { first, last })
        }
    };
    let (src_ports, dst_ports) = (ports()?, ports()?);
    let protocol = next("protocol")?;
    let (value, mask) = protocol.split_once('/').ok_or_else(|| format!("protocol {protocol} has no mask"))?;
    let hex = |text: &str| {
        let digits = text.trim_start_matches("0x");
        u8::from_str_radix(digits, 16).map_err(|_| format!("{text} is not a hexadecimal byte"))
    };
    let (value, mask) = (hex(value)?, hex(mask)?);
    let protocols = match mask {
        0 => (0, u8::MAX),
        0xff => (value, value),
        _ => return Err(format!("protocol mask {mask:#04x} is neither 0x00 nor 0xFF")),
    };
    let service = Service { protocols, ports: dst_ports };
    let services = sets
        .services
        .entry(service)
        .or_insert_with(|| Services::from([service].into_iter().collect::<crate::ServiceSet>()));
    Ok(Rule { src, dst, src_ports, services: services.clone(), ..Rule::any(Action::Allow, OriginId(0)) })
}

fn prefix(text: &str, sets: &mut Sets) -> Result<Addresses, String> {
    let net: Ipv4Net = text.parse().map_err(|_| format!("{text} is not an IPv4 prefix"))?;
    let make = || Addresses::prefix(net.trunc().into());
    Ok(sets.prefixes.entry(net.trunc()).or_insert_with(make).clone())
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text} is not a number in range"))
}

/// Parses a trace.
///
/// # Errors
/// The first malformed line.
pub fn parse_trace(text: &str) -> Result<Vec<Answered>, FormatError> {
    let line =
        |(line, text): (usize, &str)| parse_packet(text).map_err(|what| FormatError { line, what, expected: PACKET });
    (1..).zip(text.lines()).map(line).collect()
}

fn parse_packet(text: &str) -> Result<Answered, String> {
    let mut fields = text.split_whitespace();
    let mut next = |name: &str| fields.next().ok_or_else(|| format!("no {name}"));
    let src: u32 = number(next("source address")?)?;
    let dst: u32 = number(next("destination address")?)?;
    let (src_port, dst_port) = (number(next("source port")?)?, number(next("destination port")?)?);
    let protocol = number(next("protocol")?)?;
    let answer: i64 = number(next("match")?)?;
    let key = Key::new(Ipv4Addr::from_bits(src).into(), Ipv4Addr::from_bits(dst).into(), protocol, src_port, dst_port);
    Ok((key, usize::try_from(answer).ok()))
}

/// Counts the packets that the tables decide differently from the trace. Looks them up in bursts of `burst`.
pub fn mismatches(tables: &Tables, trace: &[Answered], burst: usize) -> usize {
    let keys: Vec<Key> = trace.iter().map(|&(key, _)| key).collect();
    let mut verdicts = vec![crate::Verdict::NO_MATCH; keys.len()];
    for (keys, verdicts) in keys.chunks(burst).zip(verdicts.chunks_mut(burst)) {
        tables.lookup_batch(keys, verdicts);
    }
    verdicts.iter().zip(trace).filter(|&(verdict, &(_, answer))| verdict.rule() != answer).count()
}
