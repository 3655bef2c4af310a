//! Parses addresses and blocks as strictly as current API servers do for new objects.

use std::net::IpAddr;

use ipnet::IpNet;

use super::error::quoted;

pub(super) struct AddressFault {
    pub(super) text: String,
    pub(super) help: String,
}

fn fault(text: String, help: impl Into<String>) -> AddressFault {
    AddressFault { text, help: help.into() }
}

/// Parses an address. Refuses leading zeros, because some parsers read `010` as octal 8 (CVE-2021-29923). Refuses IPv4-mapped IPv6
/// addresses, because they never appear on the wire: a rule on one would match nothing or, unmapped, something else.
pub(super) fn parse_address(text: &str) -> Result<IpAddr, AddressFault> {
    let address: IpAddr = text.parse().map_err(|_| {
        let help = if has_leading_zero(text) {
            "remove the leading zeros"
        } else {
            "write an IPv4 address such as 10.0.0.1 or an IPv6 address such as fd00::1"
        };
        fault(format!("invalid address {}", quoted(text)), help)
    })?;
    match address {
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => Err(fault(format!("{} is an IPv4-mapped IPv6 address", quoted(text)), format!("write {v4}"))),
            None => Ok(address),
        },
        IpAddr::V4(_) => Ok(address),
    }
}

/// Parses a block. Returns it with cleared host bits, and whether any host bit was set.
pub(super) fn parse_block(text: &str) -> Result<(IpNet, bool), AddressFault> {
    let Some((address, length)) = text.split_once('/') else {
        let help = match parse_address(text) {
            Ok(IpAddr::V4(_)) => format!("write {text}/32 for this one address"),
            Ok(IpAddr::V6(_)) => format!("write {text}/128 for this one address"),
            Err(_) => "write a block such as 10.0.0.0/8 or fd00::/8".to_owned(),
        };
        return Err(fault(format!("block {} has no prefix length", quoted(text)), help));
    };
    let address = parse_address(address).map_err(|inner| {
        let help = if inner.help.starts_with("write") && inner.text.starts_with("invalid") {
            "write a block such as 10.0.0.0/8 or fd00::/8".to_owned()
        } else {
            inner.help
        };
        fault(format!("invalid block {}: {}", quoted(text), inner.text), help)
    })?;
    let max = if address.is_ipv4() { 32 } else { 128 };
    let canonical = length == "0" || !length.starts_with(['0', '+']);
    let block = length.parse().ok().filter(|_| canonical).and_then(|length| IpNet::new(address, length).ok());
    let block = block.ok_or_else(|| {
        fault(
            format!("invalid block {}: prefix length {}", quoted(text), quoted(length)),
            format!("write a number from 0 to {max}, without leading zeros"),
        )
    })?;
    Ok((block.trunc(), block.trunc() != block))
}

/// Whether the text looks like an IPv4 address with a leading zero in an octet.
fn has_leading_zero(text: &str) -> bool {
    let octets: Vec<_> = text.split('.').collect();
    octets.len() == 4
        && octets.iter().all(|octet| !octet.is_empty() && octet.bytes().all(|byte| byte.is_ascii_digit()))
        && octets.iter().any(|octet| octet.len() > 1 && octet.starts_with('0'))
}
