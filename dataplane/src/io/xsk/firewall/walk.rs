//! Follows a packet through the chains of a table.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::FirewallPacket;
use super::expression::{Expression, Field, Verdict};
use crate::io::xsk::netlink::octets;

/// Maximum depth of calls, as in the kernel (`NFT_JUMP_STACK_SIZE`).
const DEPTH: usize = 16;
/// Maximum number of rules that one walk looks at. Beyond that the answer is uncertain.
const RULES: usize = 100_000;
/// The number of UDP, and the offset of the destination port in its header.
const UDP: u8 = 17;
const DESTINATION_PORT: u32 = 2;

/// Where a chain leaves a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Accepted,
    Dropped,
    /// At the end of the chain.
    Through,
}

/// Whether a rule applies to the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Applies {
    Yes,
    No,
    Maybe,
}

/// A packet on its way through a table.
pub(super) struct Walk<'a> {
    packet: &'a FirewallPacket,
    chains: &'a BTreeMap<String, Vec<Vec<Expression>>>,
    /// Whether a rule that is not understood may accept the packet.
    is_uncertain: bool,
    /// Number of rules looked at.
    seen: usize,
}

impl<'a> Walk<'a> {
    /// Starts a walk through these chains, given by name with their rules.
    pub(super) const fn new(packet: &'a FirewallPacket, chains: &'a BTreeMap<String, Vec<Vec<Expression>>>) -> Self {
        Self { packet, chains, is_uncertain: false, seen: 0 }
    }

    /// Whether a base chain lets the packet pass, if no rule applies that is not understood. `drops` is the chain's policy.
    pub(super) fn passes(&mut self, chain: &str, drops: bool) -> bool {
        match self.chain(chain, 0) {
            End::Accepted => true,
            End::Dropped => false,
            End::Through => !drops,
        }
    }

    /// Whether a rule that is not understood may accept the packet before the chain drops it.
    pub(super) const fn is_uncertain(&self) -> bool {
        self.is_uncertain
    }

    fn chain(&mut self, name: &str, depth: usize) -> End {
        // A copy of the reference, so that the rules do not borrow `self`.
        let chains = self.chains;
        for rule in chains.get(name).into_iter().flatten() {
            self.seen += 1;
            if depth > DEPTH || self.seen > RULES {
                self.is_uncertain = true;
                return End::Through;
            }
            let (applies, verdict) = self.rule(rule);
            let Some(verdict) = verdict else { continue };
            match (applies, verdict) {
                (Applies::No, _) | (_, Verdict::Continue) => {}
                (Applies::Yes, Verdict::Accept) => return End::Accepted,
                (Applies::Yes, Verdict::Drop) => return End::Dropped,
                (Applies::Yes, Verdict::Return) => return End::Through,
                (Applies::Yes, Verdict::Goto(chain)) => return self.chain(chain, depth + 1),
                (Applies::Yes, Verdict::Jump(chain)) => match self.chain(chain, depth + 1) {
                    End::Through => {}
                    end => return end,
                },
                // A return may skip a rule that drops.
                (Applies::Maybe, Verdict::Accept | Verdict::Return) => self.is_uncertain = true,
                (Applies::Maybe, Verdict::Drop) => {}
                (Applies::Maybe, Verdict::Jump(chain) | Verdict::Goto(chain)) => {
                    self.is_uncertain |= self.chain(chain, depth + 1) == End::Accepted;
                }
            }
        }
        End::Through
    }

    /// Returns whether a rule applies, and its verdict. The verdict is `None` if the rule has none, or one that is not understood.
    fn rule<'r>(&mut self, rule: &'r [Expression]) -> (Applies, Option<&'r Verdict>) {
        let mut registers: BTreeMap<u32, Option<Vec<u8>>> = BTreeMap::new();
        let mut applies = Applies::Yes;
        for expression in rule {
            match expression {
                Expression::Load { to, field } => drop(registers.insert(*to, self.load(field))),
                Expression::Mask { from, to, mask, flip } => {
                    let bits = |bytes: &Vec<u8>| {
                        let masked = bytes.iter().zip(mask).zip(flip).map(|((byte, mask), flip)| (byte & mask) ^ flip);
                        masked.collect()
                    };
                    let result = registers.get(from).and_then(Option::as_ref).map(bits);
                    registers.insert(*to, result);
                }
                Expression::Compare { register, equal, value } => {
                    match registers.get(register).and_then(Option::as_ref) {
                        Some(known) if known.starts_with(value) == *equal => {}
                        Some(_) => return (Applies::No, None),
                        None => applies = Applies::Maybe,
                    }
                }
                Expression::Verdict(verdict) => return (applies, Some(verdict)),
                Expression::Undecided => {
                    self.is_uncertain = true;
                    return (applies, None);
                }
                Expression::Fails => return (Applies::No, None),
                Expression::Unknown => applies = Applies::Maybe,
                Expression::Neutral => {}
            }
        }
        (applies, None)
    }

    /// Returns the bytes that a rule loads. `None` if they are unknown.
    fn load(&self, field: &Field) -> Option<Vec<u8>> {
        /// `NFPROTO_IPV4` and `NFPROTO_IPV6`.
        const FAMILIES: [u8; 2] = [2, 10];
        /// The bit of a connection's first packet: `NF_CT_STATE_BIT(IP_CT_NEW)`.
        const NEW: u32 = 8;
        /// Bytes of an interface name, padded with zeros.
        const NAME: usize = 16;
        let packet = self.packet;
        let name = |name: &Option<String>| {
            let mut bytes = name.as_ref()?.as_bytes().to_vec();
            bytes.resize(NAME, 0);
            Some(bytes)
        };
        match field {
            Field::Input => name(&packet.input),
            Field::Output => name(&packet.output),
            Field::Family => Some(vec![FAMILIES[usize::from(!packet.is_v4)]]),
            Field::Protocol => packet.udp_port.map(|_| vec![UDP]),
            Field::Network { offset, len } => self.network(*offset, *len),
            Field::Transport { offset: DESTINATION_PORT, len: 2 } => {
                packet.udp_port.map(|port| port.to_be_bytes().to_vec())
            }
            Field::ConnectionState => Some(NEW.to_ne_bytes().to_vec()),
            Field::Constant(bytes) => Some(bytes.clone()),
            Field::Transport { .. } | Field::Unknown => None,
        }
    }

    /// Returns bytes of the IP header. `None` if they are unknown.
    fn network(&self, offset: u32, len: u32) -> Option<Vec<u8>> {
        let packet = self.packet;
        // The offsets of source, destination and protocol.
        let [source, destination, protocol] = if packet.is_v4 { [12, 16, 9] } else { [8, 24, 6] };
        let of = |address: Option<IpAddr>| {
            // Rules with a prefix of whole bytes load these alone.
            address.map(|address| octets(address).into_iter().take(len as usize).collect())
        };
        match offset {
            _ if offset == source => of(packet.source),
            _ if offset == destination => of(packet.destination),
            _ if offset == protocol && len == 1 => packet.udp_port.map(|_| vec![UDP]),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(field: Field) -> Expression {
        Expression::Load { to: 1, field }
    }

    fn equals(value: &[u8]) -> Expression {
        Expression::Compare { register: 1, equal: true, value: value.to_vec() }
    }

    fn verdict(verdict: Verdict) -> Expression {
        Expression::Verdict(verdict)
    }

    /// Follows a packet from `bh-node` to `eth0` through a base chain with these rules and the policy to drop, which may call the chain
    /// `called`. Returns whether the packet passes, and whether that is uncertain.
    fn walked(rules: Vec<Vec<Expression>>, called: Vec<Vec<Expression>>) -> (bool, bool) {
        let packet = FirewallPacket {
            is_v4: true,
            input: Some("bh-node".to_owned()),
            output: Some("eth0".to_owned()),
            source: Some("10.244.1.2".parse().unwrap()),
            destination: None,
            udp_port: None,
        };
        let chains = [("base".to_owned(), rules), ("called".to_owned(), called)].into();
        let mut walk = Walk::new(&packet, &chains);
        (walk.passes("base", true), walk.is_uncertain())
    }

    #[test]
    fn interfaces_addresses_and_the_connections_state_decide() {
        let accept = || verdict(Verdict::Accept);
        let only = |rule: Vec<Expression>| walked(vec![rule], Vec::new());
        assert_eq!(only(vec![load(Field::Input), equals(b"bh-node\0"), Expression::Neutral, accept()]), (true, false));
        assert_eq!(only(vec![load(Field::Input), equals(b"bh-"), accept()]), (true, false), "bh-*");
        assert_eq!(
            only(vec![load(Field::Output), equals(b"docker0\0"), Expression::Unknown, accept()]),
            (false, false)
        );
        let source = || load(Field::Network { offset: 12, len: 4 });
        let masked = |mask: [u8; 4]| Expression::Mask { from: 1, to: 1, mask: mask.into(), flip: vec![0; 4] };
        assert_eq!(only(vec![source(), masked([255, 255, 0, 0]), equals(&[10, 244, 0, 0]), accept()]), (true, false));
        assert_eq!(
            only(vec![source(), masked([255, 255, 255, 0]), equals(&[10, 244, 0, 0]), accept()]),
            (false, false)
        );
        assert_eq!(
            only(vec![load(Field::Network { offset: 12, len: 2 }), equals(&[10, 244]), accept()]),
            (true, false)
        );
        let destination = load(Field::Network { offset: 16, len: 4 });
        assert_eq!(only(vec![destination, equals(&[10, 244, 2, 2]), accept()]), (false, true), "not known");
        // `ct state established,related accept`.
        let established = Expression::Mask { from: 1, to: 1, mask: 6_u32.to_ne_bytes().into(), flip: vec![0; 4] };
        let differs = Expression::Compare { register: 1, equal: false, value: vec![0; 4] };
        assert_eq!(only(vec![load(Field::ConnectionState), established, differs, accept()]), (false, false));
    }

    #[test]
    fn calls_return_and_what_is_not_understood_is_uncertain() {
        let jump = |chain: &str| verdict(Verdict::Jump(chain.to_owned()));
        let (accept, drop_all) = (|| vec![verdict(Verdict::Accept)], || vec![verdict(Verdict::Drop)]);
        assert_eq!(walked(vec![vec![jump("called")]], vec![accept()]), (true, false));
        assert_eq!(walked(vec![vec![jump("called")], accept()], vec![vec![verdict(Verdict::Return)]]), (true, false));
        assert_eq!(walked(vec![vec![jump("called")], accept()], vec![drop_all()]), (false, false));
        assert_eq!(
            walked(vec![vec![verdict(Verdict::Goto("called".to_owned()))], accept()], Vec::new()),
            (false, false)
        );
        assert_eq!(walked(vec![vec![Expression::Unknown, jump("called")]], vec![accept()]), (false, true));
        assert_eq!(walked(vec![vec![Expression::Unknown, jump("called")]], vec![drop_all()]), (false, false));
        assert_eq!(walked(vec![vec![Expression::Undecided]], Vec::new()), (false, true));
        // `ct state invalid drop`, which may not be understood, drops little.
        assert_eq!(
            walked(vec![vec![Expression::Unknown, verdict(Verdict::Drop)], accept()], Vec::new()),
            (true, false)
        );
        // A chain that calls itself, which the kernel refuses.
        assert_eq!(walked(vec![vec![jump("called")]], vec![vec![jump("called")]]), (false, true));
    }
}
