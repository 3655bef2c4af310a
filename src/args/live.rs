//! Subcommands that run on Linux only: those about the vswitch of a machine, and `sync`, which changes an external system.

use clap::Subcommand;

use bulkhead_answers::args::Admin;
use bulkhead_cni::args::Cni;
use bulkhead_node::args::{Cleanup, Run};
use bulkhead_observe::args::{
    Audit, Bundle, Capture, Monitor, Names, Reload, Sessions, Status, Tables, Top, Trace, Wait,
};

use super::Sync;

/// A subcommand that runs on Linux only.
#[derive(Debug, Subcommand)]
pub enum LiveCommand {
    /// Synchronise policies to a system that enforces them itself, such as OpenStack
    Sync(Sync),
    /// Run the vswitch: forward a node's traffic and enforce its policies
    Run(Run),
    /// Remove what a vswitch left in the kernel: pinned links and maps, the trunk
    Cleanup(Cleanup),
    /// Show the health of the running vswitch: ports, policy age, sessions, drops, last error
    Status(Status),
    /// List the running vswitch's ports and their traffic counters
    Ports(Admin),
    /// List the ways to other nodes, with the last proof that packets arrive
    #[command(after_help = "Examples:\n  bulkhead nodes\n  bulkhead nodes -o json\n\n\
        Prints for each other node and address family the route or tunnel, its age and MTU, and the last answered probe. A broken way has its\n\
        cause below the table. Exit code 0 if no way is broken, 1 if one is, 2 if no vswitch answers.")]
    Nodes(Admin),
    /// List the addresses that pods have resolved and may reach by rules that name domains
    Names(Names),
    /// List the running vswitch's sessions and the ports with most sessions, or end sessions
    Sessions(Sessions),
    /// List the tables that the running vswitch enforces, or one port's rules
    Tables(Tables),
    /// Show a live screen of the running vswitch: packets, drops, sessions, ports, workers
    Top(Top),
    /// Stream verdicts: new sessions and dropped packets, with the policy that decides
    Monitor(Monitor),
    /// Stream packets, each with its path through port, session, translation, tables and rule
    Trace(Trace),
    /// Write live packets with their verdicts to a pcapng file
    Capture(Capture),
    /// Write the running vswitch's state, tables, journal, counters and configuration to one file for offline analysis
    Bundle(Bundle),
    /// Report what the audited policies of the running vswitch would have denied
    Audit(Audit),
    /// Wait until the running vswitch enforces a policy
    Wait(Wait),
    /// Make the running vswitch re-read its configuration and state now
    Reload(Reload),
    /// Run as CNI plugin for a container runtime, or install the plugin
    Cni(Cni),
}
