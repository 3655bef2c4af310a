//! What a lookup answers.

use std::fmt;

/// What a rule does with a packet that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// The packet may not pass.
    Deny,
    /// The packet may pass.
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

/// The answer for one key: the action, and the position of the rule that decided (none when no rule matched).
///
/// One number, `2 * position + (1 if deny)`, so that the first of several matching rules is the smallest number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Verdict(u32);

impl Verdict {
    /// The verdict when no rule matches: deny. Also what a batch's slots hold before they are answered.
    pub const NO_MATCH: Self = Self(u32::MAX);

    /// The verdict of the rule at `rule` in the list.
    pub(crate) const fn by(action: Action, rule: u32) -> Self {
        Self(rule << 1 | matches!(action, Action::Deny) as u32)
    }

    /// The verdict as a number; the earlier the rule the smaller.
    pub(crate) const fn code(self) -> u32 {
        self.0
    }

    /// The verdict that [`Verdict::code`] gave.
    pub(crate) const fn from_code(code: u32) -> Self {
        Self(code)
    }

    /// What to do with the packet.
    pub const fn action(self) -> Action {
        if self.is_allow() { Action::Allow } else { Action::Deny }
    }

    /// Whether the packet may pass.
    pub const fn is_allow(self) -> bool {
        self.0 & 1 == 0
    }

    /// The deciding rule's position in the list that the tables were built from.
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
