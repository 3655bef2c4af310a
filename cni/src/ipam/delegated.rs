//! Delegation to another IPAM plugin: section 4 of the specification.
//!
//! The IPAM plugin gets the same environment and configuration. It writes its result or error to standard output, and shares this plugin's
//! standard error.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Output, Stdio};

use super::Given;
use crate::environment::{Command, Environment};
use crate::error::{Code, Error};
use crate::netconf::NetConf;
use crate::result::Outcome;

/// Another IPAM plugin and its input.
#[derive(Debug)]
pub(crate) struct Delegated<'a> {
    kind: &'a str,
    program: PathBuf,
    input: &'a [u8],
}

impl<'a> Delegated<'a> {
    /// Returns the IPAM plugin of this type.
    ///
    /// # Errors
    /// [`Error`] if no folder of `CNI_PATH` has the program.
    pub(super) fn find(kind: &'a str, conf: &'a NetConf, environment: &Environment) -> Result<Self, Error> {
        let program = find(kind, &environment.path)?;
        Ok(Self { kind, program, input: &conf.text })
    }

    /// Runs `ADD`.
    ///
    /// # Errors
    /// The plugin's own error, or [`Code::Ipam`].
    pub(super) fn add(&self) -> Result<Given, Error> {
        self.run(Command::Add).and_then(|said| self.given(&said))
    }

    /// Runs a command that has no result.
    ///
    /// # Errors
    /// The plugin's own error, or [`Code::Ipam`].
    pub(super) fn tell(&self, command: Command) -> Result<(), Error> {
        self.run(command).map(drop)
    }

    fn given(&self, said: &[u8]) -> Result<Given, Error> {
        let odd = |why: String| {
            Error::new(Code::Ipam, "the IPAM plugin's answer is malformed", format!("{}: {why}", self.kind))
        };
        let mut json = serde_json::Deserializer::from_slice(said);
        let outcome: Outcome = serde_path_to_error::deserialize(&mut json)
            .map_err(|error| odd(format!("{}: {}", error.path(), error.inner())))?;
        if outcome.ips.is_empty() {
            return Err(odd("it assigned no address".to_owned()));
        }
        let dns = outcome.dns.filter(|dns| dns.as_object().is_some_and(|fields| !fields.is_empty()));
        Ok(Given { addresses: outcome.ips.iter().map(|ip| ip.address.addr()).collect(), dns })
    }

    fn run(&self, command: Command) -> Result<Vec<u8>, Error> {
        let failed = |why: String| Error::new(Code::Ipam, "the IPAM plugin failed", format!("{}: {why}", self.kind));
        let output = run(&self.program, command, self.input)
            .map_err(|error| failed(format!("{} cannot be run: {error}", self.program.display())))?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        // A plugin's own error is passed on unchanged.
        Err(Error::read(&output.stdout).unwrap_or_else(|| {
            let said = String::from_utf8_lossy(&output.stdout);
            failed(format!("{}: {}", output.status, said.trim()))
        }))
    }
}

/// Searches the folders of `path` for a plugin's program.
fn find(kind: &str, path: &[PathBuf]) -> Result<PathBuf, Error> {
    let mut programs = path.iter().map(|folder| folder.join(kind));
    programs.find(|program| program.is_file()).ok_or_else(|| {
        let folders: Vec<_> = path.iter().map(|folder| folder.display().to_string()).collect();
        let searched = if folders.is_empty() { "it is empty".to_owned() } else { folders.join(", ") };
        let remedy = "install the plugin there, or name another one in ipam.type";
        Error::environment(format!("CNI_PATH: it does not contain the IPAM plugin `{kind}`: {searched}; {remedy}"))
    })
}

/// Runs a plugin with this process's environment and another `CNI_COMMAND`.
fn run(program: &Path, command: Command, input: &[u8]) -> std::io::Result<Output> {
    let mut process = Process::new(program);
    process.env("CNI_COMMAND", command.name()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = process.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        match stdin.write_all(input) {
            // The plugin did not read its input.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            written => written?,
        }
    }
    child.wait_with_output()
}
