//! Exec plugins: programs that return credentials. Source: Kubernetes, "client-go credential plugins", `client.authentication.k8s.io`.

use std::io::{self, ErrorKind, IsTerminal, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, SystemTime};

use serde::Deserialize;
use serde_json::{Value, json};

use super::credential::{Authorization, Credential, bearer};
use super::tls::Identity;
use super::unusable::Unusable;
use crate::errors::bounded;

/// Supported API versions. All have the same fields.
const VERSIONS: [&str; 3] = [
    "client.authentication.k8s.io/v1",
    "client.authentication.k8s.io/v1beta1",
    "client.authentication.k8s.io/v1alpha1",
];

/// Timeout of a plugin, which may ask a server or a person.
const LIMIT: Duration = Duration::from_secs(60);

/// Interval at which the running plugin is polled.
const LOOK: Duration = Duration::from_millis(10);

/// Upper bound of a plugin's output, in bytes. A certificate chain and a key have some ten thousand.
const MAX_ANSWER: u64 = 1 << 20;

/// The `exec` section of a kubeconfig user. Its environment may be secret, so it has no `Debug`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Plugin {
    api_version: Option<String>,
    command: Option<String>,
    args: Option<Vec<String>>,
    env: Option<Vec<Variable>>,
    install_hint: Option<String>,
    interactive_mode: Option<String>,
    #[serde(default)]
    provide_cluster_info: bool,
}

#[derive(Deserialize)]
struct Variable {
    name: String,
    value: String,
}

#[derive(Deserialize)]
struct Answer {
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
    expiration_timestamp: Option<String>,
}

impl Plugin {
    /// Whether the plugin needs the cluster's server and authority in `KUBERNETES_EXEC_INFO` (`provideClusterInfo`).
    pub(super) const fn wants_cluster(&self) -> bool {
        self.provide_cluster_info
    }

    /// Runs the plugin and returns its credential. A command with a slash is relative to `folder`. `cluster` is for a plugin that needs it.
    pub(super) fn run(&self, folder: &Path, cluster: Option<Value>) -> Result<Credential, Unusable> {
        let version = self.api_version.as_deref().unwrap_or_default();
        if !VERSIONS.contains(&version) {
            let help = format!("write `apiVersion: {}`, or the version that the plugin supports", VERSIONS[0]);
            return Err(Unusable::with_help(format!("apiVersion {version:?} is not supported"), help));
        }
        let name = self.command.as_deref().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| Unusable::with_help("it has no command", "write the program's name"))?;
        let is_interactive = self.is_interactive()?;
        let mut spec = json!({ "interactive": is_interactive });
        if let Some(cluster) = cluster {
            spec["cluster"] = cluster;
        }
        let info = json!({ "apiVersion": version, "kind": "ExecCredential", "spec": spec });
        let mut command = if name.contains('/') { Command::new(folder.join(name)) } else { Command::new(name) };
        command.args(self.args.iter().flatten());
        command.envs(self.env.iter().flatten().map(|Variable { name, value }| (name, value)));
        command.env("KUBERNETES_EXEC_INFO", info.to_string());
        command.stdin(if is_interactive { Stdio::inherit() } else { Stdio::null() });
        command.stderr(if is_interactive { Stdio::inherit() } else { Stdio::piped() });
        let (status, answer, said) =
            output(command, LIMIT).map_err(|error| self.unusable(format!("cannot run {name}: {error}")))?;
        if !status.success() {
            // The output may contain secrets, so only the standard error is shown.
            let said = bounded(String::from_utf8_lossy(&said).trim());
            return Err(self.unusable(format!("{name} failed, {status}: {said}")));
        }
        credential(&answer).map_err(|error| error.of(&format!("the answer of {name}")))
    }

    /// Whether the plugin may prompt the user.
    fn is_interactive(&self) -> Result<bool, Unusable> {
        let is_terminal = io::stdin().is_terminal();
        match self.interactive_mode.as_deref() {
            Some("Never") => Ok(false),
            Some("Always") if !is_terminal => {
                let help = "configure the plugin to work without a prompt, and write `interactiveMode: Never`";
                Err(Unusable::with_help("interactiveMode is Always, and there is no terminal", help))
            }
            _ => Ok(is_terminal),
        }
    }

    fn unusable(&self, problem: String) -> Unusable {
        Unusable { problem, help: self.install_hint.clone().filter(|hint| !hint.is_empty()) }
    }
}

/// Runs a program. Returns its exit status, standard output and standard error.
pub(super) fn output(mut command: Command, limit: Duration) -> io::Result<(ExitStatus, Vec<u8>, Vec<u8>)> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let end = Instant::now() + limit;
    let (stdout, stderr) = (child.stdout.take().map(collect), child.stderr.take().map(collect));
    let ended = wait(&mut child, end);
    if ended.is_err() {
        // The program may have ended by itself.
        child.kill().ok();
        child.wait()?;
    }
    // Child processes that outlive the program may keep the pipes open.
    let collected = |pipe: Option<Receiver<Vec<u8>>>| {
        let wait = end.saturating_duration_since(Instant::now());
        pipe.map_or_else(Vec::new, |pipe| pipe.recv_timeout(wait).unwrap_or_default())
    };
    Ok((ended?, collected(stdout), collected(stderr)))
}

fn wait(child: &mut Child, end: Instant) -> io::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() >= end {
            return Err(io::Error::new(ErrorKind::TimedOut, "it did not end within the time limit"));
        }
        std::thread::sleep(LOOK);
    }
}

fn collect(pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (send, collected) = channel();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        // A broken pipe ends the output; what was read before is used.
        pipe.take(MAX_ANSWER).read_to_end(&mut text).ok();
        send.send(text).ok();
    });
    collected
}

fn credential(answer: &[u8]) -> Result<Credential, Unusable> {
    let help = "the plugin must print an ExecCredential with status.token, or with status.clientCertificateData and status.clientKeyData";
    let wrong = |problem: &str| Unusable::with_help(problem, help);
    // The output may be YAML, of which JSON is a part. Parse errors would quote secrets, so they are not shown.
    let text = std::str::from_utf8(answer).map_err(|_| wrong("it is not UTF-8 text"))?;
    let read: Answer = serde_saphyr::from_str(text).map_err(|_| wrong("it is not an ExecCredential"))?;
    let status = read.status.ok_or_else(|| wrong("it has no status"))?;
    let Status { token, client_certificate_data, client_key_data, expiration_timestamp } = status;
    let end = expiration_timestamp.as_deref().filter(|text| !text.is_empty());
    let end =
        end.map(|text| time(text).ok_or_else(|| wrong("status.expirationTimestamp is not a time"))).transpose()?;
    let identity = match (client_certificate_data, client_key_data) {
        (Some(certificate), Some(key)) => {
            let chain = Identity::chain(certificate.as_bytes()).map_err(|error| error.of("clientCertificateData"))?;
            let key = Identity::key(key.as_bytes()).map_err(|error| error.of("clientKeyData"))?;
            Some(Identity::new(chain, key))
        }
        (None, None) => None,
        _ => return Err(wrong("it has a certificate without a key, or a key without a certificate")),
    };
    let token = token.filter(|token| !token.is_empty()).map(|token| bearer(&token)).transpose();
    let token = token.map_err(|error| error.of("status.token"))?;
    if token.is_none() && identity.is_none() {
        return Err(wrong("it has neither a token nor a certificate"));
    }
    Ok(Credential { authorization: token.map_or(Authorization::None, Authorization::Fixed), identity, end })
}

/// Parses an RFC 3339 time with any UTC offset. `None` if the text is not such a time.
pub(super) fn time(text: &str) -> Option<SystemTime> {
    let (local, offset) = match text.len().checked_sub(6).and_then(|at| text.split_at_checked(at)) {
        Some((local, offset)) if offset.starts_with(['+', '-']) => (format!("{local}Z"), offset),
        _ => (text.to_owned(), "+00:00"),
    };
    let local = humantime::parse_rfc3339(&local).ok()?;
    let (hours, minutes) = offset.get(1..)?.split_once(':')?;
    let ahead = Duration::from_secs(hours.parse::<u64>().ok()? * 3600 + minutes.parse::<u64>().ok()? * 60);
    if offset.starts_with('+') { local.checked_sub(ahead) } else { local.checked_add(ahead) }
}
