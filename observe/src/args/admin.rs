//! What is asked of a running vswitch.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use bulkhead_answers::args::Admin;
use bulkhead_answers::args::DEFAULT_SOCKET;

/// `bulkhead status`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  bulkhead status\n  bulkhead status --wait --timeout 30s && echo forwarding\n\n\
    Exit code 0 when it is ready, 1 when it is not; 2 when no vswitch answers.")]
pub struct Status {
    /// Which vswitch, and how.
    #[command(flatten)]
    pub admin: Admin,
    /// Wait until it is ready
    #[arg(long)]
    pub wait: bool,
    /// How long to wait
    #[arg(long, value_name = "TIME", default_value = "60s", requires = "wait", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
}

/// `bulkhead sessions`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  bulkhead sessions\n  bulkhead sessions --port default/db --service 6379\n  bulkhead sessions --limit 0\n  \
    bulkhead sessions --kill --address 10.244.1.7\n\n\
    Below the list are the ports that have most of the sessions that match. A session that is ended is over for the vswitch alone: its\n\
    next packet is judged as the first one of a new session, and one of the middle of a TCP connection is dropped."
)]
pub struct Sessions {
    /// Which vswitch, and how.
    #[command(flatten)]
    pub admin: Admin,
    /// Only those of this port, whichever side it is
    #[arg(long, value_name = "NAME")]
    pub port: Option<String>,
    /// Only those of this address, whichever side it is
    #[arg(long, value_name = "IP")]
    pub address: Option<IpAddr>,
    /// Only those to this destination port
    #[arg(long, value_name = "PORT")]
    pub service: Option<u16>,
    /// The most that are listed; 0 for their number alone
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub limit: usize,
    /// End those that match, however many there are, instead of listing them
    #[arg(long)]
    pub kill: bool,
    /// With --kill, all sessions of the node where nothing else says which
    #[arg(long, requires = "kill", conflicts_with_all = ["port", "address", "service"])]
    pub all: bool,
}

/// `bulkhead tables`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  bulkhead tables\n  bulkhead tables --port default/db\n\n\
    A port's table says what may be sent to it and where from; compile prints the same of a state without a vswitch.")]
pub struct Tables {
    /// Which vswitch, and how.
    #[command(flatten)]
    pub admin: Admin,
    /// Only this port's table, with its rules
    #[arg(long, value_name = "NAME")]
    pub port: Option<String>,
}

/// `bulkhead audit`.
#[derive(Debug, clap::Args)]
pub struct Audit {
    /// What is wanted.
    #[command(subcommand)]
    pub action: AuditAction,
}

/// What `bulkhead audit` does.
#[derive(Debug, clap::Subcommand)]
pub enum AuditAction {
    /// Say what would break if the audited policies of the running vswitch were enforced
    #[command(after_help = "Examples:\n  bulkhead audit report\n  bulkhead audit report -o json\n\n\
        A policy is audited by the annotation bulkhead.dev/enforcement: audit, its own or its namespace's, or by `enforcement: audit` in the\n\
        configuration (docs/audit.md). For each: since when, how many connections it would have denied, and for how long none came.\n\
        Exit code 0 when nothing would break, 1 when something would; 2 when no vswitch answers.")]
    Report(Admin),
}

/// `bulkhead reload`.
#[derive(Debug, clap::Args)]
pub struct Reload {
    /// The vswitch's admin socket
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
}
