//! Arguments of `bulkhead sync`.

use clap::Subcommand;

use bulkhead_answers::args::{Format, State};

/// `bulkhead sync`.
#[derive(Debug, clap::Args)]
pub struct Sync {
    /// The system to synchronise.
    #[command(subcommand)]
    pub target: SyncTarget,
}

/// A system that `sync` can write policies to.
#[derive(Debug, Subcommand)]
pub enum SyncTarget {
    /// Synchronise the security groups of an OpenStack Neutron server with the policies
    Neutron(SyncNeutron),
}

/// `bulkhead sync neutron`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    OS_TOKEN=$(openstack token issue -f value -c id) bulkhead sync neutron --state state.yaml --endpoint http://neutron:9696\n\n\
    Changes only groups with the tag bulkhead:NAME, but removes pods' ports from all other groups except those of --keep-group.\n\
    Exit codes: 0 the server matches the policies; 1 it does not, and the output lists what is missing; 2 error: run the same command\n\
    again to continue. docs/neutron.md lists what Neutron cannot express and the order of requests.")]
pub struct SyncNeutron {
    /// State to read.
    #[command(flatten)]
    pub state: State,
    /// URL of the Neutron server: the catalogue's endpoint for `network`
    #[arg(long, value_name = "URL")]
    pub endpoint: String,
    /// Name of the cluster, to tell its groups from those of other clusters in the same project
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = cluster_name)]
    pub cluster: String,
    /// ID of the network to look for ports in; needed if pod addresses occur in several networks
    #[arg(long, value_name = "ID")]
    pub network: Option<String>,
    /// ID of a foreign security group that ports may stay in, even if it allows more than the policies; may be repeated
    #[arg(long = "keep-group", value_name = "ID")]
    pub keep_groups: Vec<String>,
    /// Print the requests without sending them
    #[arg(long)]
    pub dry_run: bool,
    /// Continue even if the server has a newer generation of a policy than the state
    #[arg(long)]
    pub allow_older: bool,
    /// Continue even if the state has no pods: this deletes all groups of the cluster and closes ports that are in no other group
    #[arg(long)]
    pub allow_empty: bool,
    /// Number of retries for a request that gets no answer or a server error
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub retries: u32,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Format,
}

/// Accepts a cluster name of at most 40 characters: with the prefix `bulkhead:` it is a tag, which Neutron limits to 60.
fn cluster_name(text: &str) -> Result<String, String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    if !text.is_empty() && text.len() <= 40 && text.bytes().all(fits) {
        return Ok(text.to_owned());
    }
    Err("a cluster name has 1 to 40 letters, digits, `-` and `.`".to_owned())
}
