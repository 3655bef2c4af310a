//! What is asked of the flight recorder.

use std::path::PathBuf;
use std::time::Duration;

use bulkhead_answers::args::DEFAULT_SOCKET;
use bulkhead_answers::args::{Asked, Format};

/// `bulkhead why`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  bulkhead why --from shop/web --to shop/db --port 5432 --at 14:32\n  \
    bulkhead why --from shop/web --to service/shop/db --at '20m ago' -o json\n  \
    bulkhead why --bundle node-1.tgz --from shop/web --to shop/db --port 5432 --at 2026-11-24T14:32:00Z\n\n\
    The answer is that of `explain` for the state that was in force at that time; then what was seen around it, what has changed since, and\n\
    the verdict now. Times are UTC, unless they say otherwise. A time of day is the last one that has been; of a file, before its end.\n\n\
    Exit code 0 when the connection was allowed then, 1 when it was not; 2 when that is not known.")]
pub struct Why {
    /// Which connection.
    #[command(flatten)]
    pub asked: Asked,
    /// When
    #[arg(
        long,
        value_name = "TIME",
        help = "When: 14:32, 14:32:07.5, 2026-11-24T14:32:00Z, 2026-11-24T15:32:00+01:00, or how long ago: 10m"
    )]
    pub at: String,
    /// What was seen is shown from so long before that time until so long after it
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = humantime::parse_duration)]
    pub around: Duration,
    /// Ask this journal instead of a running vswitch's
    #[arg(long, value_name = "FILE", conflicts_with = "bundle")]
    pub journal: Option<PathBuf>,
    /// Ask the journal in this bundle
    #[arg(long, value_name = "FILE")]
    pub bundle: Option<PathBuf>,
    /// The running vswitch's admin socket
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET, conflicts_with_all = ["journal", "bundle"])]
    pub socket: PathBuf,
    /// The form of the answer
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Format,
}

/// `bulkhead bundle`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  bulkhead bundle\n  bulkhead bundle --output /tmp/node-1.tgz\n  \
    bulkhead explain --state node-1.tgz --from shop/web --to shop/db --port 5432\n\n\
    One gzipped tar with what is needed to answer elsewhere what this vswitch would: state, tables, journal, counters, configuration and\n\
    version. `replay`, `explain` and all others that read a state take it as --state, `why` as --bundle. It holds names, labels and addresses\n\
    of the cluster; secrets, environments and annotations are not in it, as the vswitch knows none.")]
pub struct Bundle {
    /// The running vswitch's admin socket
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// The file that is written; `-` for standard output. Without it bulkhead-NODE-TIME.tgz in this folder
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}
