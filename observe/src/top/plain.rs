//! `bulkhead top` without a screen: text or lines of JSON.

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::choices::Choices;
use super::picture::{Picture, Tracker};
use super::sample::Sample;
use super::view;
use crate::args;
use bulkhead_answers::args::Format;
use bulkhead_answers::output::{self, told, warn};

/// A picture with its time, printed as a line of JSON.
#[derive(Debug, Serialize)]
struct Told<'a> {
    /// Time of the output, in seconds since 1970.
    time: f64,
    #[serde(flatten)]
    picture: &'a Picture,
}

/// Prints each interval, until `args.count` is reached if given.
///
/// # Errors
/// If the vswitch does not answer in the last interval, or output cannot be written.
pub(super) fn run(args: &args::Top, first: Sample, choices: &Choices) -> anyhow::Result<ExitCode> {
    let mut tracker = Tracker::default();
    tracker.next(first);
    let mut out = output::stdout();
    let mut was_told = 0;
    while args.count.is_none_or(|count| was_told < count) && output::has_reader() {
        std::thread::sleep(args.delay);
        was_told += 1;
        let picture = match Sample::take(&args.socket) {
            Ok(sample) => tracker.next(sample),
            Err(error) if args.count == Some(was_told) => return Err(error),
            // The vswitch may return.
            Err(error) => {
                warn(&told(&error));
                continue;
            }
        };
        write(&mut out, args.output, &picture, choices)?;
        out.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}

fn write(out: &mut impl Write, form: Format, picture: &Picture, choices: &Choices) -> anyhow::Result<()> {
    if form == Format::Json {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64();
        serde_json::to_writer(&mut *out, &Told { time, picture })?;
        writeln!(out)?;
        return Ok(());
    }
    view::text(picture, choices).iter().try_for_each(|line| writeln!(out, "{line}"))?;
    // An empty line between intervals.
    writeln!(out)?;
    Ok(())
}
