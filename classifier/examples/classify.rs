//! Classifies a ClassBench trace and prints what it cost, as one line of JSON. Exits with 1 on a wrong answer.
//!
//! `cargo run --release -p bulkhead-classifier --example classify -- RULES[.gz] TRACE[.gz]`

use std::alloc::{GlobalAlloc, Layout, System};
use std::error::Error;
use std::io::Read;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bulkhead_classifier::{BuildOptions, Change, Key, Tables, Verdict, classbench};

/// The system's allocator, counting.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[expect(unsafe_code, reason = "an allocator that counts has to implement an unsafe trait")]
// SAFETY: every call goes on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(now, Relaxed);
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn read(path: &str) -> Result<String, Box<dyn Error>> {
    let bytes = std::fs::read(path).map_err(|error| format!("{path}: {error}"))?;
    let mut text = String::new();
    if bytes.starts_with(&[0x1f, 0x8b]) {
        flate2::read::MultiGzDecoder::new(&bytes[..]).read_to_string(&mut text)?;
    } else {
        text = String::from_utf8(bytes)?;
    }
    Ok(text)
}

/// Nanoseconds per lookup of the best of several passes.
fn time(tables: &Tables, keys: &[Key], burst: usize) -> f64 {
    let mut verdicts = vec![Verdict::NO_MATCH; keys.len()];
    let (start, mut best) = (Instant::now(), Duration::MAX);
    while start.elapsed() < Duration::from_millis(300) {
        let pass = Instant::now();
        for (keys, verdicts) in keys.chunks(burst).zip(verdicts.chunks_mut(burst)) {
            tables.lookup_batch(keys, verdicts);
        }
        best = best.min(pass.elapsed());
        std::hint::black_box(&verdicts);
    }
    best.as_secs_f64() * 1e9 / keys.len() as f64
}

/// Updates of one rule per second: the middle rule is taken out of a table and put back in by turns.
fn updates(tables: &Tables) -> Result<f64, Box<dyn Error>> {
    let at = tables.rules().len() / 2;
    let Some(rule) = tables.rules().get(at).cloned() else { return Ok(0.0) };
    let (options, start, mut count) = (BuildOptions::default(), Instant::now(), 0);
    while count < 2 || start.elapsed() < Duration::from_millis(200) && count < 1000 {
        let without = tables.update(&[Change::Remove { at }], &options)?;
        let back = without.update(&[Change::Insert { at, rule: rule.clone() }], &options)?;
        std::hint::black_box(back);
        count += 2;
    }
    Ok(f64::from(count) / start.elapsed().as_secs_f64())
}

#[expect(clippy::print_stdout, reason = "the report is what the program is for")]
fn main() -> Result<ExitCode, Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [rules, trace] = &args[..] else { return Err("usage: classify RULES TRACE".into()) };
    let rules = classbench::parse_rules(&read(rules)?)?;
    let trace = classbench::parse_trace(&read(trace)?)?;
    let count = rules.len();
    let before = NOW.load(Relaxed);
    PEAK.store(before, Relaxed);
    let start = Instant::now();
    let tables = Tables::build(rules)?;
    let build = start.elapsed();
    let (memory, peak) = (tables.bytes(), PEAK.load(Relaxed) - before);
    let mismatches: usize = [1, 8, 32, 256].map(|burst| classbench::mismatches(&tables, &trace, burst)).iter().sum();
    let keys: Vec<Key> = trace.iter().map(|&(key, _)| key).collect();
    let ns = [1, 32, 256].map(|burst| time(&tables, &keys, burst));
    let mean = |part: fn(&bulkhead_classifier::Cost) -> usize| {
        keys.iter().map(|key| part(&tables.cost(key))).sum::<usize>() as f64 / keys.len() as f64
    };
    let report = serde_json::json!({
        "rules": count,
        "packets": trace.len(),
        "mismatches": mismatches,
        "build_seconds": build.as_secs_f64(),
        "memory_bytes": memory,
        "peak_build_bytes": peak,
        "engine": tables.describe(),
        "probes_per_lookup": mean(|cost| cost.probes),
        "rules_verified_per_lookup": mean(|cost| cost.entries),
        "ns_per_lookup": { "1": ns[0], "32": ns[1], "256": ns[2] },
        "lookups_per_second": 1e9 / ns[1],
        "updates_per_second": updates(&tables)?,
    });
    println!("{report}");
    Ok(if mismatches == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
