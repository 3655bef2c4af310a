//! `bulkhead classify`: checks and times the classifier with a ClassBench rule set and trace.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use bulkhead_classifier::{BuildOptions, Change, Cost, Key, Tables, Verdict, classbench};
use serde_json::{Value, json};

use crate::args::{Classify, Format};
use crate::output;
use crate::progress;

/// Measuring time: long enough for a pass with warm caches, short enough to finish a set in a second.
const TIMED: Duration = Duration::from_millis(300);

/// Maximum number of timed updates: enough for a rate even if each is a full build.
const MAX_UPDATES: u32 = 1_000;

/// Classifies the trace and prints speed and errors. Returns exit code 1 if an answer differs from the trace's.
///
/// # Errors
/// If a file cannot be read or parsed.
pub fn run(args: &Classify) -> anyhow::Result<ExitCode> {
    let rules = parsed(&args.rules, classbench::parse_rules)?;
    let trace = parsed(&args.trace, classbench::parse_trace)?;
    let count = rules.len();
    let resident = reset_peak();
    let started = Instant::now();
    progress::step("building the tables");
    let tables = Tables::build(rules).with_context(|| args.rules.display().to_string())?;
    let build = started.elapsed();
    let peak = peak().zip(resident).map(|(peak, resident)| peak.saturating_sub(resident));
    progress::step("comparing with the rules");
    let mismatches: usize = [1, 8, 32, 256].iter().map(|&burst| classbench::mismatches(&tables, &trace, burst)).sum();
    progress::step("measuring");
    let keys: Vec<Key> = trace.iter().map(|&(key, _)| key).collect();
    let [one, vector, frame] = [1, 32, 256].map(|burst| nanoseconds(&tables, &keys, burst));
    let report = json!({
        "rules": count,
        "packets": trace.len(),
        "mismatches": mismatches,
        "build_seconds": build.as_secs_f64(),
        "memory_bytes": tables.bytes(),
        "peak_build_bytes": peak,
        "engine": tables.describe(),
        "ns_per_lookup": { "1": one, "32": vector, "256": frame },
        "lookups_per_second": 1e9 / vector,
        "updates_per_second": updates(&tables)?,
        "probes_per_lookup": mean(&tables, &keys, |cost| cost.probes),
        "rules_verified_per_lookup": mean(&tables, &keys, |cost| cost.entries),
    });
    write(&report, args.output)?;
    Ok(if mismatches == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Reads a file, decompresses it if necessary, and parses it.
fn parsed<T>(path: &Path, parse: impl FnOnce(&str) -> Result<T, classbench::FormatError>) -> anyhow::Result<T> {
    let name = path.display();
    let bytes = fs::read(path).with_context(|| format!("cannot read {name}"))?;
    let mut text = String::new();
    // Magic number of gzip (RFC 1952).
    if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut unpacked = flate2::read::MultiGzDecoder::new(&bytes[..]);
        unpacked.read_to_string(&mut text).with_context(|| format!("{name} is damaged"))?;
    } else {
        text = String::from_utf8(bytes).with_context(|| format!("{name} is neither text nor gzip"))?;
    }
    parse(&text).with_context(|| name.to_string())
}

/// Returns the nanoseconds per lookup in the fastest pass.
fn nanoseconds(tables: &Tables, keys: &[Key], burst: usize) -> f64 {
    let mut verdicts = vec![Verdict::NO_MATCH; keys.len()];
    let (started, mut best) = (Instant::now(), Duration::MAX);
    while started.elapsed() < TIMED {
        let pass = Instant::now();
        for (keys, verdicts) in keys.chunks(burst).zip(verdicts.chunks_mut(burst)) {
            tables.lookup_batch(keys, verdicts);
        }
        best = best.min(pass.elapsed());
        std::hint::black_box(&verdicts);
    }
    best.as_secs_f64() * 1e9 / count(keys.len())
}

/// Returns rule updates per second, alternately removing and inserting the middle rule.
fn updates(tables: &Tables) -> anyhow::Result<f64> {
    let at = tables.rules().len() / 2;
    let Some(rule) = tables.rules().get(at).cloned() else { return Ok(0.0) };
    let (options, started, mut done) = (BuildOptions::default(), Instant::now(), 0);
    while done < 2 || (started.elapsed() < TIMED && done < MAX_UPDATES) {
        let without = tables.update(&[Change::Remove { at }], &options)?;
        let back = without.update(&[Change::Insert { at, rule: rule.clone() }], &options)?;
        std::hint::black_box(back);
        done += 2;
    }
    Ok(f64::from(done) / started.elapsed().as_secs_f64())
}

fn mean(tables: &Tables, keys: &[Key], part: fn(&Cost) -> usize) -> f64 {
    count(keys.iter().map(|key| part(&tables.cost(key))).sum()) / count(keys.len())
}

#[expect(clippy::cast_precision_loss, reason = "rates are shown with a few digits")]
fn count(n: usize) -> f64 {
    n as f64
}

/// Resets the peak of resident memory. Returns the resident bytes, `None` if the kernel does not report them.
fn reset_peak() -> Option<u64> {
    // proc(5): writing 5 resets the peak.
    fs::write("/proc/self/clear_refs", "5").ok()?;
    status("VmRSS:")
}

fn peak() -> Option<u64> {
    status("VmHWM:")
}

/// Returns a field of /proc/self/status in bytes. `None` if the kernel does not report it.
fn status(field: &str) -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kilobytes * 1024)
}

fn write(report: &Value, form: Format) -> anyhow::Result<()> {
    let mut out = output::stdout();
    match (form, report.as_object()) {
        (Format::Text, Some(fields)) => {
            for (name, value) in fields {
                writeln!(
                    out,
                    "{:<26} {}",
                    name.replace('_', " "),
                    value.as_str().map_or_else(|| value.to_string(), Into::into)
                )?;
            }
        }
        _ => writeln!(out, "{report}")?,
    }
    Ok(())
}
