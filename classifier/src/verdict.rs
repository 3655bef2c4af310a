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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Verdict {
    action: Action,
    rule: u32,
}

impl Verdict {
    /// The verdict when no rule matches: deny. Also what a batch's slots hold before they are answered.
    pub const NO_MATCH: Self = Self { action: Action::Deny, rule: u32::MAX };

    /// The verdict of the rule at `rule` in the list.
    pub(crate) const fn by(action: Action, rule: u32) -> Self {
        Self { action, rule }
    }

    /// What to do with the packet.
    pub const fn action(self) -> Action {
        self.action
    }

    /// Whether the packet may pass.
    pub const fn is_allow(self) -> bool {
        matches!(self.action, Action::Allow)
    }

    /// The deciding rule's position in the list that the tables were built from.
    pub const fn rule(self) -> Option<usize> {
        if self.rule == u32::MAX { None } else { Some(self.rule as usize) }
    }
}
