//! Compares this project's classifier with DPDK's rte_acl on the same rules and traces in one process.
//!
//! `cargo run --release -- FOLDER SET...`; FOLDER holds `SET.rules.gz` and `SET.rnd.trace.gz`. `BENCH_SIMD_BITS` limits the registers that
//! rte_acl uses (64, 128, 256 or 512, the default), to show a CPU without the wider ones.
//!
//! Passes of the two alternate and are timed by the thread's CPU time, so that other load and the CPU's clock affect both. A value is the
//! median of the passes. All answers of both are checked first.

use std::collections::HashMap;
use std::error::Error;
use std::ffi::{c_int, c_void};
use std::io::Read;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use bulkhead_classifier::{AddressSet, Addresses, Key, Rule, Tables, Verdict, classbench};
use ipnet::IpNet;

#[repr(C)]
#[derive(Clone, Copy)]
struct AclKey {
    protocol: u8,
    pad: [u8; 3],
    src: u32,
    dst: u32,
    src_port: u16,
    dst_port: u16,
}

#[repr(C)]
struct AclRule {
    src: u32,
    dst: u32,
    src_ports: [u16; 2],
    dst_ports: [u16; 2],
    src_length: u8,
    dst_length: u8,
    protocol: u8,
    protocol_mask: u8,
}

unsafe extern "C" {
    fn bench_acl_start(simd_bits: c_int) -> c_int;
    fn bench_acl_build(rules: *const AclRule, count: u32, max_size: u64) -> *mut c_void;
    fn bench_acl_algorithm(acl: *mut c_void, algorithm: c_int) -> c_int;
    fn bench_acl_classify(acl: *mut c_void, keys: *mut *const u8, results: *mut u32, count: u32);
    fn bench_acl_free(acl: *mut c_void);
}

fn read(path: &Path) -> Result<String, Box<dyn Error>> {
    let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut text = String::new();
    flate2::read::MultiGzDecoder::new(&bytes[..]).read_to_string(&mut text)?;
    Ok(text)
}

/// The CPU time of this thread in nanoseconds.
fn cpu_time() -> f64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

fn acl_rules(text: &str) -> Vec<AclRule> {
    text.lines()
        .map(|line| {
            let mut numbers = line
                .trim_start_matches('@')
                .split(|c: char| !c.is_ascii_hexdigit() && c != 'x')
                .filter(|word| !word.is_empty());
            let mut next = || {
                let word = numbers.next().expect("checked by the parser before");
                match word.strip_prefix("0x") {
                    Some(hex) => u32::from_str_radix(hex, 16),
                    None => word.parse(),
                }
                .expect("checked by the parser before")
            };
            let mut address = || (0..4).fold(0, |all, _| all << 8 | next());
            let src = address();
            let src_length = next();
            let mut address = || (0..4).fold(0, |all, _| all << 8 | next());
            let dst = address();
            let dst_length = next();
            AclRule {
                src,
                dst,
                src_length: src_length as u8,
                dst_length: dst_length as u8,
                src_ports: [next() as u16, next() as u16],
                dst_ports: [next() as u16, next() as u16],
                protocol: next() as u8,
                protocol_mask: next() as u8,
            }
        })
        .collect()
}

/// The algorithms of rte_acl, indexed by their numbers in `rte_acl.c`. The scalar one runs on every CPU.
const ALGORITHMS: [&str; 5] = ["scalar", "sse", "avx2", "avx512x16", "avx512x32"];

struct Acl(*mut c_void);

impl Acl {
    fn classify(&self, keys: &mut [*const u8], results: &mut [u32], burst: usize) {
        for (keys, results) in keys.chunks_mut(burst).zip(results.chunks_mut(burst)) {
            // SAFETY: each pointer is to a key that lives, and there is a result per key.
            unsafe { bench_acl_classify(self.0, keys.as_mut_ptr(), results.as_mut_ptr(), keys.len() as u32) };
        }
    }

    /// Chooses an algorithm. Returns false if the CPU, the library or `BENCH_SIMD_BITS` does not support it.
    fn choose(&self, algorithm: c_int) -> bool {
        // SAFETY: the context lives.
        unsafe { bench_acl_algorithm(self.0, algorithm) == 0 }
    }
}

fn ours(tables: &Tables, keys: &[Key], verdicts: &mut [Verdict], burst: usize) {
    for (keys, verdicts) in keys.chunks(burst).zip(verdicts.chunks_mut(burst)) {
        tables.lookup_batch(keys, verdicts);
    }
}

/// Returns the rules and keys with each IPv4 address mapped to the last 32 bits of an IPv6 address, so that lists keep their shape.
fn in_ipv6(rules: &[Rule], keys: &[Key]) -> (Vec<Rule>, Vec<Key>) {
    let address = |address: IpAddr| match address {
        IpAddr::V4(v4) => IpAddr::V6(Ipv6Addr::from_bits(PREFIX | u128::from(v4.to_bits()))),
        v6 => v6,
    };
    let mut known = HashMap::new();
    let mut addresses = |v4: &Addresses| match v4.members() {
        None => Addresses::Any,
        Some(set) => known
            .entry(set.clone())
            .or_insert_with(|| {
                let net = |net: IpNet| IpNet::new(address(net.addr()), net.prefix_len() + 96).expect("at most 128");
                Addresses::from(set.prefixes().map(net).collect::<AddressSet>())
            })
            .clone(),
    };
    let rules = rules.iter().map(|rule| Rule { src: addresses(&rule.src), dst: addresses(&rule.dst), ..rule.clone() });
    let key =
        |key: &Key| Key::new(address(key.src()), address(key.dst()), key.protocol(), key.src_port(), key.dst_port());
    (rules.collect(), keys.iter().map(key).collect())
}

/// 2001:db8::/96, part of the range for documentation (RFC 3849).
const PREFIX: u128 = 0x2001_0db8 << 96;

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// The state of the caches before a timed pass.
#[derive(Clone, Copy, PartialEq)]
enum Caches {
    /// As the other classifier's pass has left them.
    Others,
    /// As its own pass has left them: an untimed pass of the same kind precedes each timed one.
    Own,
}

/// Returns the nanoseconds per lookup of `a` and of `b`, whose passes alternate, and the ratio.
fn pair(caches: Caches, mut a: impl FnMut(), mut b: impl FnMut(), keys: usize) -> (f64, f64, f64) {
    let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let start = cpu_time();
    let timed = |work: &mut dyn FnMut()| {
        if caches == Caches::Own {
            work();
        }
        let start = cpu_time();
        work();
        (cpu_time() - start) / keys as f64
    };
    while ratios.len() < 15 || cpu_time() - start < 0.25e9 && ratios.len() < 200 {
        let (a, b) = (timed(&mut a), timed(&mut b));
        ours.push(a);
        theirs.push(b);
        ratios.push(b / a);
    }
    (median(&mut ours), median(&mut theirs), median(&mut ratios))
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (folder, sets) = args.split_first().ok_or("usage: classifier-rte-acl FOLDER SET...")?;
    let simd_bits: c_int = match std::env::var("BENCH_SIMD_BITS") {
        Ok(bits) => bits.parse().map_err(|_| format!("BENCH_SIMD_BITS={bits} is not a number"))?,
        Err(_) => 512,
    };
    // SAFETY: called once, before anything else of DPDK.
    if unsafe { bench_acl_start(simd_bits) } < 0 {
        return Err("DPDK's environment does not start".into());
    }
    println!(
        "ns per lookup: ours / rte_acl's best algorithm (ratio of medians pair by pair); build seconds; bytes of ours"
    );
    for set in sets {
        let text = read(&Path::new(folder).join(format!("{set}.rules.gz")))?;
        let trace = classbench::parse_trace(&read(&Path::new(folder).join(format!("{set}.rnd.trace.gz")))?)?;
        let rules = classbench::parse_rules(&text)?;
        let t0 = cpu_time();
        let tables = Tables::build(rules.clone())?;
        let t1 = cpu_time();
        let acl_rules = acl_rules(&text);
        // SAFETY: the rules live through the call.
        let acl = Acl(unsafe { bench_acl_build(acl_rules.as_ptr(), acl_rules.len() as u32, 0) });
        let t2 = cpu_time();
        if acl.0.is_null() {
            return Err(format!("{set}: rte_acl does not build").into());
        }
        let keys: Vec<Key> = trace.iter().map(|&(key, _)| key).collect();
        let acl_keys: Vec<AclKey> = trace
            .iter()
            .map(|(key, _)| {
                let bits = |address| match address {
                    std::net::IpAddr::V4(address) => std::net::Ipv4Addr::to_bits(address).to_be(),
                    std::net::IpAddr::V6(_) => unreachable!("traces are IPv4"),
                };
                AclKey {
                    protocol: key.protocol(),
                    pad: [0; 3],
                    src: bits(key.src()),
                    dst: bits(key.dst()),
                    src_port: key.src_port().to_be(),
                    dst_port: key.dst_port().to_be(),
                }
            })
            .collect();
        let mut pointers: Vec<*const u8> = acl_keys.iter().map(|key| (&raw const *key).cast()).collect();
        let mut verdicts = vec![Verdict::NO_MATCH; keys.len()];
        let mut results = vec![0; keys.len()];
        let mut cells = Vec::new();
        use Caches::{Others, Own};
        for (burst, caches) in [(1, Others), (32, Others), (256, Others), (32, Own)] {
            let mut best: Option<((f64, f64, f64), &str)> = None;
            // All algorithms that run here, because the fastest depends on burst and CPU. For few keys the vector ones fall back to
            // narrower ones, so the scalar one is the fastest at burst 1.
            for (algorithm, name) in (0..).zip(ALGORITHMS) {
                if !acl.choose(algorithm) {
                    continue;
                }
                acl.classify(&mut pointers, &mut results, burst);
                ours(&tables, &keys, &mut verdicts, burst);
                for ((verdict, &result), &(key, answer)) in verdicts.iter().zip(&results).zip(&trace) {
                    assert_eq!(verdict.rule(), answer, "{set}: ours on {key:?}");
                    assert_eq!((result as usize).checked_sub(1), answer, "{set}: rte_acl on {key:?}");
                }
                let cell = pair(
                    caches,
                    || ours(&tables, &keys, &mut verdicts, burst),
                    || acl.classify(&mut pointers, &mut results, burst),
                    keys.len(),
                );
                if best.is_none_or(|(best, _)| cell.1 < best.1) {
                    best = Some((cell, name));
                }
            }
            let ((ours, theirs, ratio), name) = best.ok_or("not even rte_acl's scalar algorithm runs here")?;
            let own = if caches == Own { "own caches " } else { "" };
            cells.push(format!("{own}b{burst} {ours:5.1}/{theirs:5.1} {name} ({ratio:.2}x)"));
        }
        let (rules_v6, keys_v6) = in_ipv6(&rules, &keys);
        let tables_v6 = Tables::build(rules_v6)?;
        let mut verdicts_v6 = verdicts.clone();
        for burst in [1, 32] {
            ours(&tables_v6, &keys_v6, &mut verdicts_v6, burst);
            assert!(verdicts_v6 == verdicts, "{set}: IPv6 answers differ");
            let (v6, _, ratio) = pair(
                Others,
                || ours(&tables_v6, &keys_v6, &mut verdicts_v6, burst),
                || ours(&tables, &keys, &mut verdicts, burst),
                keys.len(),
            );
            cells.push(format!("IPv6 b{burst} {v6:5.1} ({:.2} times IPv4)", 1.0 / ratio));
        }
        let (build, acl_build) = ((t1 - t0) / 1e9, (t2 - t1) / 1e9);
        println!(
            "{set:16} {} build {build:.4}/{acl_build:.4} ({:.0}x) {} kB",
            cells.join("  "),
            acl_build / build,
            tables.bytes() / 1000
        );
        // SAFETY: not used after this.
        unsafe { bench_acl_free(acl.0) };
    }
    Ok(())
}
