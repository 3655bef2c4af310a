//! The vswitch: what the plugin asks at its admin socket. `docs/admin.md` describes the requests.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::attachment::Attachment;
use super::error::{Code, Error};
use bulkhead_observe::admin::{AddPort, AskError, CheckedPort, PortKey, Request, exchange};

/// How long an answer may take that has nothing to wait for.
const PROMPT: Duration = Duration::from_secs(10);

/// How much longer than the vswitch its answer is waited for, so that it is the vswitch that says what it has waited for.
const MARGIN: Duration = Duration::from_secs(5);

/// How often `add_port` is asked when the connection ends without an answer. The vswitch has room for so many connections and ends the
/// oldest one; the request may be repeated.
const TRIES: usize = 3;

/// A vswitch.
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

/// How a vswitch is, as far as the plugin wants to know.
#[derive(Debug, Deserialize)]
pub(super) struct Health {
    pub(super) ready: bool,
    pub(super) denying: bool,
}

impl Daemon<'_> {
    /// Whether somebody listens. Each request has a connection of its own: one that waits for something else meanwhile would be ended
    /// when many pods start at once.
    pub(super) fn is_there(&self) -> Result<(), AskError> {
        std::os::unix::net::UnixStream::connect(self.socket)
            .map(drop)
            .map_err(|source| AskError::Unreachable { socket: self.socket.to_owned(), source })
    }

    /// Has the vswitch open a port, and waits until the pod's policy is enforced there.
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

    /// Has the vswitch forget a port. One that it does not know is as good.
    pub(super) fn remove_port(&self, key: PortKey) -> Result<(), AskError> {
        exchange(self.socket, &Request::RemovePort(key), PROMPT).map(drop)
    }

    /// How a port is.
    pub(super) fn check_port(&self, key: PortKey) -> Result<CheckedPort, AskError> {
        self.ask(&Request::CheckPort(key))
    }

    /// Has the vswitch forget all added ports of a network but these.
    pub(super) fn retain_ports(&self, network: &str, keep: Vec<PortKey>) -> Result<(), AskError> {
        let request = Request::RetainPorts { keep, network: Some(network.to_owned()) };
        exchange(self.socket, &request, PROMPT).map(drop)
    }

    /// How the vswitch is.
    pub(super) fn health(&self) -> Result<Health, AskError> {
        self.ask(&Request::Status)
    }

    fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T, AskError> {
        let answer = exchange(self.socket, request, PROMPT)?;
        let not_understood = |source| AskError::NotUnderstood { socket: self.socket.to_owned(), source };
        serde_json::from_value(answer).map_err(not_understood)
    }
}

/// What the runtime is told when the vswitch did not do what it was asked.
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
        // It may be restarting.
        _ => Error::new(Code::TryAgain, "the vswitch does not answer", away(error)),
    }
}

/// Why the vswitch does not answer, in one line and with the remedy of a plugin, which has no arguments.
pub(super) fn away(error: &AskError) -> String {
    match error {
        AskError::Unreachable { socket, source } => format!(
            "cannot reach a vswitch at {}: {source}; none runs here, or its configuration (admin.socket) and the plugin's (socket) \
             name different sockets",
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
