//! Judges whether nf_tables' chains let a packet pass a hook of the node's kernel. Source: `include/uapi/linux/netfilter/nf_tables.h`.
//!
//! ```text
//!   chains and rules of a hook --walk(packet)--> each base chain: accepts | drops | drops unless a rule that is not understood accepts
//! ```
//!
//! Includes the rules of `iptables-nft`, but not of legacy `iptables`. Rules are read once; nothing is changed.
//!
//! A rule that this module does not fully understand, for example one with a set, may match or not. Such a rule never makes a chain drop,
//! because most of them drop little: `ct state invalid drop`. If it accepts, the answer is uncertain.

mod expression;
mod walk;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use super::netlink::{ask_of, attributes};
use super::netlink_write::attribute;
use expression::{Expression, be_number, text};
use walk::Walk;

/// `NFNL_SUBSYS_NFTABLES`, in the upper byte of a message's type, with `NFT_MSG_GETCHAIN` and `NFT_MSG_GETRULE`.
const GET_CHAIN: u16 = 10 << 8 | 4;
const GET_RULE: u16 = 10 << 8 | 7;
/// Bytes of `struct nfgenmsg`: family, version, resource.
const HEADER: usize = 4;

/// A hook of the kernel's packet path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirewallHook {
    /// `NF_INET_LOCAL_IN`: packets to the node itself.
    Input,
    /// `NF_INET_FORWARD`: packets that the node forwards.
    Forward,
}

/// The known fields of a connection's first packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirewallPacket {
    /// Whether it is an IPv4 packet.
    pub is_v4: bool,
    /// Name of the interface that receives it. `None` if unknown.
    pub input: Option<String>,
    /// Name of the interface that sends it. `None` if unknown, and for a packet to the node.
    pub output: Option<String>,
    /// Source address. `None` if unknown.
    pub source: Option<IpAddr>,
    /// Destination address. `None` if unknown.
    pub destination: Option<IpAddr>,
    /// Destination port of a UDP packet. `None` if the protocol is unknown.
    pub udp_port: Option<u16>,
}

/// A base chain that drops a packet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FirewallDrop {
    /// The family of the chain's table, as `nft` names it: `ip`, `ip6` or `inet`.
    pub family: &'static str,
    /// The table's name.
    pub table: String,
    /// The chain's name.
    pub chain: String,
    /// Whether no rule accepts the packet. False if a rule that is not understood may accept it.
    pub is_certain: bool,
}

/// The base chains of the hooks of [`FirewallHook`], with all that they call.
#[derive(Clone, Debug, Default)]
pub struct Firewall {
    tables: Vec<Table>,
}

/// A table with base chains at a hook.
#[derive(Clone, Debug, Default)]
struct Table {
    /// `NFPROTO_INET`, `NFPROTO_IPV4` or `NFPROTO_IPV6`.
    family: u8,
    name: String,
    bases: Vec<Base>,
    /// The rules of each chain of the table, in order.
    chains: BTreeMap<String, Vec<Vec<Expression>>>,
}

/// A base chain.
#[derive(Clone, Debug)]
struct Base {
    hook: FirewallHook,
    name: String,
    /// Whether the policy is to drop.
    drops: bool,
}

/// A chain's place, as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    /// The number of the table's family, `NFPROTO_*`.
    family: u8,
    /// The table's name.
    table: String,
    /// The chain's name.
    name: String,
    /// The hook's number and whether the policy is to drop. `None` for a chain that rules call.
    base: Option<(u32, bool)>,
}

/// Returns the names of all chains of the tables `ip`, `ip6` and `inet` in the calling thread's network namespace.
///
/// # Errors
/// If the kernel refuses, for example without `CAP_NET_ADMIN`.
pub fn nft_chain_names() -> io::Result<BTreeSet<String>> {
    Ok(places()?.into_iter().map(|place| place.name).collect())
}

impl Firewall {
    /// Reads the chains in the calling thread's network namespace.
    ///
    /// # Errors
    /// If the kernel refuses, for example without `CAP_NET_ADMIN`.
    pub fn read() -> io::Result<Self> {
        let mut tables: Vec<Table> = Vec::new();
        for Place { family, table: name, name: chain, base } in places()? {
            let Some((hook, drops)) = base.and_then(|(number, drops)| Some((FirewallHook::of(number)?, drops))) else {
                continue;
            };
            let base = Base { hook, name: chain, drops };
            match tables.iter_mut().find(|table| table.family == family && table.name == name) {
                Some(table) => table.bases.push(base),
                None => tables.push(Table { family, name, bases: vec![base], chains: BTreeMap::new() }),
            }
        }
        tables.iter_mut().try_for_each(Table::read_rules)?;
        Ok(Self { tables })
    }

    /// Returns the base chains of a hook that drop the packet.
    pub fn drops(&self, hook: FirewallHook, packet: &FirewallPacket) -> BTreeSet<FirewallDrop> {
        let mut found = BTreeSet::new();
        for table in self.tables.iter().filter(|table| table.sees(packet)) {
            for base in table.bases.iter().filter(|base| base.hook == hook) {
                let mut walk = Walk::new(packet, &table.chains);
                if !walk.passes(&base.name, base.drops) {
                    let (family, table) = (table.family_name(), table.name.clone());
                    let is_certain = !walk.is_uncertain();
                    found.insert(FirewallDrop { family, table, chain: base.name.clone(), is_certain });
                }
            }
        }
        found
    }
}

impl FirewallHook {
    /// Returns the hook with this number. `None` for others.
    const fn of(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Input),
            2 => Some(Self::Forward),
            _ => None,
        }
    }
}

impl Table {
    const INET: u8 = 1;
    const V4: u8 = 2;
    const V6: u8 = 10;

    fn family_name(&self) -> &'static str {
        match self.family {
            Self::V4 => "ip",
            Self::V6 => "ip6",
            _ => "inet",
        }
    }

    /// Whether the table's chains see packets of this packet's family.
    const fn sees(&self, packet: &FirewallPacket) -> bool {
        self.family == Self::INET || self.family == (if packet.is_v4 { Self::V4 } else { Self::V6 })
    }

    /// Reads the table's rules.
    fn read_rules(&mut self) -> io::Result<()> {
        /// `NFTA_RULE_TABLE`.
        const TABLE: u16 = 1;
        let mut body = vec![self.family, 0, 0, 0];
        attribute(&mut body, TABLE, &[self.name.as_bytes(), b"\0"].concat());
        let (name, chains) = (&self.name, &mut self.chains);
        ask_of(libc::NETLINK_NETFILTER, GET_RULE, true, &body, |message| {
            if let Some((table, chain, rule)) = rule(message)
                && table == *name
            {
                chains.entry(chain).or_default().push(rule);
            }
        })
    }
}

/// Lists the chains of all tables for IP packets.
fn places() -> io::Result<Vec<Place>> {
    let mut found = Vec::new();
    // Family 0: of all families.
    ask_of(libc::NETLINK_NETFILTER, GET_CHAIN, true, &[0; HEADER], |message| found.extend(Place::of(message)))?;
    found.retain(|place| [Table::INET, Table::V4, Table::V6].contains(&place.family));
    Ok(found)
}

impl Place {
    /// Parses a netlink message that describes a chain. `None` if the message lacks the chain's family, table or name.
    fn of(message: &[u8]) -> Option<Self> {
        /// `NFTA_CHAIN_TABLE`, `NFTA_CHAIN_NAME`, `NFTA_CHAIN_HOOK`, `NFTA_CHAIN_POLICY`.
        const TABLE: u16 = 1;
        const NAME: u16 = 3;
        const HOOK: u16 = 4;
        const POLICY: u16 = 5;
        /// `NFTA_HOOK_HOOKNUM`, in a chain's hook.
        const NUMBER: u16 = 1;
        /// `NF_DROP`.
        const DROP: u32 = 0;
        let (mut table, mut name, mut hook, mut drops) = (None, None, None, false);
        for (kind, value) in attributes(message.get(HEADER..)?) {
            match kind {
                TABLE => table = Some(text(value)),
                NAME => name = Some(text(value)),
                HOOK => {
                    let number = attributes(value).find(|&(kind, _)| kind == NUMBER);
                    hook = number.and_then(|(_, value)| be_number(value));
                }
                POLICY => drops = be_number(value) == Some(DROP),
                _ => {}
            }
        }
        Some(Self { family: *message.first()?, table: table?, name: name?, base: hook.map(|hook| (hook, drops)) })
    }
}

/// Parses a netlink message that describes a rule. Returns the names of its table and chain, and its expressions in order. `None` if the message
/// lacks one of the names.
fn rule(message: &[u8]) -> Option<(String, String, Vec<Expression>)> {
    /// `NFTA_RULE_TABLE`, `NFTA_RULE_CHAIN`, `NFTA_RULE_EXPRESSIONS`.
    const TABLE: u16 = 1;
    const CHAIN: u16 = 2;
    const EXPRESSIONS: u16 = 4;
    let (mut table, mut chain, mut expressions) = (None, None, Vec::new());
    for (kind, value) in attributes(message.get(HEADER..)?) {
        match kind {
            TABLE => table = Some(text(value)),
            CHAIN => chain = Some(text(value)),
            EXPRESSIONS => expressions.extend(attributes(value).map(|(_, element)| Expression::of(element))),
            _ => {}
        }
    }
    Some((table?, chain?, expressions))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(parts: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![2, 0, 0, 0];
        parts.iter().for_each(|(kind, value)| attribute(&mut body, *kind, value));
        body
    }

    #[test]
    fn a_base_chain_is_told_with_its_hook_and_policy() {
        let mut hook = Vec::new();
        attribute(&mut hook, 1, &2_u32.to_be_bytes());
        let whole = message(&[(1, b"filter\0"), (3, b"FORWARD\0"), (4, &hook), (5, &0_u32.to_be_bytes())]);
        let (table, name) = ("filter".to_owned(), "FORWARD".to_owned());
        assert_eq!(Place::of(&whole), Some(Place { family: 2, table, name, base: Some((2, true)) }));
        assert_eq!(Place::of(&message(&[(1, b"filter\0"), (3, b"X\0")])).unwrap().base, None);
        // A truncated message never has a policy that it does not tell.
        let truncated = (0..whole.len()).filter_map(|length| Place::of(&whole[..length]));
        let bases: BTreeSet<_> = truncated.map(|place| place.base).collect();
        assert_eq!(bases, [None, Some((2, false))].into());
    }

    #[test]
    fn a_chain_of_the_packets_family_alone_drops_it() {
        let table = |family, drops| Table {
            family,
            name: "t".to_owned(),
            bases: vec![Base { hook: FirewallHook::Forward, name: "f".to_owned(), drops }],
            chains: BTreeMap::new(),
        };
        let firewall = Firewall { tables: vec![table(2, true), table(1, false), table(10, true), table(1, true)] };
        let packet = |is_v4| FirewallPacket {
            is_v4,
            input: None,
            output: None,
            source: None,
            destination: None,
            udp_port: None,
        };
        let at = FirewallHook::Forward;
        let told = |is_v4| firewall.drops(at, &packet(is_v4)).into_iter().map(|drop| drop.family).collect::<Vec<_>>();
        assert_eq!((told(true), told(false)), (vec!["inet", "ip"], vec!["inet", "ip6"]));
        assert!(firewall.drops(FirewallHook::Input, &packet(true)).is_empty());
    }
}
