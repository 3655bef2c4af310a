//! A live screen of a running vswitch.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

use bulkhead_answers::args::DEFAULT_SOCKET;
use bulkhead_answers::args::Format;

/// `bulkhead top`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  bulkhead top\n  bulkhead top -d 5 --sort drops --port shop/\n  bulkhead top -n 3 -d 1 | cat\n  \
    bulkhead top -n 1 -o json | jq .dropped\n\n\
    Rates are those of the last interval. On the screen ? lists the keys. Where standard input or output is no terminal, and with\n\
    -n or -o json, each interval is told as text, or as a line of JSON. Exit code 2 when no vswitch answers."
)]
pub struct Top {
    /// The vswitch's admin socket
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Seconds of an interval, 0.2 to 3600
    #[arg(short, long = "delay", value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub delay: Duration,
    /// End after so many intervals; no screen
    #[arg(short = 'n', long = "number", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// The ports' order: the most first, or by their names
    #[arg(long, value_enum, value_name = "COLUMN", default_value = "packets")]
    pub sort: PortOrder,
    /// Only ports in whose name this is
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub port: String,
    /// The form of the answer; json is a line for each interval
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Format,
}

/// What ports are ordered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PortOrder {
    /// Packets a second, both ways.
    Packets,
    /// Bits a second, both ways.
    Bits,
    /// Drops a second, then drops in all.
    Drops,
    /// Sessions.
    Sessions,
    /// Their names.
    Name,
}

/// An interval: the vswitch tells the same again within 100 ms, so that shorter ones would have no rate.
fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is no number of seconds"))?;
    if !(0.2..=3600.0).contains(&seconds) {
        return Err("an interval has 0.2 to 3600 seconds".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_as_long_as_people_and_the_vswitch_bear() {
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "0.1", "-1", "NaN", "inf", "3601", "1s", ""] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
