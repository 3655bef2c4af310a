//! Checks the settings of `dataplane: nftables`.

use super::super::NftablesConfig;
use super::super::faults::{Faults, line};
use super::super::file::File;

/// Maximum length of an interface name (IFNAMSIZ without the final zero).
const MAX_INTERFACE_LEN: usize = 15;

pub(super) fn check(written: &File, faults: &mut Faults<'_>) -> NftablesConfig {
    let Some(nftables) = &written.nftables else { return NftablesConfig::default() };
    let prefixes = &nftables.pod_interfaces;
    for (at, prefix) in prefixes.iter().enumerate() {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._+@=,".contains(c);
        let text = &prefix.value;
        if text.is_empty() || text.len() > MAX_INTERFACE_LEN || !text.chars().all(is_plain) {
            let help = "write the first letters of the names, without a wildcard: cali";
            let problem = format!("`{text}` is not a valid prefix of interface names");
            faults.add(line(prefix), format!("nftables.pod_interfaces[{at}]"), problem, help);
        }
    }
    NftablesConfig { pod_interfaces: prefixes.iter().map(|prefix| prefix.value.as_str().into()).collect() }
}
