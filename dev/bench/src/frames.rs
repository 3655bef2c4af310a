//! `bulkhead-bench frames`: raw frames through workers with AF_XDP sockets on the pods' interfaces (`attach: xdp`), compared with other
//! forwarding paths on the same veths.
//! ```text
//!   [ gen: eth0 ]--[ hA   node: the path that is measured   hB ]--[ sink: eth0 ]     packets counted on arrival
//!    core 0: generator          core 1: worker
//! ```
//!
//! Four paths through the node are measured in turns of a few seconds, so that other load on the machine affects all of them:
//!
//! * `pipeline`: the vswitch, with a policy of 1,000 rules and established sessions;
//! * `flow_cache`: the same, with packets of established sessions forwarded in the kernel (`flow_cache: true`);
//! * `bare`: AF_XDP sockets and a loop that moves frames;
//! * `kernel`: routing, with the same policy in nftables and connection tracking. Measured once as it is and once with receive processing
//!   on the worker's core (RPS); the faster counts.
//!
//! TCP is measured with one iperf3 flow through the vswitch, the bare loop and a kernel bridge, with the same offloads. The vswitch has a
//! worker on each core, because a bridge runs on whichever core sends. With one worker (`pipeline_one_worker`, for comparison), its core
//! also runs both pods' TCP, since the kernel receives a socket's packets within the send call. Results are ratios: medians over the
//! rounds' pairs.

mod lab;
pub(crate) mod packets;
mod paths;
mod tcp;

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use bulkhead_dataplane::io::cores;
use serde_json::{Map, Value, json};

use crate::args::{Format, Frames};
use crate::policy;
use lab::Lab;
use paths::Path;

/// Rates of each path, one per round: packets per second, or bits per second.
type Rates = Vec<(Path, Vec<f64>)>;

pub(crate) fn run(args: &Frames) -> anyhow::Result<ExitCode> {
    let cores = cores()?;
    let seconds = Duration::from_secs(u64::from(args.seconds.max(1)));
    let mut paths = Vec::new();
    for (wanted, path) in [
        (args.bare, Path::Bare),
        (args.pipeline, Path::Pipeline),
        (args.flow_cache, Path::FlowCache),
        (args.kernel, Path::Kernel),
    ] {
        paths.extend(wanted.then_some(path));
    }
    let all = paths.is_empty() && !args.tcp;
    if all {
        paths = vec![Path::Pipeline, Path::FlowCache, Path::Bare, Path::Kernel, Path::KernelRps];
    } else if args.kernel {
        paths.push(Path::KernelRps);
    }
    let mut report = Map::new();
    report.insert("rules".into(), policy::RULES.into());
    report.insert("flows".into(), packets::FLOWS.into());
    report.insert("rounds".into(), args.rounds.into());
    if !paths.is_empty() {
        let rates = measure(&paths, args.rounds, |path| paths::measure(&Lab::new()?, path, cores, seconds))?;
        report.insert("packets_per_second".into(), medians(&rates));
        report.insert("ratios".into(), ratios(&rates));
    }
    if all || args.tcp {
        let paths = [Path::Pipeline, Path::OneWorker, Path::FlowCache, Path::Bare, Path::Kernel];
        let rates = measure(&paths, args.rounds, |path| tcp::measure(&Lab::new()?, path, cores, seconds))?;
        report.insert("tcp_bits_per_second".into(), medians(&rates));
        report.insert("tcp_ratios".into(), ratios(&rates));
    }
    let mut out = std::io::stdout().lock();
    match args.output {
        Format::Json => writeln!(out, "{}", Value::Object(report))?,
        Format::Text => {
            for (name, value) in &report {
                writeln!(out, "{name}: {value}")?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the cores of the generator and the worker. On a single core the measurement would be meaningless.
fn cores() -> anyhow::Result<[usize; 2]> {
    match cores::usable().as_slice() {
        [one, other, ..] => Ok([*one, *other]),
        _ => anyhow::bail!("this needs two cores, one for the generator and one for the worker"),
    }
}

/// Measures all paths in turns, as many times as there are rounds.
fn measure(paths: &[Path], rounds: u32, mut once: impl FnMut(Path) -> anyhow::Result<f64>) -> anyhow::Result<Rates> {
    let mut rates: Rates = paths.iter().map(|&path| (path, Vec::new())).collect();
    for _ in 0..rounds.max(1) {
        for (path, rates) in &mut rates {
            rates.push(once(*path)?);
        }
    }
    Ok(rates)
}

fn medians(rates: &Rates) -> Value {
    let named = rates.iter().map(|(path, rates)| (path.name().to_owned(), json!(median(rates.clone()).round())));
    Value::Object(named.collect())
}

/// Returns the ratios of the pipeline, with and without flow cache, to each other path: medians of the rounds' ratios. The faster of the
/// two kernel paths counts.
fn ratios(rates: &Rates) -> Value {
    let of = |wanted: Path| rates.iter().find(|(path, _)| *path == wanted).map(|(_, rates)| rates);
    let kernel = match (of(Path::Kernel), of(Path::KernelRps)) {
        (Some(one), Some(other)) => Some(one.iter().zip(other).map(|(one, other)| one.max(*other)).collect()),
        (one, other) => one.or(other).cloned(),
    };
    let others: [(&str, Option<Vec<f64>>); 2] = [("bare", of(Path::Bare).cloned()), ("kernel", kernel)];
    let mut ratios = Map::new();
    for ours in [Path::Pipeline, Path::FlowCache] {
        for (name, theirs) in &others {
            let (Some(ours_rates), Some(theirs)) = (of(ours), theirs) else { continue };
            let pairs = ours_rates.iter().zip(theirs).map(|(ours, theirs)| ours / theirs.max(1.0));
            let ratio = (median(pairs.collect()) * 1000.0).round() / 1000.0;
            ratios.insert(format!("{}/{name}", ours.name()), json!(ratio));
        }
    }
    Value::Object(ratios)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_medians_of_pairs_and_the_better_kernel_counts() {
        let rates = vec![
            (Path::Pipeline, vec![90.0, 100.0, 10.0]),
            (Path::FlowCache, vec![200.0, 200.0, 20.0]),
            (Path::Bare, vec![100.0, 100.0, 10.0]),
            (Path::Kernel, vec![30.0, 80.0, 1.0]),
            (Path::KernelRps, vec![45.0, 10.0, 2.0]),
        ];
        assert_eq!(
            ratios(&rates),
            json!({
                "pipeline/bare": 1.0, "pipeline/kernel": 2.0, "flow_cache/bare": 2.0, "flow_cache/kernel": 4.444
            })
        );
        assert_eq!(medians(&rates)["kernel"], 30.0);
        assert_eq!((median(vec![]), median(vec![3.0, 1.0])), (0.0, 2.0));
    }
}
