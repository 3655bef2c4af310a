//! The subcommands about a machine that has a vswitch or shall have one, and the one that changes another system. Builds for other systems
//! than Linux lack them.

use clap::Subcommand;

use bulkhead_answers::args::Admin;
use bulkhead_cni::args::Cni;
use bulkhead_node::args::{Cleanup, Run};
use bulkhead_observe::args::{Audit, Bundle, Capture, Monitor, Reload, Sessions, Status, Tables, Top, Trace, Wait};

use super::Sync;

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum LiveCommand {
    /// Bring a system that enforces policy itself up to date: OpenStack's security groups
    Sync(Sync),
    /// Forward a node's traffic and enforce its policy: the live vswitch
    Run(Run),
    /// Remove what a vswitch has left in the kernel: pinned links and maps, the trunk
    Cleanup(Cleanup),
    /// Show how the running vswitch is: what is up, what is late, the last error
    Status(Status),
    /// List the running vswitch's ports and what went through them
    Ports(Admin),
    /// List the running vswitch's sessions, and who has most of them
    Sessions(Sessions),
    /// List the tables that the running vswitch enforces, or one port's rules
    Tables(Tables),
    /// Show what the running vswitch does, on a screen that is drawn anew each second: packets, drops, sessions, ports, workers
    Top(Top),
    /// Show verdicts as they come: new sessions, and packets that are dropped, with the policy that decides
    Monitor(Monitor),
    /// Show packets as they come, each with its walk through ports, session, translation, tables and rule
    Trace(Trace),
    /// Write packets as they come into a pcapng, with their verdicts
    Capture(Capture),
    /// Write one file with state, tables, journal, counters and configuration of the running vswitch, to ask elsewhere
    Bundle(Bundle),
    /// Say what audited policies of the running vswitch, which are not enforced, would have denied
    Audit(Audit),
    /// Wait until the running vswitch enforces a policy
    Wait(Wait),
    /// Have the running vswitch look at its configuration and its state now
    Reload(Reload),
    /// Wire pods for a container runtime: the CNI plugin, and its installation
    Cni(Cni),
}
