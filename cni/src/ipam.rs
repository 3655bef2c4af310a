//! Delegation: another plugin gives the addresses. Section 4 of the specification.
//!
//! It is run with the same environment and the same configuration, says its result or its error on standard output, and its standard error is
//! ours.

use std::io::{ErrorKind, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Output, Stdio};

use serde_json::Value;

use super::environment::{Command, Environment};
use super::error::{Code, Error};
use super::netconf::NetConf;
use super::result::Outcome;

/// The plugin that gives addresses.
#[derive(Debug)]
pub(super) struct Ipam<'a> {
    kind: &'a str,
    program: PathBuf,
    input: &'a [u8],
}

/// What `ADD` was given.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) addresses: Vec<IpAddr>,
    /// What the IPAM plugin says of DNS.
    pub(super) dns: Option<Value>,
}

impl<'a> Ipam<'a> {
    /// The IPAM plugin of a configuration, if it has one.
    ///
    /// # Errors
    /// When there is no such program.
    pub(super) fn find(conf: &'a NetConf, environment: &Environment) -> Result<Option<Self>, Error> {
        let Some(kind) = &conf.ipam else { return Ok(None) };
        let program = find(kind, &environment.path)?;
        Ok(Some(Self { kind, program, input: &conf.text }))
    }

    /// Has it give addresses. When it fails, or gives what makes no sense, it is told to take them back.
    ///
    /// # Errors
    /// What it says.
    pub(super) fn add(&self) -> Result<Given, Error> {
        let given = self.run(Command::Add).and_then(|said| self.given(&said));
        given.inspect_err(|_| {
            // What went wrong first is told.
            let _ = self.run(Command::Del);
        })
    }

    /// Has it do something that has no result.
    ///
    /// # Errors
    /// What it says.
    pub(super) fn tell(&self, command: Command) -> Result<(), Error> {
        self.run(command).map(drop)
    }

    fn given(&self, said: &[u8]) -> Result<Given, Error> {
        let odd = |why: String| {
            Error::new(Code::Ipam, "the IPAM plugin's answer is not understood", format!("{}: {why}", self.kind))
        };
        let mut json = serde_json::Deserializer::from_slice(said);
        let outcome: Outcome = serde_path_to_error::deserialize(&mut json)
            .map_err(|error| odd(format!("{}: {}", error.path(), error.inner())))?;
        if outcome.ips.is_empty() {
            return Err(odd("it has given no address".to_owned()));
        }
        let dns = outcome.dns.filter(|dns| dns.as_object().is_some_and(|fields| !fields.is_empty()));
        Ok(Given { addresses: outcome.ips.iter().map(|ip| ip.address.addr()).collect(), dns })
    }

    fn run(&self, command: Command) -> Result<Vec<u8>, Error> {
        let failed =
            |why: String| Error::new(Code::Ipam, "the IPAM plugin has failed", format!("{}: {why}", self.kind));
        let output = run(&self.program, command, self.input)
            .map_err(|error| failed(format!("{} cannot be run: {error}", self.program.display())))?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        // A plugin's own words, and only without them ours.
        Err(Error::read(&output.stdout).unwrap_or_else(|| {
            let said = String::from_utf8_lossy(&output.stdout);
            failed(format!("{}: {}", output.status, said.trim()))
        }))
    }
}

/// The program of a plugin.
pub(super) fn find(kind: &str, path: &[PathBuf]) -> Result<PathBuf, Error> {
    let mut programs = path.iter().map(|folder| folder.join(kind));
    programs.find(|program| program.is_file()).ok_or_else(|| {
        let folders: Vec<_> = path.iter().map(|folder| folder.display().to_string()).collect();
        let searched = if folders.is_empty() { "which is empty".to_owned() } else { folders.join(", ") };
        let remedy = "install it there, or name another one in ipam.type";
        Error::environment(format!("CNI_PATH: the IPAM plugin `{kind}` is not in it: {searched}; {remedy}"))
    })
}

/// Runs a plugin with this environment but for the command.
pub(super) fn run(program: &Path, command: Command, input: &[u8]) -> std::io::Result<Output> {
    let mut process = Process::new(program);
    process.env("CNI_COMMAND", command.name()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = process.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        match stdin.write_all(input) {
            // It did not want to know.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            written => written?,
        }
    }
    child.wait_with_output()
}
