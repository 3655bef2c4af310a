//! Arguments of `bulkhead top`.

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
    Rates cover the last interval. Press ? on the screen for a list of keys. If standard input or output is not a terminal, or with -n\n\
    or -o json, prints each interval as text or as one line of JSON. Exit code 2 if no vswitch answers."
)]
pub struct Top {
    /// Admin socket of the vswitch
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Refresh interval in seconds, 0.2 to 3600
    #[arg(short, long = "delay", value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub delay: Duration,
    /// Stop after N intervals; prints text instead of a screen
    #[arg(short = 'n', long = "number", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Order of ports: highest value first, or by name
    #[arg(long, value_enum, value_name = "COLUMN", default_value = "packets")]
    pub sort: PortOrder,
    /// Show only ports whose name contains TEXT
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub port: String,
    /// Output format; json prints one line per interval
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Format,
}

/// Sort key of the ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PortOrder {
    /// Packets per second, received and sent.
    Packets,
    /// Bits per second, received and sent.
    Bits,
    /// Drops per second, then total drops.
    Drops,
    /// Number of sessions.
    Sessions,
    /// Port name, ascending.
    Name,
}

/// Parses an interval. The vswitch caches its status for 100 ms, so shorter intervals would show no rates.
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
