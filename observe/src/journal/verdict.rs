//! Encodes verdicts on sessions and dropped packets: about 40 bytes for IPv4.
//!
//! Names (of ports, tables, reasons, policies) are numbered per segment from 1; 0 means none. Integers have a variable length. Reasons are
//! stored by name, because their numbers may change between versions.

use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_answers::destination::{DestinationNames, KnownName, MOST_KNOWN};
use bulkhead_dataplane::Flow;
use serde::{Deserialize, Serialize};

/// Addresses and ports after translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translated {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Source port.
    pub sport: u16,
    /// Destination port.
    pub dport: u16,
}

/// The verdict on a new session, or on dropped packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Time in nanoseconds since 1970, with a resolution of microseconds.
    pub time: u64,
    /// Generation of the snapshot that decided.
    pub generation: u64,
    /// Number of packets with this verdict.
    pub count: u64,
    /// Length of the last packet in bytes.
    pub length: u32,
    /// Name of the ingress port. `None` if unknown.
    pub in_port: Option<Arc<str>>,
    /// Name of the egress port. `None` if unknown.
    pub out_port: Option<Arc<str>>,
    /// Drop reason. `None` for a session.
    pub reason: Option<Arc<str>>,
    /// Addresses, ports and protocol. `None` if unknown.
    pub flow: Option<Flow>,
    /// Addresses and ports with which the packet leaves the node. `None` if not translated.
    pub translated: Option<Translated>,
    /// TCP flags of the packet. `None` for other protocols.
    pub tcp_flags: Option<u8>,
    /// The port whose table decided. `None` if no table decided.
    pub table: Option<Arc<str>>,
    /// Index of the matching rule, from 0. `None` if no rule matched.
    pub rule: Option<u32>,
    /// The policy rule that decided, or the policies that isolate the pod. `None` if no policy decided.
    pub origin: Option<Arc<str>>,
    /// The audited policy that would deny the packet. `None` without one.
    pub audited: Option<Arc<str>>,
    /// The domain names of the destination. `None` if they do not matter, and in journals of versions that record none. Ends are recorded in
    /// seconds.
    pub names: Option<DestinationNames>,
}

/// How much was not recorded in a period, which ends at the time of the record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeftOut {
    /// Start of the period, in nanoseconds since 1970.
    pub since: u64,
    /// Sessions above the journal's rate limit.
    pub sessions: u64,
    /// Dropped packets above the journal's rate limit.
    pub dropped: u64,
    /// Sessions and dropped packets lost because the workers' buffers were full, or the recorder was busy.
    pub unheard: u64,
}

impl LeftOut {
    /// Returns the number of unrecorded sessions and packets.
    pub const fn total(&self) -> u64 {
        self.sessions.saturating_add(self.dropped).saturating_add(self.unheard)
    }
}

/// Nanoseconds.
const SECOND: u64 = 1_000_000_000;

/// Flags of an encoded verdict: which fields follow, and in which form.
mod bit {
    pub(super) const FLOW: u64 = 1;
    pub(super) const V6: u64 = 1 << 1;
    pub(super) const ICMP: u64 = 1 << 2;
    pub(super) const TCP: u64 = 1 << 3;
    pub(super) const TRANSLATED: u64 = 1 << 4;
    pub(super) const RULE: u64 = 1 << 5;
    /// A domain name by which a rule matched.
    pub(super) const MATCHED: u64 = 1 << 6;
    /// A number of domain names, which may be 0, by which the pod of a denied packet knew the destination.
    pub(super) const KNOWN: u64 = 1 << 7;
}

fn number(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(u8::try_from(value & 0x7f).unwrap_or(0) | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).unwrap_or(0));
}

fn address(address: IpAddr, out: &mut Vec<u8>) {
    match address {
        IpAddr::V4(address) => out.extend_from_slice(&address.octets()),
        IpAddr::V6(address) => out.extend_from_slice(&address.octets()),
    }
}

impl Verdict {
    /// Appends the encoded verdict to `out`. `base` is the time of the record, `name` returns the number of a name.
    pub(super) fn write(&self, base: u64, mut name: impl FnMut(&Arc<str>) -> u64, out: &mut Vec<u8>) {
        let mut named = |text: &Option<Arc<str>>| text.as_ref().map_or(0, &mut name);
        let names = [&self.in_port, &self.out_port, &self.reason, &self.table, &self.origin, &self.audited];
        let names = names.map(&mut named);
        let known = self.names.iter().flat_map(DestinationNames::names).take(MOST_KNOWN);
        let known: Vec<(u64, u64)> =
            known.map(|known| (name(&known.name), known.until.unwrap_or_default() / SECOND)).collect();
        let flow = self.flow.filter(|flow| flow.src.is_ipv4() == flow.dst.is_ipv4());
        let is_v6 = flow.is_some_and(|flow| flow.src.is_ipv6());
        let is_same = |sent: &Translated| sent.src.is_ipv6() == is_v6 && sent.dst.is_ipv6() == is_v6;
        let translated = self.translated.filter(|sent| flow.is_some() && is_same(sent));
        let icmp = flow.and_then(|flow| flow.icmp);
        let mut bits = 0;
        for (is_set, bit) in [
            (flow.is_some(), bit::FLOW),
            (is_v6, bit::V6),
            (icmp.is_some(), bit::ICMP),
            (self.tcp_flags.is_some(), bit::TCP),
            (translated.is_some(), bit::TRANSLATED),
            (self.rule.is_some(), bit::RULE),
            (matches!(self.names, Some(DestinationNames::Matched(_))), bit::MATCHED),
            (matches!(self.names, Some(DestinationNames::Known(_))), bit::KNOWN),
        ] {
            bits |= if is_set { bit } else { 0 };
        }
        number(bits, out);
        // Verdicts of several workers are unordered, so the difference is signed (zigzag encoding).
        let behind = (i128::from(self.time) - i128::from(base)) / 1000;
        let behind = i64::try_from(behind).unwrap_or(0);
        number(((behind << 1) ^ (behind >> 63)).cast_unsigned(), out);
        for value in [self.generation, self.count, self.length.into()].into_iter().chain(names) {
            number(value, out);
        }
        if let Some(flow) = flow {
            out.push(flow.protocol);
            address(flow.src, out);
            address(flow.dst, out);
            out.extend_from_slice(&flow.sport.to_le_bytes());
            out.extend_from_slice(&flow.dport.to_le_bytes());
        }
        out.extend(icmp.into_iter().flat_map(|(kind, code)| [kind, code]));
        out.extend(self.tcp_flags);
        if let Some(sent) = translated {
            address(sent.src, out);
            address(sent.dst, out);
            out.extend_from_slice(&sent.sport.to_le_bytes());
            out.extend_from_slice(&sent.dport.to_le_bytes());
        }
        if let Some(rule) = self.rule {
            number(rule.into(), out);
        }
        if matches!(self.names, Some(DestinationNames::Known(_))) {
            number(known.len() as u64, out);
        }
        known.into_iter().for_each(|(name, until)| {
            number(name, out);
            number(until, out);
        });
    }
}

/// Decodes the verdicts of a record one after another.
pub(super) struct Entries<'a> {
    bytes: &'a [u8],
    base: u64,
}

impl<'a> Entries<'a> {
    pub(super) const fn new(bytes: &'a [u8], base: u64) -> Self {
        Self { bytes, base }
    }

    /// Returns the next entry. `None` at the end, `Some(Err)` if it cannot be decoded.
    pub(super) fn next(&mut self, name: &impl Fn(u64) -> Option<Arc<str>>) -> Option<Result<Verdict, ()>> {
        (!self.bytes.is_empty()).then(|| self.entry(name).ok_or(()))
    }

    fn entry(&mut self, name: &impl Fn(u64) -> Option<Arc<str>>) -> Option<Verdict> {
        let bits = self.number()?;
        let has = |bit: u64| bits & bit != 0;
        let behind = self.number()?;
        let behind = (behind >> 1).cast_signed() ^ -(behind & 1).cast_signed();
        let time = u64::try_from(i128::from(self.base) + i128::from(behind) * 1000).ok()?;
        let [generation, count, length] = [self.number()?, self.number()?, self.number()?];
        let mut named = || match self.number()? {
            0 => Some(None),
            at => Some(Some(name(at)?)),
        };
        let [in_port, out_port, reason, table, origin, audited] =
            [named()?, named()?, named()?, named()?, named()?, named()?];
        let is_v6 = has(bit::V6);
        let mut flow = match has(bit::FLOW) {
            false => None,
            true => {
                let protocol = self.byte()?;
                let (src, dst) = (self.address(is_v6)?, self.address(is_v6)?);
                let (sport, dport) = (self.port()?, self.port()?);
                Some(Flow { src, dst, protocol, sport, dport, icmp: None })
            }
        };
        if has(bit::ICMP) {
            flow.as_mut()?.icmp = Some((self.byte()?, self.byte()?));
        }
        let tcp_flags = if has(bit::TCP) { Some(self.byte()?) } else { None };
        let translated = match has(bit::TRANSLATED) {
            false => None,
            true => {
                let (src, dst) = (self.address(is_v6)?, self.address(is_v6)?);
                Some(Translated { src, dst, sport: self.port()?, dport: self.port()? })
            }
        };
        let rule = if has(bit::RULE) { Some(u32::try_from(self.number()?).ok()?) } else { None };
        let names = match (has(bit::MATCHED), has(bit::KNOWN)) {
            (true, _) => Some(DestinationNames::Matched(self.known(name)?)),
            (false, true) => {
                let count = usize::try_from(self.number()?).ok().filter(|count| *count <= MOST_KNOWN)?;
                Some(DestinationNames::Known((0..count).map(|_| self.known(name)).collect::<Option<_>>()?))
            }
            (false, false) => None,
        };
        let length = u32::try_from(length).ok()?;
        Some(Verdict {
            time,
            generation,
            count,
            length,
            in_port,
            out_port,
            reason,
            flow,
            translated,
            tcp_flags,
            table,
            rule,
            origin,
            audited,
            names,
        })
    }

    fn known(&mut self, name: &impl Fn(u64) -> Option<Arc<str>>) -> Option<KnownName> {
        let (name, until) = (name(self.number()?)?, self.number()?);
        Some(KnownName { name, until: (until > 0).then(|| until.saturating_mul(SECOND)) })
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(*first)
    }

    fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn port(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn address(&mut self, is_v6: bool) -> Option<IpAddr> {
        Some(if is_v6 { IpAddr::from(self.array::<16>()?) } else { IpAddr::from(self.array::<4>()?) })
    }

    fn number(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                return None;
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}
