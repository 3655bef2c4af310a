//! The two directions of traffic.

use std::fmt;

/// The direction of traffic from the pod's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// Towards the pod.
    Ingress,
    /// From the pod.
    Egress,
}

impl Direction {
    /// Returns the direction's name: `ingress` or `egress`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }

    /// Returns the direction of the same traffic at its other end.
    pub const fn opposite(self) -> Self {
        match self {
            Self::Ingress => Self::Egress,
            Self::Egress => Self::Ingress,
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
