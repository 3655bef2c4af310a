//! `bulkhead test`: verifies claims about a state for all addresses and ports at once.
//!
//! ```text
//!  claims --file--> never, always, only --ends--> addresses --judge--> holds, vacuous, or a witness --report--> text, JSON, JUnit, SARIF
//!  state  --> rules and sets --> reachability --------------------^
//! ```
//! **Invariant.** A claim that cannot be parsed is an error, and a claim that matches no pod or address fails. No claim holds vacuously.

mod ends;
mod file;
mod judge;
mod junit;
mod report;
mod sarif;
mod service;
#[cfg(test)]
pub mod tests;

use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use bulkhead_control::reachability::Reachability;

use crate::args::{State, Test, TestFormat};
use crate::output;
use crate::progress::{self, Unit};
use crate::run::{self, Input};
use report::Report;

/// Prints whether each claim holds. Returns exit code 1 if one fails.
///
/// # Errors
/// If the state or a claims file cannot be read.
pub fn run(args: &Test) -> anyhow::Result<ExitCode> {
    let (state, files) = split(args)?;
    let mut claims = Vec::new();
    for path in &files {
        for claim in file::read(path)? {
            if let Some(other) = claims.iter().find(|other: &&file::Claim| other.name == claim.name) {
                bail!(
                    "{}:{}: the claim name \"{}\" is already used at {}:{}\n  help: give each claim a unique name",
                    claim.file,
                    claim.line,
                    claim.name,
                    other.file,
                    other.line
                );
            }
            claims.push(claim);
        }
    }
    let input = Input::open(&state)?;
    let (pipeline, services) = match claims.iter().any(|claim| claim.to.names_service()) {
        true => run::load_with_services(&input, Some(&args.planned), true)?,
        false => (run::load(&input, Some(&args.planned))?, Vec::new()),
    };
    run::unknown_names(&pipeline).iter().for_each(output::warn);
    let mirror = pipeline.mirror().context("a pipeline without tables has a mirror")?;
    let reachability = Reachability::of(&pipeline, mirror);
    progress::step_of("judging claims", claims.len() as u64, Unit::Count);
    let judge = |claim| {
        let outcome = judge::judge(claim, pipeline.cache(), &reachability, &services);
        progress::advance(1);
        outcome
    };
    let outcomes = claims.iter().map(judge);
    let report = Report::new(&pipeline, claims.iter().zip(outcomes))?;
    let mut out = BufWriter::new(output::stdout());
    match args.output {
        TestFormat::Text => report.write(&mut out)?,
        TestFormat::Json => {
            serde_json::to_writer_pretty(&mut out, &report)?;
            writeln!(out)?;
        }
        TestFormat::Junit => junit::write(&report, &mut out)?,
        TestFormat::Sarif => sarif::write(&report, &mut out)?,
    }
    out.flush()?;
    Ok(ExitCode::from(u8::from(report.passed != report.claims.len())))
}

/// Splits the arguments into the state and claims files. `--state` takes all following paths, so its last path is the claims file if none
/// is given separately.
fn split(args: &Test) -> anyhow::Result<(State, Vec<PathBuf>)> {
    let (mut state, mut files) = (args.state.clone(), args.claims.clone());
    if files.is_empty() && state.paths.len() > 1 {
        files.extend(state.paths.pop());
    }
    if files.is_empty() {
        bail!("no claims file given\n  help: pass it last: bulkhead test --state STATE claims.yaml");
    }
    Ok((state, files))
}
