//! Parses the expressions of which nf_tables' rules consist.

use crate::io::xsk::netlink::attributes;

/// One step of a rule. A rule applies if none of its steps fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expression {
    /// Loads a field of the packet, or a constant, into a register.
    Load { to: u32, field: Field },
    /// Writes `(from & mask) ^ flip` into a register.
    Mask { from: u32, to: u32, mask: Vec<u8>, flip: Vec<u8> },
    /// Fails unless the register begins with the value (`equal`), or unless it does not.
    Compare { register: u32, equal: bool, value: Vec<u8> },
    /// Ends the rule.
    Verdict(Verdict),
    /// Neither fails nor decides: counters, the log, comments.
    Neutral,
    /// Fails for the first packet of a connection.
    Fails,
    /// May fail or not.
    Unknown,
    /// Decides, in a way that is not understood: a verdict map, a queue.
    Undecided,
}

/// What a rule loads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Field {
    /// Name of the receiving interface.
    Input,
    /// Name of the sending interface.
    Output,
    /// The packet's family: `NFPROTO_IPV4` or `NFPROTO_IPV6`.
    Family,
    /// Number of the transport protocol.
    Protocol,
    /// Bytes of the IP header.
    Network { offset: u32, len: u32 },
    /// Bytes of the transport header.
    Transport { offset: u32, len: u32 },
    /// The state of the packet's connection, a bit mask.
    ConnectionState,
    /// These bytes.
    Constant(Vec<u8>),
    /// A field that is not understood.
    Unknown,
}

/// What happens to a packet to which a rule applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Accept,
    Drop,
    /// Walks another chain, then goes on after this rule.
    Jump(String),
    /// Walks another chain instead of the rest of this one.
    Goto(String),
    /// Ends the chain.
    Return,
    /// Goes on with the next rule.
    Continue,
}

/// `NFTA_DATA_VALUE` and `NFTA_DATA_VERDICT`.
const VALUE: u16 = 1;
const VERDICT: u16 = 2;

impl Expression {
    /// Parses an element of a rule's list of expressions.
    pub(super) fn of(element: &[u8]) -> Self {
        /// `NFTA_EXPR_NAME`, `NFTA_EXPR_DATA`.
        const NAME: u16 = 1;
        const DATA: u16 = 2;
        let part = |wanted| attributes(element).find(|&(kind, _)| kind == wanted).map(|(_, value)| value);
        let (name, data) = (part(NAME).map(text).unwrap_or_default(), Parts(part(DATA).unwrap_or_default()));
        match &*name {
            "meta" => data.meta(),
            "payload" => data.payload(),
            "ct" => data.connection(),
            "cmp" => data.compare().unwrap_or(Self::Unknown),
            "bitwise" => data.bitwise(),
            "immediate" => data.immediate().unwrap_or(Self::Undecided),
            "reject" => Self::Verdict(Verdict::Drop),
            // Extensions of iptables.
            "match" if data.name() == "comment" => Self::Neutral,
            "match" if data.name() == "conntrack" => data.connection_match().unwrap_or(Self::Unknown),
            "target" if data.name() == "REJECT" => Self::Verdict(Verdict::Drop),
            "target" | "counter" | "log" | "notrack" | "dynset" | "objref" | "flow_offload" | "last" => Self::Neutral,
            // `NFTA_LOOKUP_DREG`: 0 is the verdict.
            "lookup" if data.number(3) == Some(0) => Self::Undecided,
            "queue" => Self::Undecided,
            _ => Self::Unknown,
        }
    }
}

/// The attributes of an expression.
struct Parts<'a>(&'a [u8]);

impl Parts<'_> {
    fn bytes(&self, wanted: u16) -> Option<&[u8]> {
        attributes(self.0).find(|&(kind, _)| kind == wanted).map(|(_, value)| value)
    }

    fn number(&self, wanted: u16) -> Option<u32> {
        self.bytes(wanted).and_then(be_number)
    }

    /// Returns the bytes of a constant in an attribute.
    fn value(&self, wanted: u16) -> Option<Vec<u8>> {
        attributes(self.bytes(wanted)?).find(|&(kind, _)| kind == VALUE).map(|(_, value)| value.to_vec())
    }

    /// Returns the name of an extension of iptables: `NFTA_MATCH_NAME`, `NFTA_TARGET_NAME`.
    fn name(&self) -> String {
        self.bytes(1).map(text).unwrap_or_default()
    }

    fn meta(&self) -> Expression {
        /// `NFTA_META_DREG`, `NFTA_META_KEY`; without the first, the expression writes.
        const TO: u16 = 1;
        const KEY: u16 = 2;
        let Some(to) = self.number(TO) else { return Expression::Neutral };
        // `enum nft_meta_keys`.
        let field = match self.number(KEY) {
            Some(6) => Field::Input,
            Some(7) => Field::Output,
            Some(15) => Field::Family,
            Some(16) => Field::Protocol,
            _ => Field::Unknown,
        };
        Expression::Load { to, field }
    }

    fn payload(&self) -> Expression {
        /// `NFTA_PAYLOAD_DREG`, `_BASE`, `_OFFSET`, `_LEN`; without the first, the expression writes.
        const TO: u16 = 1;
        const BASE: u16 = 2;
        const OFFSET: u16 = 3;
        const LEN: u16 = 4;
        let Some(to) = self.number(TO) else { return Expression::Neutral };
        // `enum nft_payload_bases`.
        let field = match (self.number(BASE), self.number(OFFSET), self.number(LEN)) {
            (Some(1), Some(offset), Some(len)) => Field::Network { offset, len },
            (Some(2), Some(offset), Some(len)) => Field::Transport { offset, len },
            _ => Field::Unknown,
        };
        Expression::Load { to, field }
    }

    fn connection(&self) -> Expression {
        /// `NFTA_CT_DREG`, `NFTA_CT_KEY`; without the first, the expression writes. `NFT_CT_STATE`.
        const TO: u16 = 1;
        const KEY: u16 = 2;
        const STATE: u32 = 0;
        let Some(to) = self.number(TO) else { return Expression::Neutral };
        let field = if self.number(KEY) == Some(STATE) { Field::ConnectionState } else { Field::Unknown };
        Expression::Load { to, field }
    }

    /// Parses iptables' match of a connection's state (`xt_conntrack_mtinfo3`). `None` if it matches more than the state.
    fn connection_match(&self) -> Option<Expression> {
        /// `NFTA_MATCH_REV`, `NFTA_MATCH_INFO`.
        const REVISION: u16 = 2;
        const INFO: u16 = 3;
        /// The offset of `match_flags`, `invert_flags` and `state_mask`, 16 bits each.
        const FLAGS: usize = 146;
        /// `XT_CONNTRACK_STATE` alone; `XT_CONNTRACK_STATE_BIT(IP_CT_NEW)`.
        const STATE_ALONE: u16 = 1;
        const NEW: u16 = 8;
        let info = self.bytes(INFO).filter(|_| matches!(self.number(REVISION), Some(2 | 3)))?;
        let field = |at| Some(u16::from_ne_bytes(*info.get(FLAGS + at..)?.first_chunk()?));
        if (field(0)?, field(2)?) != (STATE_ALONE, 0) {
            return None;
        }
        Some(if field(4)? & NEW == 0 { Expression::Fails } else { Expression::Neutral })
    }

    fn compare(&self) -> Option<Expression> {
        /// `NFTA_CMP_SREG`, `NFTA_CMP_OP`, `NFTA_CMP_DATA`. `NFT_CMP_EQ`, `NFT_CMP_NEQ`.
        const FROM: u16 = 1;
        const OPERATION: u16 = 2;
        const DATA: u16 = 3;
        let equal = [true, false].get(usize::try_from(self.number(OPERATION)?).ok()?)?;
        Some(Expression::Compare { register: self.number(FROM)?, equal: *equal, value: self.value(DATA)? })
    }

    fn bitwise(&self) -> Expression {
        /// `NFTA_BITWISE_SREG`, `_DREG`, `_MASK`, `_XOR`, `_OP`. `NFT_BITWISE_MASK_XOR`.
        const FROM: u16 = 1;
        const TO: u16 = 2;
        const MASK: u16 = 4;
        const FLIP: u16 = 5;
        const OPERATION: u16 = 6;
        let to = self.number(TO).unwrap_or_default();
        let is_mask = self.number(OPERATION).unwrap_or_default() == 0;
        match (self.number(FROM), self.value(MASK), self.value(FLIP)) {
            (Some(from), Some(mask), Some(flip)) if is_mask => Expression::Mask { from, to, mask, flip },
            _ => Expression::Load { to, field: Field::Unknown },
        }
    }

    fn immediate(&self) -> Option<Expression> {
        /// `NFTA_IMMEDIATE_DREG`, `NFTA_IMMEDIATE_DATA`, `NFTA_VERDICT_CODE`, `NFTA_VERDICT_CHAIN`.
        const TO: u16 = 1;
        const DATA: u16 = 2;
        const CODE: u16 = 1;
        const CHAIN: u16 = 2;
        if let Some(value) = self.value(DATA) {
            return Some(Expression::Load { to: self.number(TO)?, field: Field::Constant(value) });
        }
        let (_, verdict) = attributes(self.bytes(DATA)?).find(|&(kind, _)| kind == VERDICT)?;
        let verdict = Parts(verdict);
        let chain = || verdict.bytes(CHAIN).map(text);
        // `NF_DROP`, `NF_ACCEPT` and `enum nft_verdicts`.
        Some(Expression::Verdict(match verdict.number(CODE)?.cast_signed() {
            0 => Verdict::Drop,
            1 => Verdict::Accept,
            -1 => Verdict::Continue,
            -3 => Verdict::Jump(chain()?),
            -4 => Verdict::Goto(chain()?),
            -5 => Verdict::Return,
            _ => return None,
        }))
    }
}

/// Returns a text up to its terminating zero.
pub(super) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Returns a number of 32 bits in network order, as nf_tables' attributes have it.
pub(super) fn be_number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}
