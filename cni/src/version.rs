//! Supported versions of the CNI specification.

use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Version {
    /// Version 0.4.0: has `CHECK`. Addresses in results name their family.
    V0_4,
    /// Version 1.0.0: addresses in results no longer name their family.
    V1_0,
    /// Version 1.1.0: has `GC` and `STATUS`. Interfaces in results have an MTU.
    V1_1,
}

impl Version {
    /// All versions, the newest last.
    pub(super) const ALL: [Self; 3] = [Self::V0_4, Self::V1_0, Self::V1_1];

    /// The newest version: used for errors if the configuration's is unknown.
    pub(super) const NEWEST: Self = Self::V1_1;

    /// Returns the version as `cniVersion` spells it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::V0_4 => "0.4.0",
            Self::V1_0 => "1.0.0",
            Self::V1_1 => "1.1.0",
        }
    }

    /// Parses a `cniVersion`. `None` if the version is not supported.
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.name() == name)
    }

    /// Returns the answer to `VERSION`, in the version that `input`, the runtime's request, names.
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
    fn versions_are_told_in_the_version_that_was_asked_in() {
        let expected = "{\n  \"cniVersion\": \"1.0.0\",\n  \"supportedVersions\": [\n    \"0.4.0\",\n    \"1.0.0\",\n    \"1.1.0\"\n  ]\n}";
        assert_eq!(Version::answer(br#"{"cniVersion":"1.0.0"}"#), expected);
        assert_eq!(Version::answer(b""), expected.replacen("1.0.0", "1.1.0", 1));
    }
}
