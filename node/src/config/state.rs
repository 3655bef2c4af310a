//! Settings of the policy source.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use bulkhead_cluster::kubernetes::Access;
use bulkhead_control::source::{self, ForeignKinds, Loaded, Options, SourceErrors};
use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

use super::NodeRanges;

/// The policy source: files or an API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StateConfig {
    /// Files and folders. Relative paths start at the configuration's folder. Empty with an API server.
    pub paths: Vec<PathBuf>,
    /// Settings of the API server as policy source. `None` if files are the source.
    pub kubernetes: Option<KubernetesConfig>,
    /// Settings for parsing objects. By default, a faulty object does not block the others.
    pub options: Options,
    /// What to do if the state does not load at start.
    pub when_missing: WhenMissing,
    /// What to do if a changed state does not load.
    pub when_refused: WhenRefused,
    /// The pod networks of nodes, instead of those in their Node objects.
    pub node_ranges: NodeRanges,
}

impl StateConfig {
    /// Loads the files' objects.
    ///
    /// # Errors
    /// If the files cannot be read, or their objects not be parsed.
    pub(crate) fn load(&self, options: Options) -> Result<Loaded, SourceErrors> {
        let mut loaded = source::load(&self.paths, options)?;
        self.node_ranges.complete_all(&mut loaded.objects);
        Ok(loaded)
    }
}

/// What happens with policies of other products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum ForeignPolicies {
    /// They are counted, with a warning, and have no effect.
    #[default]
    Off,
    /// They are audited: connections that they would deny pass and are counted.
    Audit,
    /// They are enforced.
    Enforce,
}

impl ForeignPolicies {
    /// Returns how their objects are read.
    pub(crate) const fn kinds(self) -> ForeignKinds {
        match self {
            Self::Off => ForeignKinds::Skip,
            Self::Audit => ForeignKinds::Audit,
            Self::Enforce => ForeignKinds::Enforce,
        }
    }
}

impl<'de> Deserialize<'de> for ForeignPolicies {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;

        impl Visitor<'_> for Written {
            type Value = ForeignPolicies;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("enforce, audit or off")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ForeignPolicies, E> {
                match text {
                    "off" => Ok(ForeignPolicies::Off),
                    "audit" => Ok(ForeignPolicies::Audit),
                    "enforce" => Ok(ForeignPolicies::Enforce),
                    _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
                }
            }

            /// YAML 1.1 reads `off` as a boolean.
            fn visit_bool<E: de::Error>(self, on: bool) -> Result<ForeignPolicies, E> {
                if on { Err(E::invalid_value(Unexpected::Bool(on), &self)) } else { Ok(ForeignPolicies::Off) }
            }
        }

        deserializer.deserialize_any(Written)
    }
}

/// Access to the API server, and what to do while it is unreachable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KubernetesConfig {
    /// Address and credentials of the API server.
    pub access: Access,
    /// What to do until the first connection succeeds.
    pub when_unreachable: WhenUnreachable,
    /// The folder in which the last good state is saved.
    pub folder: PathBuf,
    /// Maximum age of the state at which `/readyz` still reports ready.
    pub stale_after: Duration,
}

/// What to do until the first connection to the API server succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WhenUnreachable {
    /// Attach to the interfaces, deny pod traffic, and wait for the API server.
    #[default]
    Deny,
    /// Enforce the state that an earlier process saved. Without one, as [`Self::Deny`].
    LastGood,
}

/// What to do if the state does not load at start. Pod traffic is never forwarded without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum WhenMissing {
    /// Exit with an error, which the service manager sees.
    #[default]
    Exit,
    /// Attach, drop all packets except the node's own traffic over the uplink, and wait for a state.
    Deny,
}

/// What to do if a changed state does not load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum WhenRefused {
    /// Keep enforcing the last good state.
    #[default]
    Keep,
    /// Deny as without a state until one loads, for clusters where outdated policy is worse than an outage.
    Deny,
}
