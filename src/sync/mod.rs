//! `bulkhead sync`: brings a system that enforces policy itself up to date.

mod neutron;

use std::process::ExitCode;

use crate::args::{Sync, SyncTarget};

pub(crate) fn run(args: &Sync) -> anyhow::Result<ExitCode> {
    match &args.target {
        SyncTarget::Neutron(args) => neutron::run(args),
    }
}
