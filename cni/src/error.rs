//! CNI errors: a code for the runtime, a message and details for people.

use serde::{Deserialize, Serialize};

use super::version::Version;

/// Error codes: those of the specification's section 5, and from 100 on those of this plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    /// The plugin does not support the configuration's version.
    IncompatibleVersion,
    /// The container does not exist, so it needs no cleanup.
    UnknownContainer,
    /// An environment variable is missing or malformed.
    InvalidEnvironment,
    /// Standard input cannot be read.
    Io,
    /// The input is not JSON, or not of the expected form.
    Decoding,
    /// A configuration field has an invalid value.
    InvalidConfiguration,
    /// The command may succeed later.
    TryAgain,
    /// `ADD` would fail now.
    Unavailable,
    /// `ADD` would fail now, and running pods may have no network.
    UnavailableLimited,
    /// The vswitch permanently refuses the pod.
    Refused,
    /// The kernel refused a request.
    Kernel,
    /// `CHECK` found a difference from `ADD`'s result.
    Different,
    /// An IPAM plugin failed without a CNI error, or its answer is malformed.
    Ipam,
    /// An IPAM plugin failed with this code.
    Delegated(u32),
}

impl Code {
    const fn number(self) -> u32 {
        match self {
            Self::IncompatibleVersion => 1,
            Self::UnknownContainer => 3,
            Self::InvalidEnvironment => 4,
            Self::Io => 5,
            Self::Decoding => 6,
            Self::InvalidConfiguration => 7,
            Self::TryAgain => 11,
            Self::Unavailable => 50,
            Self::UnavailableLimited => 51,
            Self::Refused => 100,
            Self::Kernel => 101,
            Self::Different => 102,
            Self::Ipam => 103,
            Self::Delegated(code) => code,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}: {details}")]
pub(super) struct Error {
    pub(super) code: Code,
    pub(super) message: String,
    /// The cause and the remedy.
    pub(super) details: String,
}

impl Error {
    pub(super) fn new(code: Code, message: &str, details: impl Into<String>) -> Self {
        Self { code, message: message.to_owned(), details: details.into() }
    }

    /// Returns an error about an invalid field of the network configuration.
    pub(super) fn configuration(details: impl Into<String>) -> Self {
        Self::new(Code::InvalidConfiguration, "invalid network configuration", details)
    }

    /// Returns an error about a missing or malformed environment variable.
    pub(super) fn environment(details: impl Into<String>) -> Self {
        Self::new(Code::InvalidEnvironment, "invalid environment variables", details)
    }

    /// Returns an error about a request that the kernel refused.
    pub(super) fn kernel(what: impl Into<String>) -> Self {
        Self::new(Code::Kernel, "the interface cannot be set up", what)
    }

    /// Returns an error about a difference from `ADD`'s result.
    pub(super) fn different(what: impl Into<String>) -> Self {
        Self::new(Code::Different, "the attachment differs from the result of ADD", what)
    }

    pub(super) fn to_json(&self, version: Version) -> String {
        let written = Written {
            version: version.name().to_owned(),
            code: self.code.number(),
            message: self.message.clone(),
            details: self.details.clone(),
        };
        serde_json::to_string_pretty(&written).expect("strings and a number")
    }

    /// Parses another plugin's error. `None` if the text is not a CNI error.
    pub(super) fn read(text: &[u8]) -> Option<Self> {
        let Written { code, message, details, .. } = serde_json::from_slice(text).ok()?;
        Some(Self { code: Code::Delegated(code), message, details })
    }
}

/// The JSON form of an error.
#[derive(Debug, Serialize, Deserialize)]
struct Written {
    #[serde(rename = "cniVersion", default)]
    version: String,
    code: u32,
    #[serde(rename = "msg")]
    message: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    details: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_version_code_message_and_details() {
        let error = Error::configuration("mtu: 12 is too small");
        let expected = r#"{
  "cniVersion": "1.0.0",
  "code": 7,
  "msg": "invalid network configuration",
  "details": "mtu: 12 is too small"
}"#;
        assert_eq!(error.to_json(Version::V1_0), expected);
        assert!(!Error::environment("").to_json(Version::V1_1).contains("details"));
    }

    #[test]
    fn the_error_of_another_plugin_is_passed_on_as_it_is() {
        let text = br#"{"cniVersion":"1.0.0","code":11,"msg":"no addresses left","details":"10.1.0.0/30"}"#;
        let error = Error::read(text).unwrap();
        assert_eq!(
            (error.code, &*error.message, &*error.details),
            (Code::Delegated(11), "no addresses left", "10.1.0.0/30")
        );
        assert!(error.to_json(Version::V1_0).contains("\"code\": 11"));
        for other in [&b""[..], b"panic: oh", b"{}", br#"{"code":"7","msg":"x"}"#] {
            assert_eq!(Error::read(other), None);
        }
    }
}
