//! Decides whether an added port is served, and otherwise names what it waits for.

use bulkhead_control::attachments::Standing;
use bulkhead_dataplane::PortConfig;

use crate::interfaces::{PortState, PortStatus};

/// The facts that decide whether a port is served.
pub(super) struct Facts<'a> {
    /// The interface's status. `None` until the interfaces thread knows the port.
    pub(super) status: Option<&'a PortStatus>,
    /// Whether policy knows the pod, or why not. `None` until the policy thread has received the port.
    pub(super) standing: Option<&'a Standing>,
    /// The port in the snapshot in force. `None` if the snapshot lacks it.
    pub(super) port: Option<&'a PortConfig>,
    /// Whether a newer change could not be published, and is retried.
    pub(super) is_refused: bool,
}

/// Whether a port is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Serving {
    /// The container's first packet will be judged by the policies that select its pod.
    Served,
    /// The port must stay closed, for this reason.
    Never(String),
    /// The port is not served yet: what it waits for.
    Waits(Vec<String>),
}

impl Facts<'_> {
    pub(super) fn judge(&self) -> Serving {
        let mut waits = Vec::new();
        if let Some(kept_closed) = self.status.and_then(|status| status.added.as_ref()?.kept_closed.as_ref()) {
            return Serving::Never(kept_closed.to_string());
        }
        waits.extend(self.interface());
        waits.extend(
            self.standing.map_or_else(|| Some("not in force: its policy is being compiled".to_owned()), lacking),
        );
        if waits.is_empty() && (self.is_refused || !self.port.is_some_and(has_all)) {
            waits.push("not in force: the change is not published yet".to_owned());
        }
        if waits.is_empty() { Serving::Served } else { Serving::Waits(waits) }
    }

    fn interface(&self) -> Option<String> {
        let Some(PortStatus { interface, state, why, .. }) = self.status else {
            return Some("not in force: its interface is being taken over".to_owned());
        };
        let why = why.as_deref().map(in_one_line);
        let why = why.as_deref();
        match state {
            PortState::Open => None,
            PortState::Absent => Some(format!("no interface: {interface} does not exist")),
            PortState::Closed | PortState::Unprotected => {
                Some(format!("not in force: the port {}", why.unwrap_or("is being opened")))
            }
        }
    }
}

/// Returns the first line of `why`, the reason why a port is closed, with its remedy in parentheses.
fn in_one_line(why: &str) -> String {
    let first = why.lines().next().unwrap_or_default();
    match why.lines().find_map(|line| line.trim_start().strip_prefix("help: ")) {
        Some(help) => format!("{first} ({help})"),
        None => first.to_owned(),
    }
}

/// Whether packets from and to the port are judged: it is open, and has a table and addresses.
fn has_all(port: &PortConfig) -> bool {
    port.link.is_some() && port.table().is_some() && !port.addresses.is_empty()
}

/// Returns why policy cannot apply to the pod yet, by its Kubernetes object. `None` if policy knows the pod.
fn lacking(standing: &Standing) -> Option<String> {
    Some(match standing {
        Standing::Known => return None,
        Standing::Unknown => "the pod's object is not known yet".to_owned(),
        Standing::OtherPod => {
            "the pod's object is not known yet: the known object is of another pod with the same name".to_owned()
        }
        Standing::OtherNode(Some(node)) => {
            format!("the pod's object does not name this node yet, but {node}")
        }
        Standing::OtherNode(None) => "the pod's object does not name a node yet".to_owned(),
        Standing::HostNetwork => "the pod's object says that it uses the host network".to_owned(),
        Standing::Finished => "the pod's object says that it has ended".to_owned(),
        Standing::NoAddress => "the pod's object has no address yet, and none was given".to_owned(),
        Standing::Contested(address) => {
            format!("{address} is the address of another pod or of a node, according to their objects")
        }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bulkhead_dataplane::{Link, PortKind, TableId};

    use super::*;
    use crate::config::Added;
    use crate::ports::registry::tests::asked;

    fn status(state: PortState) -> PortStatus {
        let key = Arc::new(asked("one", "x/a", "v1", &[]).key());
        PortStatus {
            name: "x/a".into(),
            kind: PortKind::Pod,
            interface: "v1".into(),
            added: Some(Added { key, number: 1, kept_closed: None }),
            state,
            why: None,
        }
    }

    fn port() -> PortConfig {
        let mut port = PortConfig::new("x/a", PortKind::Pod);
        port.link = Some(Link { mac: [2; 6], mtu: 1500 });
        port.egress = Some(TableId(0));
        port.addresses = vec!["10.0.0.1".parse().unwrap()];
        port
    }

    fn waits(facts: &Facts<'_>) -> String {
        match facts.judge() {
            Serving::Waits(waits) => waits.join("; "),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn a_port_is_served_when_it_is_open_its_pod_known_and_both_in_force() {
        let (open, port) = (status(PortState::Open), port());
        let served =
            || Facts { status: Some(&open), standing: Some(&Standing::Known), port: Some(&port), is_refused: false };
        assert_eq!(served().judge(), Serving::Served);
        assert!(waits(&Facts { is_refused: true, ..served() }).contains("not in force"));
        assert!(waits(&Facts { port: None, ..served() }).contains("not in force"));
        for lacks in [
            |port: &mut PortConfig| port.link = None,
            |port: &mut PortConfig| port.egress = None,
            |port: &mut PortConfig| port.addresses.clear(),
        ] {
            let mut port = port.clone();
            lacks(&mut port);
            assert!(waits(&Facts { port: Some(&port), ..served() }).contains("not in force"));
        }
    }

    #[test]
    fn all_that_a_port_waits_for_is_told() {
        let (absent, port) = (status(PortState::Absent), port());
        let facts =
            Facts { status: Some(&absent), standing: Some(&Standing::Unknown), port: Some(&port), is_refused: false };
        assert_eq!(waits(&facts), "no interface: v1 does not exist; the pod's object is not known yet");
        let closed = PortStatus { why: Some("cannot be opened: x\nhelp: y".into()), ..status(PortState::Closed) };
        let facts = Facts { status: Some(&closed), standing: Some(&Standing::OtherPod), ..facts };
        let told = waits(&facts);
        assert!(
            told.starts_with("not in force: the port cannot be opened: x (y); the pod's object is not known yet: "),
            "{told}"
        );
        let nothing = Facts { status: None, standing: None, port: None, is_refused: false };
        assert_eq!(waits(&nothing).matches("not in force").count(), 2);
        let mut older = status(PortState::Closed);
        older.added.as_mut().unwrap().kept_closed = Some("is closed: a newer one".into());
        let facts = Facts { status: Some(&older), ..nothing };
        assert_eq!(facts.judge(), Serving::Never("is closed: a newer one".into()));
    }
}
