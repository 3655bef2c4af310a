//! What became of a session's first packet, or of packets that were dropped, as it is written: some 40 bytes for IPv4.
//!
//! Names (of ports, tables, reasons, policies) are texts of the segment with numbers from 1; 0 is none. Numbers are as short as they are small.
//! Reasons are texts as well: their numbers change with the program, their names never do.

use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_dataplane::Flow;
use serde::{Deserialize, Serialize};

/// The addresses and ports that a packet leaves with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translated {
    /// The source address.
    pub src: IpAddr,
    /// The destination address.
    pub dst: IpAddr,
    /// The source port.
    pub sport: u16,
    /// The destination port.
    pub dport: u16,
}

/// A session that began, or packets that were dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// When, in nanoseconds since 1970; microseconds are kept.
    pub time: u64,
    /// The snapshot that it was judged by.
    pub generation: u64,
    /// Packets.
    pub count: u64,
    /// The length of the (last) packet in bytes.
    pub length: u32,
    /// The port where it came in.
    pub in_port: Option<Arc<str>>,
    /// The port where it leaves.
    pub out_port: Option<Arc<str>>,
    /// Why it was dropped; none for a session.
    pub reason: Option<Arc<str>>,
    /// Whose, as far as that is known.
    pub flow: Option<Flow>,
    /// What the packet leaves with. `None` if it is not translated.
    pub translated: Option<Translated>,
    /// The control bits of a TCP segment.
    pub tcp_flags: Option<u8>,
    /// The table that was asked, by its port.
    pub table: Option<Arc<str>>,
    /// Its rule, from 0.
    pub rule: Option<u32>,
    /// Whose that is.
    pub origin: Option<Arc<str>>,
    /// Who would deny it if all policies were enforced.
    pub audited: Option<Arc<str>>,
}

/// What was not recorded of a time that ends when this is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeftOut {
    /// When that time began, in nanoseconds since 1970.
    pub since: u64,
    /// Sessions that were over the journal's rate.
    pub sessions: u64,
    /// Dropped packets that were.
    pub dropped: u64,
    /// Sessions and dropped packets for which the workers had no room, or the recorder no time.
    pub unheard: u64,
}

impl LeftOut {
    /// The sum of all three.
    pub const fn total(&self) -> u64 {
        self.sessions.saturating_add(self.dropped).saturating_add(self.unheard)
    }
}

/// Bits of an entry.
mod bit {
    pub(super) const FLOW: u64 = 1;
    pub(super) const V6: u64 = 1 << 1;
    pub(super) const ICMP: u64 = 1 << 2;
    pub(super) const TCP: u64 = 1 << 3;
    pub(super) const TRANSLATED: u64 = 1 << 4;
    pub(super) const RULE: u64 = 1 << 5;
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
    /// Appends it, in a record of this time, with the numbers of names.
    pub(super) fn write(&self, base: u64, mut name: impl FnMut(&Arc<str>) -> u64, out: &mut Vec<u8>) {
        let mut named = |text: &Option<Arc<str>>| text.as_ref().map_or(0, &mut name);
        let names = [&self.in_port, &self.out_port, &self.reason, &self.table, &self.origin, &self.audited];
        let names = names.map(&mut named);
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
        ] {
            bits |= if is_set { bit } else { 0 };
        }
        number(bits, out);
        // Of several workers, in no order: a difference can be negative, which its lowest bit says.
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
    }
}

/// Reads entries.
pub(super) struct Entries<'a> {
    bytes: &'a [u8],
    base: u64,
}

impl<'a> Entries<'a> {
    pub(super) const fn new(bytes: &'a [u8], base: u64) -> Self {
        Self { bytes, base }
    }

    /// The next one; none at the end. An error where it is not understood.
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
        })
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
