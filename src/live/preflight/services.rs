//! Whether Services are translated, for whoever looks before a start.

use bulkhead_control::source::{self, Options, Strictness, Unenforced};

use super::{Finding, Severity};
use crate::live::config::Config;
use crate::services::{Adapter, OFF};

/// That Services are off, and what that means.
pub(in crate::live) fn off(config: &Config) -> Option<Finding> {
    config.services.is_none().then(|| Finding {
        severity: Severity::Warning,
        what: "Services are off".to_owned(),
        why: OFF.to_owned(),
        remedy: "write `services: {}`, or leave the field out; else let something translate before packets come to the vswitch".to_owned(),
        comes_again: false,
    })
}

/// How much the state's files know of Services; none with an API server, and where they do not load: whoever starts is told that.
pub(in crate::live) fn known(config: &Config) -> Option<Finding> {
    let settings = config.services.clone().filter(|_| config.state.kubernetes.is_none())?;
    let options = &config.state.options;
    let options = Options { strictness: Strictness::Lenient, unenforced: Unenforced::Report, ..options.clone() };
    let loaded = source::load(&config.state.paths, options).ok()?;
    let counts = Adapter::of(config.node.clone(), settings, &loaded.objects).counts();
    Some(Finding {
        severity: Severity::Note,
        what: format!("the state has {counts}"),
        why: "their addresses are translated by the vswitch".to_owned(),
        remedy: "nothing; `services: off` leaves them to something in front of the vswitch".to_owned(),
        comes_again: true,
    })
}
