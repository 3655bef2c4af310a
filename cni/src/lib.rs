//! The CNI plugin: how a container runtime has pods wired to the vswitch.
//!
//! **Purpose.** One run is one command of the specification (<https://www.cni.dev/docs/spec/>, 0.4.0 to 1.1.0): the runtime says which in the
//! environment, writes the network configuration to standard input, and reads a result or an error from standard output.
//! **Not its purpose:** judging packets, knowing policy, or remembering anything but what the vswitch was not there to be told.
//!
//! ```text
//!   containerd --CNI_COMMAND=ADD, configuration--> bulkhead-cni --ADD--> host-local (addresses)
//!                                                       |--netlink--> veth:  [ pod: eth0 ]--[ bh...., down ]
//!                                                       `--add_port--> vswitch: attaches, sets bh.... up, opens the port
//! ```
//!
//! It starts no asynchronous runtime and no thread but the one that enters the container's namespace: a pod waits for it.
//!
//! **Invariant.** An `ADD` that returns a result has an open port with the pod's policy in force, and one that fails leaves nothing behind.
//! A `DEL` finds everything by the container's ID and the interface's name alone.

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

/// The name by which runtimes run the plugin.
pub const NAME: &str = "bulkhead-cni";

/// A configuration is some hundred bytes, with what earlier plugins have made some thousand, with a node's attachments some ten thousand.
const LONGEST: u64 = 1 << 24;

/// The words of the command line that are meant; none where the program was started as the plugin, by its name.
pub fn words(mut words: Vec<OsString>) -> Option<Vec<OsString>> {
    if words.first().is_some_and(|program| Path::new(program).file_name() == Some(OsStr::new(NAME))) {
        if words.len() == 1 {
            return None;
        }
        // `bulkhead-cni install` is `bulkhead cni install`.
        words.splice(..1, ["bulkhead".into(), "cni".into()]);
    }
    Some(words)
}

/// Carries a command out, as the environment and standard input say. Returns the exit code: 0 ok, 1 an error, which is on standard
/// output.
pub fn run() -> ExitCode {
    let (text, code) = match answer() {
        Ok(text) => (text, ExitCode::SUCCESS),
        Err((version, error)) => (Some(error.to_json(version)), ExitCode::FAILURE),
    };
    let printed = text.map_or(Ok(()), |text| writeln!(io::stdout().lock(), "{text}"));
    // Without its result the runtime knows of no success.
    if printed.is_ok() { code } else { ExitCode::FAILURE }
}

/// What is printed, or the error and the version that it is written in.
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
    // As far as it is known, so that the runtime can read it.
    let version = serde_json::from_slice(&input).ok().and_then(|value| netconf::version_of(&value).ok());
    let version = version.unwrap_or(Version::NEWEST);
    let call = NetConf::read(input).map(|conf| Call::new(environment, conf)).map_err(|error| (version, error))?;
    call.carry_out().map_err(|error| (version, error))
}

/// A command with its configuration.
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
            // It has no configuration.
            Command::Version => Ok(None),
        }
    }

    fn daemon(&self) -> Daemon<'_> {
        Daemon { socket: &self.conf.socket }
    }

    fn missed(&self) -> Missed {
        Missed::of(&self.conf.socket)
    }

    /// Has the vswitch forget the port, now or when it is there again.
    fn forget(&self) -> Result<(), Error> {
        let (daemon, missed) = (self.daemon(), self.missed());
        match daemon.remove_port(PortKey::from(&self.attachment)) {
            Ok(()) => {
                // Others can wait for the next one.
                let _ = missed::make_up(&missed, daemon);
                Ok(())
            }
            Err(away) => missed.keep(&self.attachment.node_end(), PortKey::from(&self.attachment)).map_err(|error| {
                let details = format!(
                    "the port cannot be removed: {}; nor can that be kept for later: {error}",
                    daemon::away(&away)
                );
                Error::new(Code::TryAgain, "the vswitch does not answer", details)
            }),
        }
    }
}
