//! Looks up nf_tables' tables and chains by name. Source: `include/uapi/linux/netfilter/{nfnetlink,nf_tables}.h`.

use std::io;

use super::netlink::ask_of;
use super::netlink_write::attribute;

/// Whether nf_tables has this IPv4 or IPv6 table in the calling thread's network namespace, and in it the chain if one is given. A lookup
/// takes microseconds, independent of the number of rules. Includes tables of `iptables-nft`, but not of legacy `iptables`.
///
/// # Errors
/// If the kernel refuses, for example without `CAP_NET_ADMIN`.
pub fn has_nft_rules(table: &str, chain: Option<&str>) -> io::Result<bool> {
    /// `NFPROTO_IPV4`, `NFPROTO_IPV6`.
    const FAMILIES: [u8; 2] = [2, 10];
    /// `NFNL_SUBSYS_NFTABLES`, in the upper byte of a message's type, and `NFT_MSG_GETTABLE`, `NFT_MSG_GETCHAIN`.
    const SUBSYSTEM: u16 = 10 << 8;
    const GET_TABLE: u16 = 1;
    const GET_CHAIN: u16 = 4;
    let kind = SUBSYSTEM | if chain.is_some() { GET_CHAIN } else { GET_TABLE };
    for family in FAMILIES {
        let mut found = false;
        match ask_of(libc::NETLINK_NETFILTER, kind, false, &body(family, table, chain), |_| found = true) {
            Ok(()) if found => return Ok(true),
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// Builds a `struct nfgenmsg` with the names.
fn body(family: u8, table: &str, chain: Option<&str>) -> Vec<u8> {
    /// `NFTA_TABLE_NAME` and `NFTA_CHAIN_TABLE`; `NFTA_CHAIN_NAME`.
    const TABLE: u16 = 1;
    const CHAIN: u16 = 3;
    // Family, version 0, resource 0.
    let mut body = vec![family, 0, 0, 0];
    let name = |name: &str| [name.as_bytes(), b"\0"].concat();
    attribute(&mut body, TABLE, &name(table));
    if let Some(chain) = chain {
        attribute(&mut body, CHAIN, &name(chain));
    }
    body
}

#[cfg(test)]
mod tests {
    use super::super::netlink::attributes;
    use super::*;

    #[test]
    fn tables_and_chains_are_asked_for_by_name() {
        let asked = body(2, "nat", Some("KUBE-SERVICES"));
        assert_eq!(asked[..4], [2, 0, 0, 0]);
        let names: Vec<_> = attributes(&asked[4..]).collect();
        assert_eq!(names, [(1, &b"nat\0"[..]), (3, b"KUBE-SERVICES\0")]);
    }
}
