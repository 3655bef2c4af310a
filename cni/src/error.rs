//! Errors as the specification has them: a code for the runtime, a message and details for people.

use serde::{Deserialize, Serialize};

use super::version::Version;

/// Codes of the specification, section 5, and from 100 those of this plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    /// The configuration has a version that the plugin does not know.
    IncompatibleVersion,
    /// There is no such container: nothing has to be cleaned up.
    UnknownContainer,
    /// A variable of the environment is missing or wrong.
    InvalidEnvironment,
    /// The configuration cannot be read.
    Io,
    /// What should be JSON is not, or has another form.
    Decoding,
    /// A value of the configuration makes no sense.
    InvalidConfiguration,
    /// It may work later.
    TryAgain,
    /// `ADD` would not work now.
    Unavailable,
    /// `ADD` would not work now, and pods that run may be cut off.
    UnavailableLimited,
    /// The vswitch will not have the pod, now or later.
    Refused,
    /// The kernel has refused something.
    Kernel,
    /// `CHECK` has found a difference.
    Different,
    /// An IPAM plugin gave no error of the specification's form, or an answer that makes no sense.
    Ipam,
    /// What an IPAM plugin said.
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

/// Why a command has failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}: {details}")]
pub(super) struct Error {
    pub(super) code: Code,
    /// A few words.
    pub(super) message: String,
    /// What exactly, and the remedy.
    pub(super) details: String,
}

impl Error {
    pub(super) fn new(code: Code, message: &str, details: impl Into<String>) -> Self {
        Self { code, message: message.to_owned(), details: details.into() }
    }

    /// A value of the configuration that makes no sense.
    pub(super) fn configuration(details: impl Into<String>) -> Self {
        Self::new(Code::InvalidConfiguration, "invalid network configuration", details)
    }

    /// A variable of the environment that is missing or wrong.
    pub(super) fn environment(details: impl Into<String>) -> Self {
        Self::new(Code::InvalidEnvironment, "invalid environment variables", details)
    }

    /// Something that the kernel has refused.
    pub(super) fn kernel(what: impl Into<String>) -> Self {
        Self::new(Code::Kernel, "the interface cannot be set up", what)
    }

    /// Something that is not as `ADD` has left it.
    pub(super) fn different(what: impl Into<String>) -> Self {
        Self::new(Code::Different, "the attachment is not as it was added", what)
    }

    /// The error as the runtime reads it.
    pub(super) fn to_json(&self, version: Version) -> String {
        let written = Written {
            version: version.name().to_owned(),
            code: self.code.number(),
            message: self.message.clone(),
            details: self.details.clone(),
        };
        serde_json::to_string_pretty(&written).expect("strings and a number")
    }

    /// The error that another plugin has written; none when it is of another form.
    pub(super) fn read(text: &[u8]) -> Option<Self> {
        let Written { code, message, details, .. } = serde_json::from_slice(text).ok()?;
        Some(Self { code: Code::Delegated(code), message, details })
    }
}

/// An error on standard output.
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
