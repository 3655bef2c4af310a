//! Text output of `monitor` and `trace`.

use std::io::{self, Write};
use std::time::UNIX_EPOCH;

use serde_json::Value;

use bulkhead_answers::destination::DestinationNames;
use bulkhead_answers::output::{note, printable};

/// Column widths that fit most values.
mod width {
    pub(super) const VERDICT: usize = 9;
    pub(super) const END: usize = 32;
    pub(super) const SUMMARY: usize = 20;
}

fn text(value: &Value) -> String {
    value.as_str().map(printable).unwrap_or_default()
}

/// Returns the time of day of an RFC 3339 time: `14:32:07.123`. Empty if the time is missing.
fn clock(time: &Value) -> String {
    text(time).get(11..23).unwrap_or_default().to_owned()
}

/// Returns an RFC 3339 time in nanoseconds since 1970. 0 if the time is missing.
fn nanoseconds(time: &Value) -> u64 {
    let time = time.as_str().and_then(|text| humantime::parse_rfc3339(text).ok());
    let since = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or_default()
}

/// Returns an end of a flow: pod, reserved label or address, with the port.
fn end(flow: &Value, which: &str) -> String {
    let (endpoint, address) = (&flow[which], text(&flow["IP"][which]));
    let port =
        flow["l4"].as_object().and_then(|layer| layer.values().next()).map(|layer| &layer[format!("{which}_port")]);
    let name = match (endpoint["namespace"].as_str(), endpoint["pod_name"].as_str()) {
        (Some(namespace), Some(pod)) => printable(&format!("{namespace}/{pod}")),
        _ if address.contains(':') => format!("[{address}]"),
        _ => address,
    };
    port.and_then(Value::as_u64).map_or_else(|| name.clone(), |port| format!("{name}:{port}"))
}

pub(super) fn write_flow(out: &mut impl Write, line: &Value) -> io::Result<()> {
    let Some(flow) = line.get("flow") else {
        note_lost(line);
        return Ok(());
    };
    let own = &flow["bulkhead"];
    let (from, to) = match flow.get("IP") {
        Some(_) => (end(flow, "source"), end(flow, "destination")),
        None => {
            (format!("port {}", own["in"].as_str().map_or_else(|| "unknown".to_owned(), printable)), "?".to_owned())
        }
    };
    write!(
        out,
        "{}  {:<v$}  {from:<e$} -> {to:<e$}  {:<s$}",
        clock(&flow["time"]),
        text(&flow["verdict"]),
        text(&flow["Summary"]),
        v = width::VERDICT,
        e = width::END,
        s = width::SUMMARY,
    )?;
    for part in [&own["reason"], &own["origin"]] {
        if part.is_string() {
            write!(out, "  {}", text(part))?;
        }
    }
    if own["audited_by"].is_string() {
        write!(out, "  would be denied by {}", text(&own["audited_by"]))?;
    }
    if let Ok(names) = serde_json::from_value::<DestinationNames>(own["names"].clone()) {
        let destination = text(&flow["IP"]["destination"]);
        write!(out, "  {}", names.words(destination, nanoseconds(&flow["time"])))?;
    }
    if own["service"].is_string() {
        write!(out, "  for {}", text(&own["service"]))?;
    }
    match own["count"].as_u64() {
        None | Some(1) => writeln!(out),
        Some(count) => writeln!(out, "  x{count}"),
    }
}

pub(super) fn write_packet(out: &mut impl Write, line: &Value) -> io::Result<()> {
    let Some(packet) = line.get("packet") else {
        note_lost(line);
        return Ok(());
    };
    let walk = &packet["walk"];
    let or = |value: &Value, other: &str| value.as_str().map_or_else(|| other.to_owned(), printable);
    writeln!(
        out,
        "{} {} > {}  {}, {} bytes: {}",
        clock(&packet["time"]),
        or(&packet["from"], "?"),
        or(&packet["to"], "?"),
        or(&packet["summary"], "not parsed"),
        packet["length"],
        text(&packet["verdict"]),
    )?;
    writeln!(out, "    in       {}", or(&packet["in"], "an unknown port"))?;
    writeln!(out, "    session  {}", or(&walk["session"], "none"))?;
    if packet["translated_to"].is_string() {
        let (from, to) = (text(&packet["translated_from"]), text(&packet["translated_to"]));
        writeln!(out, "    becomes  {from} > {to}")?;
    }
    if let (Some(table), Some(rules)) = (walk["table"].as_str(), walk["rules"].as_u64()) {
        let table = printable(table);
        match walk["rule"].as_u64() {
            Some(rule) => writeln!(out, "    table    {table}, rule {rule} (counted from 0) of {rules}")?,
            None => writeln!(out, "    table    {table}, none of its {rules} rules")?,
        }
    }
    if walk["match_text"].is_string() {
        writeln!(out, "    rule     {}", text(&walk["match_text"]))?;
    }
    if let Ok(names) = serde_json::from_value::<DestinationNames>(walk["names"].clone()) {
        let words = names.words(text(&walk["destination"]), nanoseconds(&packet["time"]));
        writeln!(out, "    names    {words}")?;
    }
    if walk["origin"].is_string() {
        writeln!(out, "    because  {}", text(&walk["origin"]))?;
    }
    if packet["meant_for"].is_string() {
        writeln!(out, "    out      {}, where it did not get to", text(&packet["meant_for"]))?;
    }
    match packet["reason"].as_str() {
        None => writeln!(out, "    out      {}", or(&walk["out"], "an unknown port")),
        Some(reason) => writeln!(out, "    dropped  {}: {}", printable(reason), text(&packet["means"])),
    }
}

/// Prints the number of lost events to standard error.
pub(super) fn note_lost(line: &Value) {
    if let Some(lost) = line.get("lost_events") {
        let count = text(&lost["num_events_lost"]);
        let why = match lost["source"].as_str() {
            Some("PERF_EVENT_RING_BUFFER") => "the workers' buffers were full",
            _ => "they exceeded --rate, or were not read in time",
        };
        note(&format!("{count} left out: {why}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_one_line_and_a_packet_shows_its_walk() {
        let line: Value = serde_json::json!({"flow": {
            "time": "2026-11-24T14:32:07.123456789Z", "verdict": "DROPPED", "Summary": "TCP Flags: SYN",
            "IP": {"source": "10.0.0.1", "destination": "10.0.0.2"},
            "l4": {"TCP": {"source_port": 4000, "destination_port": 80}},
            "source": {"namespace": "shop", "pod_name": "web\u{1b}"}, "destination": {"labels": ["reserved:world"]},
            "bulkhead": {"reason": "policy_denied", "origin": "ingress isolated by shop/p", "count": 3}}});
        let mut out = Vec::new();
        write_flow(&mut out, &line).unwrap();
        let told = String::from_utf8(out).unwrap();
        for part in [
            "14:32:07.123  DROPPED",
            "shop/web\\u{1b}:4000",
            "-> 10.0.0.2:80",
            "policy_denied  ingress isolated by shop/p  x3\n",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
        let mut by_name = line.clone();
        by_name["flow"]["bulkhead"]["names"] =
            serde_json::json!({"matched": {"name": "a.example.com", "until": "2026-11-24T14:32:31Z"}});
        let mut out = Vec::new();
        write_flow(&mut out, &by_name).unwrap();
        let told = String::from_utf8(out).unwrap();
        assert!(told.contains("  by the name a.example.com, open to new connections until 14:32:31  x3\n"), "{told}");
        let line = serde_json::json!({"packet": {
            "time": "2026-11-24T14:32:07.123456789Z", "from": "10.0.0.1:4000", "to": "10.0.0.2:80", "length": 54,
            "summary": "TCP Flags: SYN", "verdict": "DROPPED", "reason": "policy_denied", "means": "Policy does not allow the packet.",
            "in": "shop/web", "walk": {"table": "shop/db", "rule": 2, "rules": 3, "origin": "ingress isolated by shop/p"}}});
        let mut out = Vec::new();
        write_packet(&mut out, &line).unwrap();
        let told = String::from_utf8(out).unwrap();
        for part in [
            "54 bytes: DROPPED",
            "in       shop/web",
            "shop/db, rule 2 (counted from 0) of 3",
            "dropped  policy_denied: Policy",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
        let mut by_name = line.clone();
        by_name["packet"]["walk"]["destination"] = "203.0.113.7".into();
        by_name["packet"]["walk"]["names"] = serde_json::json!({"known": []});
        let mut out = Vec::new();
        write_packet(&mut out, &by_name).unwrap();
        let told = String::from_utf8(out).unwrap();
        assert!(told.contains("    names    the pod had resolved no name of 203.0.113.7 at that time\n"), "{told}");
        let mut lost = line;
        (lost["packet"]["meant_for"], lost["packet"]["reason"]) = ("uplink".into(), "port_down".into());
        let mut out = Vec::new();
        write_packet(&mut out, &lost).unwrap();
        let told = String::from_utf8(out).unwrap();
        assert!(told.contains("    out      uplink, where it did not get to\n    dropped  port_down: "), "{told}");
    }
}
