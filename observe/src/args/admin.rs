//! Arguments of `bulkhead status`, `sessions`, `tables`, `audit` and `reload`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use bulkhead_answers::args::Admin;
use bulkhead_answers::args::DEFAULT_SOCKET;

/// `bulkhead status`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  bulkhead status\n  bulkhead status --wait --timeout 30s && echo forwarding\n\n\
    Exit code 0 if the vswitch is ready, 1 if not, 2 if no vswitch answers.")]
pub struct Status {
    /// The vswitch to query and the output format.
    #[command(flatten)]
    pub admin: Admin,
    /// Wait until the vswitch is ready
    #[arg(long)]
    pub wait: bool,
    /// Timeout of --wait
    #[arg(long, value_name = "TIME", default_value = "60s", requires = "wait", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
}

/// `bulkhead sessions`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  bulkhead sessions\n  bulkhead sessions --port default/db --service 6379\n  bulkhead sessions --limit 0\n  \
    bulkhead sessions --kill --address 10.244.1.7\n\n\
    The list ends with the ports that have the most matching sessions. --kill removes sessions from the vswitch only: the next packet of\n\
    such a connection must be allowed as a new session, and a mid-stream TCP packet is dropped."
)]
pub struct Sessions {
    /// The vswitch to query and the output format.
    #[command(flatten)]
    pub admin: Admin,
    /// Only sessions of this port, on either side
    #[arg(long, value_name = "NAME")]
    pub port: Option<String>,
    /// Only sessions of this address, on either side
    #[arg(long, value_name = "IP")]
    pub address: Option<IpAddr>,
    /// Only sessions to this destination port
    #[arg(long, value_name = "PORT")]
    pub service: Option<u16>,
    /// Maximum number of sessions to list; 0 to only count them
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub limit: usize,
    /// End all matching sessions instead of listing them
    #[arg(long)]
    pub kill: bool,
    /// With --kill and no filter: end all sessions of the node
    #[arg(long, requires = "kill", conflicts_with_all = ["port", "address", "service"])]
    pub all: bool,
}

/// `bulkhead names`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  bulkhead names\n  bulkhead names --pod shop/agent\n  bulkhead names --name api.example.com -o json\n\n\
    Lists the addresses to which pods may open connections by rules that name domains (docs/names.md): the name in the question,\n\
    an address from the answer, and how long new connections to it are allowed. Exit code 2 if no vswitch answers."
)]
pub struct Names {
    /// The vswitch to query and the output format.
    #[command(flatten)]
    pub admin: Admin,
    /// Only addresses that this pod has learned
    #[arg(long, value_name = "NAMESPACE/POD")]
    pub pod: Option<String>,
    /// Only addresses of this domain name
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Maximum number of addresses to list; 0 for the numbers only
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub limit: usize,
}

/// `bulkhead tables`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  bulkhead tables\n  bulkhead tables --port default/db\n\n\
    A port's table lists which sources may send what to the port. `bulkhead compile` prints the same for a state, without a vswitch.")]
pub struct Tables {
    /// The vswitch to query and the output format.
    #[command(flatten)]
    pub admin: Admin,
    /// Print the rules of the table with this name only, as listed without this option
    #[arg(long, value_name = "NAME")]
    pub port: Option<String>,
}

/// `bulkhead audit`.
#[derive(Debug, clap::Args)]
pub struct Audit {
    /// The action.
    #[command(subcommand)]
    pub action: AuditAction,
}

/// Actions of `bulkhead audit`.
#[derive(Debug, clap::Subcommand)]
pub enum AuditAction {
    /// Report what would break if the running vswitch enforced its audited policies
    #[command(after_help = "Examples:\n  bulkhead audit report\n  bulkhead audit report -o json\n\n\
        A policy is audited by the annotation bulkhead.dev/enforcement: audit, its own or its namespace's, or by `enforcement: audit` in the\n\
        configuration (docs/audit.md). Prints for each policy the start of the audit, the connections it would have denied, and the last one.\n\
        Exit code 0 if enforcing would break nothing, 1 if it would, 2 if no vswitch answers.")]
    Report(Admin),
}

/// `bulkhead reload`.
#[derive(Debug, clap::Args)]
pub struct Reload {
    /// Admin socket of the vswitch
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
}
