//! The CNI plugin, which connects the pods of a container runtime to the vswitch.
//!
//! **Purpose.** Each run executes one command of the CNI specification (<https://www.cni.dev/docs/spec/>, 0.4.0 to 1.1.0). The runtime
//! passes the command in the environment and the network configuration on standard input. It reads a result or an error from standard
//! output.
//! **Not its purpose:** judging packets, or knowing policy. It keeps two things in files: reserved addresses, and removals that an absent
//! vswitch has missed.
//!
//! ```text
//!   containerd --CNI_COMMAND=ADD, configuration--> bulkhead-cni --files, or ADD of another IPAM plugin--> addresses
//!                                                       |--netlink--> veth:  [ pod: eth0 ]--[ bh...., down ]
//!                                                       `--add_port--> vswitch: attaches, sets bh.... up, opens the port
//! ```
//!
//! The plugin starts no asynchronous runtime, and one thread at most, to enter the container's namespace: a pod waits for the result.
//!
//! **Invariant.** When `ADD` returns a result, the pod's port is open and its policy is in force. When `ADD` fails, nothing remains.
//! `DEL` needs only the container's ID and the interface's name.

#![forbid(unsafe_code)]

mod add;
pub mod args;
mod attachment;
mod chain;
mod check;
mod container;
mod daemon;
mod environment;
mod error;
mod install;
mod ipam;
mod link;
mod mac;
mod missed;
mod netconf;
mod netlink;
mod port;
mod remove;
mod result;
mod sandbox;
#[cfg(test)]
#[path = "../../node/src/scratch.rs"]
mod scratch;
mod version;

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use attachment::Attachment;
use daemon::Daemon;
use environment::{Command, Environment};
use error::{Code, Error};
pub use install::{install, uninstall};
use netconf::NetConf;
use version::Version;

use bulkhead_observe::admin::{Missed, PortKey};

/// File name under which runtimes run the plugin.
pub const NAME: &str = "bulkhead-cni";

/// Upper bound of the network configuration, in bytes. With a node's attachments a real one has some ten thousand.
const LONGEST: u64 = 1 << 24;

/// Returns the command line's words, with `bulkhead-cni ARGS` rewritten to `bulkhead cni ARGS`. `None` if a runtime started the program as
/// the plugin: by its name and without arguments.
pub fn words(mut words: Vec<OsString>) -> Option<Vec<OsString>> {
    if words.first().is_some_and(|program| Path::new(program).file_name() == Some(OsStr::new(NAME))) {
        if words.len() == 1 {
            return None;
        }
        words.splice(..1, ["bulkhead".into(), "cni".into()]);
    }
    Some(words)
}

/// Runs the command that the environment and standard input describe. Returns exit code 0, or 1 with an error on standard output.
pub fn run() -> ExitCode {
    let (text, code) = match answer() {
        Ok(text) => (text, ExitCode::SUCCESS),
        Err((version, error)) => (Some(error.to_json(version)), ExitCode::FAILURE),
    };
    let printed = text.map_or(Ok(()), |text| writeln!(io::stdout().lock(), "{text}"));
    // The runtime takes a missing result for a failure, so a failed write is one.
    if printed.is_ok() { code } else { ExitCode::FAILURE }
}

/// Returns the text for standard output, or an error and the CNI version to write it in.
fn answer() -> Result<Option<String>, (Version, Error)> {
    let newest = |error| (Version::NEWEST, error);
    let environment = Environment::read(|name| std::env::var_os(name)).map_err(newest)?;
    let mut input = Vec::new();
    let read = io::stdin().lock().take(LONGEST).read_to_end(&mut input);
    if environment.command == Command::Version {
        return Ok(Some(Version::answer(&input)));
    }
    read.map_err(|error| {
        newest(Error::new(Code::Io, "the network configuration cannot be read", format!("standard input: {error}")))
    })?;
    // An error is written in the version of the configuration, if that is known, so that the runtime can read it.
    let version = serde_json::from_slice(&input).ok().and_then(|value| netconf::version_of(&value).ok());
    let version = version.unwrap_or(Version::NEWEST);
    let call = NetConf::read(input).map(|conf| Call::new(environment, conf)).map_err(|error| (version, error))?;
    call.carry_out().map_err(|error| (version, error))
}

/// A command and its network configuration.
#[derive(Debug)]
struct Call {
    environment: Environment,
    conf: NetConf,
    attachment: Attachment,
}

impl Call {
    fn new(environment: Environment, conf: NetConf) -> Self {
        let attachment = Attachment {
            network: conf.network.clone(),
            container: environment.container.clone(),
            interface: environment.interface.clone(),
        };
        Self { environment, conf, attachment }
    }

    fn carry_out(&self) -> Result<Option<String>, Error> {
        let Self { environment: Environment { command, .. }, conf, .. } = self;
        if matches!(command, Command::Gc | Command::Status) && conf.version < Version::V1_1 {
            let details = format!("cniVersion: {} has no {}", conf.version.name(), command.name());
            return Err(Error::new(Code::IncompatibleVersion, "incompatible CNI versions", details));
        }
        match command {
            Command::Add => add::add(self).map(Some),
            Command::Del => remove::del(self).map(|()| None),
            Command::Check => check::check(self).map(|()| None),
            Command::Gc => remove::gc(self).map(|()| None),
            Command::Status => check::status(self).map(|()| None),
            // `answer` has handled this command, which has no configuration.
            Command::Version => Ok(None),
        }
    }

    fn daemon(&self) -> Daemon<'_> {
        Daemon { socket: &self.conf.socket }
    }

    fn missed(&self) -> Missed {
        Missed::of(&self.conf.socket)
    }

    /// Removes the port at the vswitch. If the vswitch does not answer, records the removal for later.
    fn forget(&self) -> Result<(), Error> {
        let (daemon, missed) = (self.daemon(), self.missed());
        match daemon.remove_port(PortKey::from(&self.attachment)) {
            Ok(()) => {
                // Missed removals of other ports may fail here: the next command retries them.
                let _ = missed::make_up(&missed, daemon);
                Ok(())
            }
            Err(away) => missed.keep(&self.attachment.node_end(), PortKey::from(&self.attachment)).map_err(|error| {
                let details = format!(
                    "the port cannot be removed: {}; the removal cannot be recorded for later either: {error}",
                    daemon::away(&away)
                );
                Error::new(Code::TryAgain, "the vswitch does not answer", details)
            }),
        }
    }
}
