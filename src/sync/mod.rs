//! `bulkhead sync`: synchronises policies to a system that enforces them itself.

mod neutron;

use std::process::ExitCode;

use crate::args::{Sync, SyncTarget};

pub(crate) fn run(args: &Sync) -> anyhow::Result<ExitCode> {
    match &args.target {
        SyncTarget::Neutron(args) => neutron::run(args),
    }
}
