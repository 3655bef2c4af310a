//! The vswitch's admin socket, as the plugin uses it. `docs/admin.md` describes the requests.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::attachment::Attachment;
use super::error::{Code, Error};
use bulkhead_observe::admin::{AddPort, AskError, CheckedPort, PortKey, Request, exchange};

/// Timeout of requests that the vswitch answers immediately.
const PROMPT: Duration = Duration::from_secs(10);

/// Extra time beyond the vswitch's own timeout, so that its answer, which names what it waited for, arrives first.
const MARGIN: Duration = Duration::from_secs(5);

/// Attempts of `add_port` if the connection ends without an answer. At its limit of connections the vswitch closes the oldest one; the
/// request is idempotent.
const TRIES: usize = 3;

/// A vswitch, addressed by its admin socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Daemon<'a> {
    pub(super) socket: &'a Path,
}

impl From<&Attachment> for PortKey {
    fn from(attachment: &Attachment) -> Self {
        let Attachment { container, interface, .. } = attachment.clone();
        Self { container, container_interface: interface }
    }
}

/// The fields of the vswitch's status that the plugin reads.
#[derive(Debug, Deserialize)]
pub(super) struct Health {
    pub(super) ready: bool,
    pub(super) denying: bool,
}

impl Daemon<'_> {
    /// Checks that the vswitch accepts connections. Requests do not reuse this connection: an idle one would be closed first when many pods
    /// start at once.
    pub(super) fn is_there(&self) -> Result<(), AskError> {
        std::os::unix::net::UnixStream::connect(self.socket)
            .map(drop)
            .map_err(|source| AskError::Unreachable { socket: self.socket.to_owned(), source })
    }

    /// Opens a port, and waits until the pod's policy is enforced there.
    pub(super) fn add_port(&self, port: AddPort) -> Result<(), AskError> {
        let patience = Duration::from_secs(port.timeout_seconds) + MARGIN;
        let request = Request::AddPort(port);
        let mut tries = 1;
        loop {
            match exchange(self.socket, &request, patience) {
                Err(AskError::Ended { .. }) if tries < TRIES => tries += 1,
                outcome => return outcome.map(drop),
            }
        }
    }

    /// Removes a port. Succeeds if the vswitch does not have it.
    pub(super) fn remove_port(&self, key: PortKey) -> Result<(), AskError> {
        exchange(self.socket, &Request::RemovePort(key), PROMPT).map(drop)
    }

    pub(super) fn check_port(&self, key: PortKey) -> Result<CheckedPort, AskError> {
        self.ask(&Request::CheckPort(key))
    }

    /// Removes all ports of a network that CNI commands have added, except those in `keep`.
    pub(super) fn retain_ports(&self, network: &str, keep: Vec<PortKey>) -> Result<(), AskError> {
        let request = Request::RetainPorts { keep, network: Some(network.to_owned()) };
        exchange(self.socket, &request, PROMPT).map(drop)
    }

    pub(super) fn health(&self) -> Result<Health, AskError> {
        self.ask(&Request::Status)
    }

    fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T, AskError> {
        let answer = exchange(self.socket, request, PROMPT)?;
        let not_understood = |source| AskError::NotUnderstood { socket: self.socket.to_owned(), source };
        serde_json::from_value(answer).map_err(not_understood)
    }
}

/// Translates a failed request to a CNI error: try again later, or refused.
pub(super) fn failure(error: &AskError) -> Error {
    match error {
        AskError::Failed(failure) => {
            let (code, message) = match failure.code.as_str() {
                "timeout" | "not_ready" | "no_answer" => (Code::TryAgain, "the vswitch is not ready for the pod"),
                _ => (Code::Refused, "the vswitch refuses the pod"),
            };
            let help = if failure.help.is_empty() { String::new() } else { format!("; {}", failure.help) };
            Error::new(code, message, format!("{}{help}", failure.message))
        }
        // The vswitch may be restarting.
        _ => Error::new(Code::TryAgain, "the vswitch does not answer", away(error)),
    }
}

/// Describes in one line why the vswitch does not answer. The remedy names configuration fields, since the plugin has no arguments.
pub(super) fn away(error: &AskError) -> String {
    match error {
        AskError::Unreachable { socket, source } => format!(
            "cannot reach a vswitch at {}: {source}; start the vswitch, or set `socket` in the network configuration \
             to the vswitch's admin.socket",
            socket.display()
        ),
        _ => error.to_string().replace("\n  help: ", "; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_observe::admin::Failure;

    #[test]
    fn what_may_work_later_is_told_apart_from_what_will_not() {
        let code = |code: &str| failure(&AskError::Failed(Failure::new(code, "the pod is unknown", ""))).code;
        assert_eq!((code("timeout"), code("not_ready")), (Code::TryAgain, Code::TryAgain));
        assert_eq!((code("refused"), code("malformed")), (Code::Refused, Code::Refused));
        let away = Daemon { socket: Path::new("/no/such/socket") }.is_there().unwrap_err();
        let error = failure(&away);
        assert_eq!(error.code, Code::TryAgain);
        assert!(error.details.contains("/no/such/socket"), "{error}");
    }
}
