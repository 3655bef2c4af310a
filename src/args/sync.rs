//! `bulkhead sync`.

use clap::Subcommand;

use bulkhead_answers::args::{Format, State};

/// `bulkhead sync`.
#[derive(Debug, clap::Args)]
pub struct Sync {
    /// With what.
    #[command(subcommand)]
    pub target: SyncTarget,
}

/// What can be brought up to date.
#[derive(Debug, Subcommand)]
pub enum SyncTarget {
    /// Bring the security groups of an OpenStack Neutron server up to date with the policies
    Neutron(SyncNeutron),
}

/// `bulkhead sync neutron`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    OS_TOKEN=$(openstack token issue -f value -c id) bulkhead sync neutron --state state.yaml --endpoint http://neutron:9696\n\n\
    Groups of this cluster carry the tag bulkhead:NAME; no others are changed, but ports of pods leave groups that are not to be kept.\n\
    Exit codes: 0 the server has what the policies say; 1 it has not, and the output says what is missing; 2 an error, after which the same\n\
    command goes on. docs/neutron.md says what cannot be expressed, and in which order requests are sent.")]
pub struct SyncNeutron {
    /// Where the cluster's state comes from.
    #[command(flatten)]
    pub state: State,
    /// The URL of the server, as the catalogue has it for `network`
    #[arg(long, value_name = "URL")]
    pub endpoint: String,
    /// The cluster's name: several may share a project
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = cluster_name)]
    pub cluster: String,
    /// Look for ports in this network alone: where addresses are in several
    #[arg(long, value_name = "ID")]
    pub network: Option<String>,
    /// A group of somebody else that ports may stay in, though it may open more than the policies; may be repeated
    #[arg(long = "keep-group", value_name = "ID")]
    pub keep_groups: Vec<String>,
    /// Print the requests and send none
    #[arg(long)]
    pub dry_run: bool,
    /// Go on though a later generation of a policy is in force than the state has
    #[arg(long)]
    pub allow_older: bool,
    /// Go on though the state has no pod: all groups of the cluster are deleted, and ports in no other group are closed
    #[arg(long)]
    pub allow_empty: bool,
    /// How often a request is repeated that the server does not answer, or with an error of its own
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub retries: u32,
    /// The form of the answer
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Format,
}

/// With `bulkhead:` before it the name is a tag, of 60 characters at most.
fn cluster_name(text: &str) -> Result<String, String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    if !text.is_empty() && text.len() <= 40 && text.bytes().all(fits) {
        return Ok(text.to_owned());
    }
    Err("up to 40 letters, digits, `-` and `.`".to_owned())
}
