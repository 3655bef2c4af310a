//! IPAM: who assigns a container's addresses, by `ipam.type` of the configuration.
//!
//! With the type [`NAME`] the plugin assigns them itself, without another program: a pod starts faster, and a node needs no other plugin.
//! With any other type, that plugin does (section 4 of the specification).
//!
//! The type is the plugin's own name, because runtimes and people take an IPAM type for the name of a program: this one exists, and it is
//! the one that assigns the addresses.

mod allocator;
mod delegated;
mod own;
mod ranges;
mod store;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use serde_json::Value;

use super::Call;
use super::NAME;
use super::environment::Command;
use super::error::Error;
use delegated::Delegated;
use own::Own;
pub(super) use own::check;

/// The allocator of a network.
#[derive(Debug)]
pub(super) enum Ipam<'a> {
    Own(Own<'a>),
    Delegated(Delegated<'a>),
}

/// What an `ADD` assigned.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) addresses: Vec<IpAddr>,
    /// The `dns` field of another plugin's answer. `None` if it is missing or empty.
    pub(super) dns: Option<Value>,
}

impl<'a> Ipam<'a> {
    /// Returns the configuration's allocator. `None` if it names none.
    ///
    /// # Errors
    /// [`Error`] if it is another plugin, and no folder of `CNI_PATH` has the program.
    pub(super) fn find(call: &'a Call) -> Result<Option<Self>, Error> {
        match call.conf.ipam.as_deref() {
            None => Ok(None),
            Some(NAME) => Ok(Some(Self::Own(Own { call }))),
            Some(kind) => {
                Delegated::find(kind, &call.conf, &call.environment).map(|found| Some(Self::Delegated(found)))
            }
        }
    }

    /// Assigns addresses. If that fails, nothing stays reserved.
    ///
    /// # Errors
    /// The error of the allocator, or of the other plugin.
    pub(super) fn add(&self) -> Result<Given, Error> {
        let given = match self {
            Self::Own(own) => own.add(),
            Self::Delegated(delegated) => delegated.add(),
        };
        given.inspect_err(|_| {
            // The first error counts; a failed cleanup is not reported.
            let _ = self.tell(Command::Del);
        })
    }

    /// Runs `DEL`, `CHECK`, `GC` or `STATUS`, which return no result.
    ///
    /// # Errors
    /// The error of the allocator, or of the other plugin.
    pub(super) fn tell(&self, command: Command) -> Result<(), Error> {
        match self {
            Self::Own(own) => own.tell(command),
            Self::Delegated(delegated) => delegated.tell(command),
        }
    }
}
