//! The network configuration, which the runtime writes to standard input.
//!
//! The plugin ignores unknown fields, as the specification demands: all plugins of a chain get the same configuration.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::NAME;
use super::environment::check_identifier;
use super::error::{Code, Error};
use super::mac::Mac;
use super::result::Outcome;
use super::version::Version;
use bulkhead_observe::admin::DEFAULT_SOCKET;

/// Default of `timeout_seconds`, how long `ADD` waits for the port. Long enough for a pod object that arrives late, far shorter than
/// runtimes wait for a plugin (two minutes).
const PATIENCE: u64 = 20;
/// Upper bound of `timeout_seconds`.
const LONGEST_PATIENCE: u64 = 110;
/// Valid MTUs of pods' interfaces in bytes: the minimum of IPv6 (RFC 8200 §5), up to a veth's maximum.
pub(super) const MTUS: std::ops::RangeInclusive<u32> = 1280..=65_535;

#[derive(Clone, Debug)]
pub(super) struct NetConf {
    pub(super) version: Version,
    pub(super) network: String,
    /// Path of the vswitch's admin socket.
    pub(super) socket: PathBuf,
    /// The MTU of pods' interfaces, in bytes. `None` for the one that the vswitch computes, else the default route's.
    pub(super) mtu: Option<u32>,
    /// The name of the IPAM plugin. `None` behind a plugin that assigns the addresses.
    pub(super) ipam: Option<String>,
    /// The section `ipam`, for the plugin's own allocator. Null if it is missing.
    pub(super) ipam_section: Value,
    /// Whether the runtime requests addresses (capability `ips`).
    pub(super) requests_addresses: bool,
    /// The result's `dns` field. `None` for the IPAM plugin's answer.
    pub(super) dns: Option<Value>,
    /// Maximum time that `ADD` waits for the port to open.
    pub(super) patience: Duration,
    /// The MAC address that the runtime requests for the container's end. `None` if it requests none.
    pub(super) mac: Option<Mac>,
    /// The field `prevResult`, unparsed. `None` for the first plugin of a chain.
    previous: Option<Value>,
    /// `cni.dev/valid-attachments`. `None` if the field is missing.
    attachments: Option<Vec<Attached>>,
    /// The whole text, for the IPAM plugin.
    pub(super) text: Vec<u8>,
}

/// An entry of `cni.dev/valid-attachments`: an attachment that `GC` must keep.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Attached {
    #[serde(rename = "containerID")]
    pub(super) container: String,
    #[serde(rename = "ifname")]
    pub(super) interface: String,
}

/// The fields that the plugin reads.
#[derive(Debug, Deserialize)]
struct Fields {
    #[serde(rename = "type")]
    kind: Option<String>,
    name: Option<String>,
    socket: Option<PathBuf>,
    mtu: Option<u32>,
    timeout_seconds: Option<u64>,
    ipam: Option<Ipam>,
    dns: Option<Value>,
    #[serde(rename = "runtimeConfig")]
    runtime: Option<Runtime>,
    #[serde(rename = "prevResult")]
    previous: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct Ipam {
    #[serde(rename = "type")]
    kind: Option<String>,
}

/// `runtimeConfig`: values for the capabilities that the configuration declares.
#[derive(Debug, Deserialize)]
struct Runtime {
    mac: Option<String>,
    ips: Option<Vec<Value>>,
}

impl NetConf {
    /// Parses and checks the configuration.
    ///
    /// # Errors
    /// [`Error`] if the text is not JSON, its version is not supported, or a field is invalid.
    pub(super) fn read(text: Vec<u8>) -> Result<Self, Error> {
        let malformed = |why: &dyn std::fmt::Display| {
            Error::new(Code::Decoding, "the network configuration is malformed", format!("standard input: {why}"))
        };
        let value: Value = serde_json::from_slice(&text).map_err(|error| malformed(&error))?;
        if !value.is_object() {
            return Err(malformed(&"it is not a JSON object"));
        }
        let version = version_of(&value)?;
        let attachments = attachments(&value)?;
        let ipam_section = value["ipam"].clone();
        let fields: Fields = serde_path_to_error::deserialize(value)
            .map_err(|error| Error::configuration(format!("{}: {}", error.path(), error.inner())))?;
        let network = fields.name.unwrap_or_default();
        check_identifier(&network).map_err(|why| Error::configuration(format!("name: {why}")))?;
        let socket = fields.socket.unwrap_or_else(|| DEFAULT_SOCKET.into());
        if !socket.is_absolute() {
            return Err(Error::configuration(format!("socket: {} is not an absolute path", socket.display())));
        }
        if let Some(mtu) = fields.mtu.filter(|mtu| !MTUS.contains(mtu)) {
            let range = format!("{} to {}", MTUS.start(), MTUS.end());
            return Err(Error::configuration(format!(
                "mtu: {mtu} is not in the range {range}; remove the field to use the MTU that the vswitch computes"
            )));
        }
        let patience = fields.timeout_seconds.unwrap_or(PATIENCE);
        if !(1..=LONGEST_PATIENCE).contains(&patience) {
            return Err(Error::configuration(format!(
                "timeout_seconds: {patience} is not in the range 1 to {LONGEST_PATIENCE}"
            )));
        }
        let ipam = ipam_type(fields.ipam, fields.kind.as_deref())?;
        let (mac, ips) = fields.runtime.map_or((None, None), |runtime| (runtime.mac, runtime.ips));
        let mac = mac.filter(|mac| !mac.is_empty());
        let mac = mac.map(|text| text.parse().map_err(|why| Error::configuration(format!("runtimeConfig.mac: {why}"))));
        Ok(Self {
            version,
            network,
            socket,
            mtu: fields.mtu,
            ipam,
            ipam_section,
            requests_addresses: ips.is_some_and(|ips| !ips.is_empty()),
            dns: fields.dns.filter(|dns| dns.as_object().is_some_and(|fields| !fields.is_empty())),
            patience: Duration::from_secs(patience),
            mac: mac.transpose()?,
            previous: fields.previous,
            attachments,
            text,
        })
    }

    /// Returns the previous plugins' result, parsed and raw. `None` for the first plugin of a chain.
    ///
    /// # Errors
    /// [`Error`] if `prevResult` is malformed.
    pub(super) fn previous(&self) -> Result<Option<(Outcome, &Value)>, Error> {
        let Some(value) = &self.previous else { return Ok(None) };
        let outcome = serde_path_to_error::deserialize(value)
            .map_err(|error| Error::configuration(format!("prevResult.{}: {}", error.path(), error.inner())))?;
        Ok(Some((outcome, value)))
    }

    /// Returns the attachments that `GC` must keep: `cni.dev/valid-attachments` of the configuration. An empty list keeps none.
    ///
    /// # Errors
    /// If the field is missing. `GC` must not treat that as an empty list, or it would remove all ports.
    pub(super) fn attachments(&self) -> Result<&[Attached], Error> {
        self.attachments.as_deref().ok_or_else(|| {
            Error::configuration(format!("{ATTACHMENTS}: missing; GC needs the list of valid attachments"))
        })
    }
}

/// Returns `ipam.type`. `None` if it is missing or empty. `plugin` is the configuration's `type`.
fn ipam_type(ipam: Option<Ipam>, plugin: Option<&str>) -> Result<Option<String>, Error> {
    let kind = ipam.and_then(|ipam| ipam.kind).filter(|kind| !kind.is_empty());
    match kind.as_deref() {
        Some(kind) if kind.contains(['/', '\\']) || kind == "." || kind == ".." => {
            Err(Error::configuration(format!("ipam.type: `{kind}` is not the name of a plugin")))
        }
        // Another plugin runs this program as its IPAM plugin, which would create an interface.
        Some(NAME) if plugin.is_some_and(|plugin| plugin != NAME) => Err(Error::configuration(format!(
            "ipam.type: `{NAME}` assigns addresses only for plugins of the type `{NAME}`, not for `{}`; use host-local there",
            plugin.unwrap_or_default()
        ))),
        _ => Ok(kind),
    }
}

const ATTACHMENTS: &str = "cni.dev/valid-attachments";

/// Returns `None` if the field is missing. `null` is an empty list, since runtimes written in Go encode empty lists so.
fn attachments(value: &Value) -> Result<Option<Vec<Attached>>, Error> {
    match value.get(ATTACHMENTS) {
        None => Ok(None),
        Some(Value::Null) => Ok(Some(Vec::new())),
        Some(list) => serde_path_to_error::deserialize(list)
            .map(Some)
            .map_err(|error| Error::configuration(format!("{ATTACHMENTS}{}: {}", error.path(), error.inner()))),
    }
}

/// Returns the version that a network configuration names.
///
/// # Errors
/// [`Code::IncompatibleVersion`] if the field is missing or the plugin does not support the version.
pub(super) fn version_of(configuration: &Value) -> Result<Version, Error> {
    let names = Version::ALL.map(Version::name).join(", ");
    let incompatible = |says: &str| {
        let details = format!("cniVersion: {says}; this plugin supports {names}");
        Error::new(Code::IncompatibleVersion, "incompatible CNI versions", details)
    };
    match configuration.get("cniVersion") {
        Some(Value::String(name)) => {
            Version::named(name).ok_or_else(|| incompatible(&format!("`{name}` is not supported")))
        }
        Some(other) => Err(incompatible(&format!("{other} is not a version"))),
        // Configurations before version 0.2.0 have no `cniVersion`.
        None => Err(incompatible("missing")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(mut fields: Value) -> Result<NetConf, Error> {
        for (key, value) in [("cniVersion", "1.1.0"), ("name", "pods"), ("type", "bulkhead-cni")] {
            let fields = fields.as_object_mut().unwrap();
            fields.entry(key).or_insert_with(|| value.into());
        }
        NetConf::read(fields.to_string().into_bytes())
    }

    fn wrong(fields: Value) -> String {
        let error = read(fields).unwrap_err();
        assert_eq!(error.code, Code::InvalidConfiguration, "{error}");
        error.details
    }

    #[test]
    fn a_configuration_is_taken_in_the_versions_that_the_plugin_speaks_and_no_other() {
        for version in Version::ALL {
            assert_eq!(version_of(&json!({"cniVersion": version.name()})), Ok(version));
        }
        for (other, says) in [
            (json!({}), "missing"),
            (json!({"cniVersion": "0.3.1"}), "`0.3.1`"),
            (json!({"cniVersion": 1}), "1 is not a version"),
        ] {
            let error = version_of(&other).unwrap_err();
            assert_eq!(error.code, Code::IncompatibleVersion);
            assert!(error.details.contains(says) && error.details.contains("0.4.0, 1.0.0, 1.1.0"), "{error}");
        }
    }

    #[test]
    fn a_configuration_that_says_nothing_has_defaults_and_fields_of_others_are_accepted() {
        let conf = read(json!({"keyA": ["of another plugin"], "ipMasq": true, "args": {}})).unwrap();
        assert_eq!((conf.version, &*conf.network, conf.mtu, conf.ipam.clone()), (Version::V1_1, "pods", None, None));
        assert_eq!((conf.socket.to_str(), conf.patience), (Some("/run/bulkhead/admin.sock"), Duration::from_secs(20)));
        assert!(conf.previous().unwrap().is_none() && conf.dns.is_none() && conf.mac.is_none());
    }

    #[test]
    fn everything_that_may_be_said_is_taken() {
        let conf = read(json!({
            "socket": "/run/other.sock", "mtu": 9000, "timeout_seconds": 5, "ipam": {"type": "host-local", "ranges": []},
            "dns": {"nameservers": ["10.96.0.10"]}, "runtimeConfig": {"mac": "02:00:00:00:00:01"},
            "prevResult": {"interfaces": [{"name": "eth0", "sandbox": "/x"}]},
            "cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}],
        }))
        .unwrap();
        assert_eq!((conf.mtu, conf.ipam.as_deref(), conf.patience.as_secs()), (Some(9000), Some("host-local"), 5));
        assert_eq!(conf.mac.unwrap().to_string(), "02:00:00:00:00:01");
        assert_eq!(conf.previous().unwrap().unwrap().0.interfaces[0].name, "eth0");
        assert_eq!(conf.attachments().unwrap(), [Attached { container: "c1".into(), interface: "eth0".into() }]);
    }

    #[test]
    fn a_value_that_makes_no_sense_is_an_error_that_names_the_field() {
        for (fields, says) in [
            (json!({"mtu": 0}), "mtu: 0 is not in the range 1280 to 65535"),
            (json!({"mtu": "1500"}), "mtu: invalid type: string"),
            (json!({"socket": "admin.sock"}), "socket: admin.sock is not an absolute path"),
            (json!({"socket": 7}), "socket: invalid type"),
            (json!({"timeout_seconds": 0}), "timeout_seconds: 0 is not in the range 1 to 110"),
            (json!({"timeout_seconds": -1}), "timeout_seconds: invalid value"),
            (json!({"ipam": "host-local"}), "ipam: invalid type"),
            (json!({"ipam": {"type": 1}}), "ipam.type: invalid type"),
            (json!({"ipam": {"type": "../sh"}}), "ipam.type: `../sh` is not the name of a plugin"),
            (
                json!({"type": "ptp", "ipam": {"type": "bulkhead-cni"}}),
                "ipam.type: `bulkhead-cni` assigns addresses only for",
            ),
            (json!({"runtimeConfig": {"mac": "02:00"}}), "runtimeConfig.mac: `02:00` is not a unicast MAC address"),
            (json!({"name": ""}), "name: empty"),
            (json!({"name": "a/b"}), "name: `a/b` must start with"),
            (json!({"cni.dev/valid-attachments": [{"containerID": 1}]}), "cni.dev/valid-attachments[0].containerID: "),
        ] {
            let details = wrong(fields);
            assert!(details.starts_with(says), "{details} does not start with {says}");
        }
    }

    #[test]
    fn what_is_not_json_or_of_another_version_has_a_code_of_its_own() {
        for text in [&b""[..], b"{", b"[]", b"null", b"\xff"] {
            assert_eq!(NetConf::read(text.to_vec()).unwrap_err().code, Code::Decoding);
        }
        // The version is checked first, because fields may have other meanings in another version.
        assert_eq!(read(json!({"cniVersion": "2.0.0", "mtu": "x"})).unwrap_err().code, Code::IncompatibleVersion);
    }

    #[test]
    fn an_earlier_result_that_is_not_understood_is_an_error_when_it_is_asked_for_and_not_before() {
        let conf = read(json!({"prevResult": {"ips": [{"address": "10.1.0.300/24"}]}})).unwrap();
        let details = conf.previous().unwrap_err().details;
        assert!(details.starts_with("prevResult.ips[0].address: "), "{details}");
    }

    #[test]
    fn no_list_of_attachments_is_not_an_empty_one() {
        assert!(read(json!({})).unwrap().attachments().unwrap_err().details.starts_with("cni.dev/valid-attachments: "));
        for empty in [json!([]), json!(null)] {
            assert!(read(json!({"cni.dev/valid-attachments": empty})).unwrap().attachments().unwrap().is_empty());
        }
    }
}
