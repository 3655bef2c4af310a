//! The result of a lookup.

use std::fmt;

/// What a rule does with a matching packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// Drop the packet.
    Deny,
    /// Forward the packet.
    Allow,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deny => "deny",
            Self::Allow => "allow",
        })
    }
}

/// The result for one key: the action, and the position of the deciding rule, if one matched.
///
/// Encoded as `2 * position + (1 if deny)`, so that the smallest of several codes belongs to the first rule.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Verdict(u32);

impl Verdict {
    /// The verdict if no rule matches: deny. Also the initial value for the slots of a batch.
    pub const NO_MATCH: Self = Self(u32::MAX);

    pub(crate) const fn by(action: Action, rule: u32) -> Self {
        Self(rule << 1 | matches!(action, Action::Deny) as u32)
    }

    /// Returns the verdict as a number. Earlier rules have smaller numbers.
    pub(crate) const fn code(self) -> u32 {
        self.0
    }

    /// Returns the verdict of a number; the inverse of [`Verdict::code`].
    pub(crate) const fn from_code(code: u32) -> Self {
        Self(code)
    }

    /// Whether this verdict's rule is before the other verdict's rule in their list. A verdict without a rule comes after all others.
    pub const fn precedes(self, other: Self) -> bool {
        self.0 >> 1 < other.0 >> 1
    }

    /// Whether the packet is allowed or denied.
    pub const fn action(self) -> Action {
        if self.is_allow() { Action::Allow } else { Action::Deny }
    }

    /// Whether the packet is allowed.
    pub const fn is_allow(self) -> bool {
        self.0 & 1 == 0
    }

    /// Returns the deciding rule's position in the list. `None` if no rule matched.
    pub const fn rule(self) -> Option<usize> {
        if self.0 == u32::MAX { None } else { Some((self.0 >> 1) as usize) }
    }
}

impl fmt::Debug for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rule() {
            Some(rule) => write!(f, "{} by rule {rule}", self.action()),
            None => f.write_str("no match"),
        }
    }
}
