//! The versions of the specification that the plugin speaks.

use serde_json::{Value, json};

use super::error::{Code, Error};

/// A version of the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Version {
    /// `CHECK`; addresses of results say of which family they are.
    V0_4,
    /// Addresses no longer say so.
    V1_0,
    /// `GC` and `STATUS`; interfaces of results have an MTU.
    V1_1,
}

impl Version {
    /// All of them, the newest last.
    pub(super) const ALL: [Self; 3] = [Self::V0_4, Self::V1_0, Self::V1_1];

    /// The newest one, for errors of which nobody knows the version.
    pub(super) const NEWEST: Self = Self::V1_1;

    /// As configurations have it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::V0_4 => "0.4.0",
            Self::V1_0 => "1.0.0",
            Self::V1_1 => "1.1.0",
        }
    }

    /// The version of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.name() == name)
    }

    /// The version of a network configuration.
    ///
    /// # Errors
    /// When the plugin does not speak it.
    pub(super) fn of(configuration: &Value) -> Result<Self, Error> {
        let names = Self::ALL.map(Self::name).join(", ");
        let incompatible = |says: &str| {
            let details = format!("cniVersion: {says}; this plugin speaks {names}");
            Error::new(Code::IncompatibleVersion, "incompatible CNI versions", details)
        };
        match configuration.get("cniVersion") {
            Some(Value::String(name)) => Self::named(name).ok_or_else(|| incompatible(&format!("it is `{name}`"))),
            Some(other) => Err(incompatible(&format!("it is {other} and not a version"))),
            // Before 0.2.0 there was no such field.
            None => Err(incompatible("there is none")),
        }
    }

    /// The answer to `VERSION`. `input` is what the runtime has written, which names the version that it wants to be answered in.
    pub(super) fn answer(input: &[u8]) -> String {
        let wanted = serde_json::from_slice::<Value>(input).ok();
        let wanted = wanted.as_ref().and_then(|input| input.get("cniVersion")?.as_str());
        let answer = json!({
            "cniVersion": wanted.unwrap_or(Self::NEWEST.name()),
            "supportedVersions": Self::ALL.map(Self::name),
        });
        format!("{answer:#}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_taken_in_the_versions_that_the_plugin_speaks_and_no_other() {
        for version in Version::ALL {
            assert_eq!(Version::of(&json!({"cniVersion": version.name()})), Ok(version));
        }
        for (other, says) in [
            (json!({}), "there is none"),
            (json!({"cniVersion": "0.3.1"}), "`0.3.1`"),
            (json!({"cniVersion": 1}), "is 1"),
        ] {
            let error = Version::of(&other).unwrap_err();
            assert_eq!(error.code, Code::IncompatibleVersion);
            assert!(error.details.contains(says) && error.details.contains("0.4.0, 1.0.0, 1.1.0"), "{error}");
        }
    }

    #[test]
    fn versions_are_told_in_the_version_that_was_asked_in() {
        let expected = "{\n  \"cniVersion\": \"1.0.0\",\n  \"supportedVersions\": [\n    \"0.4.0\",\n    \"1.0.0\",\n    \"1.1.0\"\n  ]\n}";
        assert_eq!(Version::answer(br#"{"cniVersion":"1.0.0"}"#), expected);
        assert_eq!(Version::answer(b""), expected.replacen("1.0.0", "1.1.0", 1));
    }
}
