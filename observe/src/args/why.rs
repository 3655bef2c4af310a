//! Arguments of `bulkhead why` and `bulkhead bundle`.

use std::path::PathBuf;
use std::time::Duration;

use bulkhead_answers::args::DEFAULT_SOCKET;
use bulkhead_answers::args::{Asked, Format};

/// `bulkhead why`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  bulkhead why --from shop/web --to shop/db --port 5432 --at 14:32\n  \
    bulkhead why --from shop/web --to service/shop/db --at '20m ago' -o json\n  \
    bulkhead why --bundle node-1.tgz --from shop/web --to shop/db --port 5432 --at 2026-11-24T14:32:00Z\n\n\
    Explains the connection, like `explain`, with the state in force at that time; then lists traffic observed around that time, changes\n\
    since, and the verdict now. Times without a zone are UTC. A time of day is its latest occurrence before now, or before the end of\n\
    the file.\n\n\
    Exit code 0 if the connection was allowed at that time, 1 if not, 2 if unknown.")]
pub struct Why {
    /// The connection.
    #[command(flatten)]
    pub asked: Asked,
    /// Time to ask about.
    #[arg(
        long,
        value_name = "TIME",
        help = "Time to ask about: 14:32, 14:32:07.5, 2026-11-24T14:32:00Z, 2026-11-24T15:32:00+01:00, or how long ago: 10m"
    )]
    pub at: String,
    /// Show observed traffic from this long before the time until this long after it
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = humantime::parse_duration)]
    pub around: Duration,
    /// Read this journal file instead of a running vswitch's
    #[arg(long, value_name = "FILE", conflicts_with = "bundle")]
    pub journal: Option<PathBuf>,
    /// Read the journal in this bundle
    #[arg(long, value_name = "FILE")]
    pub bundle: Option<PathBuf>,
    /// Admin socket of the running vswitch
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET, conflicts_with_all = ["journal", "bundle"])]
    pub socket: PathBuf,
    /// Format of the answer on standard output
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Format,
}

/// `bulkhead bundle`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  bulkhead bundle\n  bulkhead bundle --output /tmp/node-1.tgz\n  \
    bulkhead explain --state node-1.tgz --from shop/web --to shop/db --port 5432\n\n\
    Writes a gzipped tar with the vswitch's state, tables, journal, counters, configuration and version. Commands that read a state, such\n\
    as `replay` and `explain`, accept it as --state, and `why` as --bundle. It contains names, labels and addresses of the cluster, but no\n\
    secrets, environment variables or annotations: the vswitch does not read those.")]
pub struct Bundle {
    /// Admin socket of the running vswitch
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// File to write; `-` for standard output. Default: bulkhead-NODE-TIME.tgz in the current folder
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}
