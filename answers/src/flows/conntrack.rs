//! Parses output of `conntrack -L` and `conntrack -E`, with or without `-o timestamp`, `extended`, `id`, `ktimestamp`, and
//! /proc/net/nf_conntrack.
//!
//! ```text
//!  [1795466672.082000]  [NEW] tcp 6 120 SYN_SENT src=.. dst=.. sport=.. dport=.. [UNREPLIED] src=.. dst=.. sport=.. dport=..
//!   time                event      proto          the original direction                     the reply direction
//! ```
//! The source of the original direction is the client. If the destination was translated, the reply comes from the backend: policy is
//! judged there, so the backend is the flow's end, and the original destination is the Service.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bulkhead_classifier::protocol;
use bulkhead_control::object::Transport;

use super::{Conversation, Observations, Read1, ResolvedNames, Said, SeenEnd, Sign};

/// Addresses, ports and ICMP fields of one direction of a connection, as conntrack prints them.
#[derive(Clone, Copy, Debug, Default)]
struct Tuple {
    src: Option<IpAddr>,
    dst: Option<IpAddr>,
    sport: Option<u16>,
    dport: Option<u16>,
    icmp: (Option<u8>, Option<u8>),
    packets: Option<u64>,
    bytes: Option<u64>,
}

/// Events of `conntrack -E`.
const EVENTS: [&str; 3] = ["[NEW]", "[UPDATE]", "[DESTROY]"];

/// Address families as `-o extended` and /proc print them.
const FAMILIES: [&str; 2] = ["ipv4", "ipv6"];

pub(super) fn read(file: &Arc<str>, text: &str, line: u64, into: &mut Observations) -> Read1 {
    if text.starts_with("conntrack v") && text.ends_with("have been shown.") {
        return Ok(());
    }
    let mut words = text.split_ascii_whitespace().peekable();
    let time = words.next_if(|word| word.starts_with('[') && !EVENTS.contains(word)).map(time).transpose()?;
    let event = words.next_if(|word| EVENTS.contains(word));
    if words.next_if(|word| FAMILIES.contains(word)).is_some() {
        words.next();
    }
    let name = words.next().unwrap_or_default();
    let number = words.next().and_then(|word| word.parse().ok());
    let Some(number) = number.filter(|number: &u8| is_protocol(name, *number)) else {
        return Err("the line is neither a JSON object nor conntrack output".to_owned());
    };
    let (original, reply, is_unreplied) = tuples(words)?;
    let from = original.src.ok_or("the original direction has no src=")?;
    let asked = original.dst.ok_or("the original direction has no dst=")?;
    let given = reply.src.unwrap_or(asked);
    if from.is_ipv4() != asked.is_ipv4() || from.is_ipv4() != given.is_ipv4() {
        return Err("the addresses have different families".to_owned());
    }
    let has_ports = Transport::ALL.iter().any(|transport| transport.number() == number);
    let port = reply.sport.or(original.dport).filter(|_| has_ports);
    let service = original.dport.filter(|_| has_ports).map(|asked_port| SocketAddr::new(asked, asked_port));
    let service = service.filter(|service| given != asked || port != Some(service.port()));
    let is_icmp = matches!(number, protocol::ICMP | protocol::ICMPV6);
    let counts = original.packets.zip(original.bytes).map(|(packets, bytes)| {
        let more = |own: u64, reply: Option<u64>| own.saturating_add(reply.unwrap_or(0));
        (more(packets, reply.packets), more(bytes, reply.bytes))
    });
    // The last event repeats the counts of earlier ones.
    let counts = counts.filter(|_| event.is_none_or(|event| event == "[DESTROY]"));
    let conversation = Conversation {
        from: SeenEnd::at(from),
        to: SeenEnd::at(given),
        protocol: Some(number),
        port,
        icmp: original.icmp.0.zip(original.icmp.1).filter(|_| is_icmp),
        service,
        missing: None,
    };
    let sign = Sign {
        conversation,
        client_port: original.sport,
        said: Said::default(),
        names: ResolvedNames::default(),
        sessions: 1,
        answered: !is_unreplied,
        ends: event == Some("[DESTROY]"),
        counts,
        times: (time, time),
        line,
    };
    into.add(file, sign);
    Ok(())
}

/// Whether `name` is conntrack's name of this protocol. conntrack prints `unknown` for protocols without a name.
fn is_protocol(name: &str, number: u8) -> bool {
    match name {
        "tcp" => number == protocol::TCP,
        "udp" => number == protocol::UDP,
        "sctp" => number == protocol::SCTP,
        "icmp" => number == protocol::ICMP,
        "icmpv6" => number == protocol::ICMPV6,
        "dccp" | "udplite" | "gre" | "unknown" => true,
        _ => false,
    }
}

/// Returns the two directions, and whether no reply was seen.
fn tuples<'a>(words: impl Iterator<Item = &'a str>) -> Result<(Tuple, Tuple, bool), String> {
    let mut tuples = [Tuple::default(), Tuple::default()];
    let (mut at, mut is_unreplied) = (0, false);
    for word in words {
        if word == "[UNREPLIED]" {
            is_unreplied = true;
        }
        let Some((key, value)) = word.split_once('=') else { continue };
        if key == "src" && tuples[at].src.is_some() {
            at += 1;
            if at == tuples.len() {
                return Err("the line has more than two directions".to_owned());
            }
        }
        let tuple = &mut tuples[at];
        match key {
            "src" => tuple.src = Some(parsed(word, value)?),
            "dst" => tuple.dst = Some(parsed(word, value)?),
            "sport" => tuple.sport = Some(parsed(word, value)?),
            "dport" => tuple.dport = Some(parsed(word, value)?),
            "type" => tuple.icmp.0 = Some(parsed(word, value)?),
            "code" => tuple.icmp.1 = Some(parsed(word, value)?),
            "packets" => tuple.packets = Some(parsed(word, value)?),
            "bytes" => tuple.bytes = Some(parsed(word, value)?),
            // Ignore mark, use, id, zone and fields of other versions.
            _ => {}
        }
    }
    let [original, reply] = tuples;
    Ok((original, reply, is_unreplied))
}

fn parsed<T: std::str::FromStr>(word: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("cannot parse `{}`", crate::output::printable(word)))
}

/// Parses `[1795466672.082000]`, seconds since 1970, into nanoseconds.
fn time(word: &str) -> Result<u64, String> {
    let wrong = || format!("`{}` is not a time in seconds", crate::output::printable(word));
    let text = word.strip_prefix('[').and_then(|word| word.strip_suffix(']')).ok_or_else(wrong)?;
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if seconds.is_empty() || fraction.len() > 9 || !is_number(seconds) || !is_number(fraction) {
        return Err(wrong());
    }
    let seconds: u64 = seconds.parse().map_err(|_| wrong())?;
    let nanoseconds: u64 = format!("{fraction:0<9}").parse().map_err(|_| wrong())?;
    seconds.checked_mul(1_000_000_000).and_then(|time| time.checked_add(nanoseconds)).ok_or_else(wrong)
}
