//! The plugin's own allocator, with the configuration and the attachment of a command.
//!
//! The section `ipam` has the fields of `host-local`. An unknown field is an error: a misspelt `rangeEnd` would assign addresses of others.

use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::Given;
use super::allocator::Allocator;
use super::ranges::{self, Set};
use crate::Call;
use crate::environment::Command;
use crate::error::{Code, Error};

/// The default of `dataDir`. That of `host-local`, because a configuration that changes only the type must not assign the addresses of
/// running pods again.
const DATA_DIR: &str = "/var/lib/cni/networks";

/// The section `ipam`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    #[serde(rename = "type")]
    _kind: IgnoredAny,
    #[serde(rename = "dataDir")]
    _data_dir: Option<IgnoredAny>,
    /// Skipped: every container has one default route.
    #[serde(rename = "routes")]
    _routes: Option<IgnoredAny>,
    #[serde(rename = "resolvConf", default)]
    resolv_conf: String,
    #[serde(default)]
    ranges: Vec<Vec<ranges::Fields>>,
    // One more set, the first, with one range.
    subnet: Option<IpNet>,
    #[serde(rename = "rangeStart")]
    start: Option<IpAddr>,
    #[serde(rename = "rangeEnd")]
    end: Option<IpAddr>,
    gateway: Option<IpAddr>,
}

/// The allocator, for one command.
#[derive(Debug)]
pub(crate) struct Own<'a> {
    pub(super) call: &'a Call,
}

impl Own<'_> {
    /// Assigns an address of each set.
    ///
    /// # Errors
    /// [`Error`] if the configuration is invalid, no address is left, or the store cannot be changed.
    pub(super) fn add(&self) -> Result<Given, Error> {
        let Call { conf, attachment, .. } = self.call;
        if conf.requests_addresses {
            let details = "runtimeConfig.ips: this allocator assigns no requested addresses; use another ipam.type, \
                           such as host-local, or remove the capability `ips`";
            return Err(Error::configuration(details));
        }
        let addresses = self.allocator(true)?.add(&attachment.container, &attachment.interface)?;
        Ok(Given { addresses, dns: None })
    }

    /// Carries out a command that has no result.
    ///
    /// # Errors
    /// [`Error`] if the configuration is invalid, or the error of the allocator's command.
    pub(super) fn tell(&self, command: Command) -> Result<(), Error> {
        let Call { conf, attachment, .. } = self.call;
        let (container, interface) = (&*attachment.container, &*attachment.interface);
        match command {
            // Independent of the ranges: a pod must be removable although a change made them invalid.
            Command::Del => self.allocator(false)?.del(container, interface),
            Command::Check => {
                let expected = conf.previous()?.and_then(|(outcome, _)| {
                    let (place, _) = outcome.container(interface)?;
                    Some(outcome.addresses(place).iter().map(IpNet::addr).collect::<Vec<_>>())
                });
                self.allocator(true)?.check(container, interface, &expected.unwrap_or_default())
            }
            Command::Gc => self.allocator(true)?.gc(conf.attachments()?),
            // A full set is no fault of the node: a runtime reports a node whose `STATUS` fails as not ready, and its pods are evicted.
            Command::Status => self.allocator(true).map(drop),
            Command::Add | Command::Version => Ok(()),
        }
    }

    /// Returns the allocator, with the sets of the configuration or without sets.
    fn allocator(&self, with_sets: bool) -> Result<Allocator<'static>, Error> {
        let Call { conf, attachment, .. } = self.call;
        let sets = if with_sets { sets(&conf.ipam_section)? } else { Vec::new() };
        let folder = data_dir(&conf.ipam_section)?.join(&attachment.network);
        Ok(Allocator { folder, sets, before: &|_| Ok(()) })
    }
}

/// Checks a section `ipam` whose type is the plugin's own name.
///
/// # Errors
/// A text that names the field and the remedy.
pub(crate) fn check(section: &Value) -> Result<(), String> {
    data_dir(section).and(sets(section)).map(drop).map_err(|error| error.details)
}

/// Returns the folder of all networks' reserved addresses.
fn data_dir(section: &Value) -> Result<PathBuf, Error> {
    match &section["dataDir"] {
        Value::Null => Ok(DATA_DIR.into()),
        Value::String(path) if path.is_empty() => Ok(DATA_DIR.into()),
        Value::String(path) if path.starts_with('/') => Ok(path.into()),
        other => Err(Error::configuration(format!("ipam.dataDir: {other} is not an absolute path"))),
    }
}

/// Returns the sets of ranges of the section `ipam`.
fn sets(section: &Value) -> Result<Vec<Set>, Error> {
    let invalid = |why: String| Error::new(Code::InvalidConfiguration, "invalid network configuration", why);
    let read: Section = serde_path_to_error::deserialize(section)
        .map_err(|error| invalid(format!("ipam.{}: {}", error.path(), error.inner())))?;
    let Section { resolv_conf, mut ranges, subnet, start, end, gateway, .. } = read;
    if !resolv_conf.is_empty() {
        return Err(invalid("ipam.resolvConf: not supported; write the servers to `dns` of the plugin".to_owned()));
    }
    match subnet {
        Some(subnet) => ranges.insert(0, vec![ranges::Fields { subnet, start, end, gateway }]),
        None if start.is_some() || end.is_some() || gateway.is_some() => {
            let why = "ipam.subnet: missing; rangeStart, rangeEnd and gateway need it, or belong into ipam.ranges";
            return Err(invalid(why.to_owned()));
        }
        None if ranges.is_empty() => {
            let why = "ipam.ranges: missing; write [[{\"subnet\": \"10.244.1.0/24\"}]], with this node's address range";
            return Err(invalid(why.to_owned()));
        }
        None => {}
    }
    ranges::read(&ranges).map_err(|why| invalid(format!("ipam.{why}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_short_form_is_the_first_set() {
        let short = sets(
            &json!({"type": "bulkhead-cni", "subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9", "gateway": "10.1.0.9",
            "ranges": [[{"subnet": "fd00::/64"}]], "routes": [{"dst": "0.0.0.0/0"}], "resolvConf": ""}),
        );
        let long = sets(&json!({"type": "bulkhead-cni", "dataDir": "/x", "ranges": [
            [{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9", "gateway": "10.1.0.9"}], [{"subnet": "fd00::/64"}]]}));
        assert_eq!(short.unwrap(), long.unwrap());
    }

    #[test]
    fn an_invalid_section_is_an_error_that_names_the_field() {
        for (section, says) in [
            (json!({}), "ipam.ranges: missing; write [["),
            (json!({"ranges": []}), "ipam.ranges: missing"),
            (json!({"rangeEnd": "10.1.0.9"}), "ipam.subnet: missing; rangeStart"),
            (json!({"ranges": [[{"subnet": "10.1.0.0"}]]}), "ipam.ranges[0][0].subnet: invalid IP"),
            (json!({"ranges": [[{"subnet": "10.1.0.0/33"}]]}), "ipam.ranges[0][0].subnet: invalid IP"),
            (json!({"ranges": [[{"subnet": "10.1.0.4/24"}]]}), "ipam.ranges[0][0].subnet: 10.1.0.4/24 has bits"),
            (
                json!({"ranges": [[{"range": 1}]]}),
                "ipam.ranges[0][0].range: unknown field `range`, expected one of `subnet`",
            ),
            (json!({"ranges": [[{}]]}), "ipam.ranges[0][0]: missing field `subnet`"),
            (json!({"ranges": [{"subnet": "10.1.0.0/24"}]}), "ipam.ranges[0]: invalid type: map"),
            (json!({"rangeStart": "x"}), "ipam.rangeStart: invalid IP"),
            (json!({"range_end": "x"}), "ipam.range_end: unknown field `range_end`, expected one of "),
            (json!({"resolvConf": "/etc/resolv.conf"}), "ipam.resolvConf: not supported; write the servers to `dns`"),
        ] {
            let mut section = section;
            section["type"] = "bulkhead-cni".into();
            let error = sets(&section).unwrap_err();
            assert_eq!(error.code, Code::InvalidConfiguration);
            assert!(error.details.starts_with(says), "{error} does not start with {says}");
        }
    }

    #[test]
    fn the_folder_is_that_of_host_local_unless_it_is_named() {
        for (section, folder) in [
            (json!({}), Some("/var/lib/cni/networks")),
            (json!({"dataDir": ""}), Some("/var/lib/cni/networks")),
            (json!({"dataDir": "/run/bulkhead/ipam"}), Some("/run/bulkhead/ipam")),
            (json!({"dataDir": "leases"}), None),
            (json!({"dataDir": 7}), None),
        ] {
            assert_eq!(data_dir(&section).ok(), folder.map(PathBuf::from), "{section}");
        }
        assert!(
            data_dir(&json!({"dataDir": "x"})).unwrap_err().details.starts_with("ipam.dataDir: \"x\" is not an abs")
        );
    }
}
