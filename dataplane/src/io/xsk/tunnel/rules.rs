//! The routing rules that let pods' packets look into tables of their own first.
//! Source: `include/uapi/linux/fib_rules.h`.

use std::io;

use crate::io::xsk::netlink::{ask, attributes};
use crate::io::xsk::netlink_write::{attribute, change};
use crate::io::xsk::own_routes::PROTOCOL;

/// A rule: packets that arrive over an interface, or that must leave over it, look into a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule<'a> {
    /// The interface's name.
    pub(super) interface: &'a str,
    /// Whether the rule is for the node's own packets whose sender demands the interface (`oif`), instead of packets that arrive over it.
    pub(super) leaves: bool,
    /// The table's number, which is also the rule's priority: after the node's own addresses (0), before the main table (32,766). Network
    /// plugins and kube-proxy use others.
    pub(super) table: u32,
}

/// `FRA_PROTOCOL`: the number of the program that added the rule.
const RULE_PROTOCOL: u16 = 21;
/// Bytes of `struct fib_rule_hdr`.
const HEADER: usize = 12;

/// Adds the rule for both families. One that exists already stays.
pub(super) fn add(rule: Rule<'_>) -> io::Result<()> {
    for family in [libc::AF_INET, libc::AF_INET6] {
        let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        match change(libc::RTM_NEWRULE, flags, &message(family, rule)) {
            // The kernel has no IPv6, so it has no such packets either.
            Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) && family == libc::AF_INET6 => {}
            Err(error) if error.raw_os_error() != Some(libc::EEXIST) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Removes all rules of the vswitch, of both families and of any table.
pub(super) fn remove_all() -> io::Result<()> {
    let mut own = Vec::new();
    // The family 0 (`AF_UNSPEC`) requests the rules of all families.
    ask(libc::RTM_GETRULE, true, &[0; HEADER], |rule| own.extend(is_own(rule).then(|| rule.to_vec())))?;
    own.iter().try_for_each(|rule| change(libc::RTM_DELRULE, 0, rule))
}

/// Whether the kernel's description of a rule has the vswitch's protocol number.
fn is_own(rule: &[u8]) -> bool {
    attributes(rule.get(HEADER..).unwrap_or_default()).any(|(kind, value)| kind == RULE_PROTOCOL && value == [PROTOCOL])
}

/// Builds the `struct fib_rule_hdr` that adds the rule for `AF_INET` or `AF_INET6`, with its attributes.
fn message(family: i32, rule: Rule<'_>) -> Vec<u8> {
    /// `FR_ACT_TO_TBL`; `FRA_IIFNAME`, `FRA_OIFNAME`, `FRA_PRIORITY`, `FRA_TABLE`.
    const TO_TABLE: u8 = 1;
    const FROM_INTERFACE: u16 = 3;
    const TO_INTERFACE: u16 = 17;
    const RULE_PRIORITY: u16 = 6;
    const TABLE: u16 = 15;
    let family = u8::try_from(family).expect("address families are small");
    // Family, lengths of destination and source, type of service, table (in the attribute), two reserved bytes, action, flags.
    let mut body = vec![family, 0, 0, 0, 0, 0, 0, TO_TABLE, 0, 0, 0, 0];
    let interface = if rule.leaves { TO_INTERFACE } else { FROM_INTERFACE };
    attribute(&mut body, interface, &[rule.interface.as_bytes(), b"\0"].concat());
    attribute(&mut body, RULE_PRIORITY, &rule.table.to_ne_bytes());
    attribute(&mut body, TABLE, &rule.table.to_ne_bytes());
    attribute(&mut body, RULE_PROTOCOL, &[PROTOCOL]);
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_names_its_interface_and_table() {
        let rule = Rule { interface: "bh-node", leaves: false, table: 98 };
        let body = message(libc::AF_INET6, rule);
        assert_eq!((body[0], body[7]), (10, 1));
        let written: Vec<_> = attributes(&body[12..]).collect();
        let number = 98_u32.to_ne_bytes();
        assert_eq!(written, [(3, &b"bh-node\0"[..]), (6, &number), (15, &number), (21, &[98])]);
        let body = message(libc::AF_INET, Rule { leaves: true, ..rule });
        assert_eq!(attributes(&body[12..]).next(), Some((17, &b"bh-node\0"[..])));
        assert!(is_own(&body) && !is_own(&[]));
    }
}
