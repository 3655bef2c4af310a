//! Checks what this version can take over from the vswitch that runs, or ran, on the node, before an update or downgrade.

use bulkhead_dataplane::SessionStore;
use bulkhead_dataplane::io::has_another_layout;

use super::{Finding, Severity};
use crate::config::{Attach, Config};

/// Returns the findings about what another version has left, or would leave at its end.
pub(crate) fn check(config: &Config) -> Vec<Finding> {
    let has_flows = config.attach == Attach::Tc && config.pins.path().is_some_and(has_another_layout);
    let has_sessions = config.sessions.folder.as_deref().is_some_and(SessionStore::has_another_version);
    judge(has_flows, has_sessions, config.sessions.settings().tcp_pickup)
}

/// Returns the findings, given whether flows in the kernel and stored sessions are of another version, and whether this one picks up
/// established TCP connections.
fn judge(has_flows: bool, has_sessions: bool, picks_up: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    if has_flows && !has_sessions {
        findings.push(Finding {
            severity: Severity::Note,
            what: "the flows in the kernel are those of another version, which this one does not take over".to_owned(),
            why: "packets may be lost while this one attaches to the interfaces; then connections go on, as it adopts their sessions"
                .to_owned(),
            remedy: "nothing: TCP repeats lost packets".to_owned(),
            comes_again: false,
        });
    }
    if has_sessions {
        let (severity, why, remedy) = if picks_up {
            let why = "TCP connections that policy allows go on (tcp_pickup), but connections to Services may reach another endpoint";
            (Severity::Note, why, "nothing, if connections to Services may end")
        } else {
            let why = "established TCP connections end when this one takes over: they have no session, and only a SYN starts one";
            let remedy = "update the node while its connections may end (kubectl drain), or set sessions.tcp_pickup: true for the first \
                          start of this version: TCP connections that policy allows then go on";
            (Severity::Warning, why, remedy)
        };
        findings.push(Finding {
            severity,
            what: "the stored sessions are those of another version, in a format that this one does not read"
                .to_owned(),
            why: why.to_owned(),
            remedy: remedy.to_owned(),
            comes_again: false,
        });
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_at_an_update_is_a_warning_and_what_goes_on_a_note() {
        let severities = |has_flows, has_sessions, picks_up| -> Vec<_> {
            judge(has_flows, has_sessions, picks_up).iter().map(|finding| finding.severity).collect()
        };
        assert_eq!(severities(false, false, false), []);
        assert_eq!(severities(true, false, false), [Severity::Note]);
        assert_eq!(severities(true, true, false), [Severity::Warning]);
        assert_eq!(severities(false, true, true), [Severity::Note]);
    }
}
