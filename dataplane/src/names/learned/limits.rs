//! The limits of the table, so that neither a pod nor the owner of a name can use up its memory or its names.

/// Maximum number of addresses that one holder learns under one name, of both families together. The specification asks for at least 100.
/// CDNs that rotate addresses every few seconds reach some hundreds within TTL and grace. The owner of a single name can make the table
/// store no more than this for each pod.
pub(in crate::names) const ADDRESSES_PER_NAME: usize = 1024;

/// Maximum number of addresses of one name per node, of all holders together. Bounds the count of a holder's addresses under a name that
/// has more than [`ADDRESSES_PER_NAME`] to some milliseconds.
pub(in crate::names) const ADDRESSES_PER_NODE: usize = 1 << 14;

/// Maximum number of names per node. Most nodes use hundreds, those with crawlers some thousands. An attacker who owns a zone below an
/// allowed wildcard can make up names without end; 65,536 of the longest need 30 MB, and 20 MB more if each has an address.
pub(in crate::names) const NAMES: usize = 1 << 16;

/// Maximum number of names with addresses of which one holder was the first to learn an address: a quarter of [`NAMES`]. Without it, one
/// pod could take all names of the node. Crawlers need some thousands.
pub(in crate::names) const NAMES_PER_HOLDER: usize = NAMES / 4;

/// Maximum number of valid names of one address and holder. The first packet of a connection is compared with the rules for each of them.
pub(in crate::names) const NAMES_PER_ADDRESS: usize = 64;

/// Maximum number of holdings (name and address) of one pod. The memory goal has 100,000: 10,000 names with 10 addresses each. Without the
/// limit, one pod could learn 1,024 addresses for each name, which need gigabytes. With it, one pod can occupy 30 MB.
pub(in crate::names) const HOLDINGS_PER_HOLDER: usize = 1 << 17;

/// Maximum number of keys per node: different triples of name, address and chunk of 64 holders. Each needs one record or some, 52 bytes
/// each: 110 MB. The memory goal has 800,000.
pub(in crate::names) const KEYS: usize = 1 << 21;

/// The limit because of which an address was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Full {
    /// The holder has [`ADDRESSES_PER_NAME`] valid addresses under this name, or all holders together have [`ADDRESSES_PER_NODE`].
    Addresses,
    /// All [`NAMES`] known names have valid addresses, the holder has used up [`NAMES_PER_HOLDER`], or the holder has learned the address
    /// under [`NAMES_PER_ADDRESS`] other valid names.
    Names,
    /// The holder has [`HOLDINGS_PER_HOLDER`] holdings, including expired ones that the sweep has not removed yet. Also returned if the
    /// node has [`KEYS`] keys, or if all seats of holders are in use, about four million.
    Holdings,
}

/// The limits of a table. Lower in tests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) names: usize,
    pub(super) names_per_holder: usize,
    pub(super) addresses: usize,
    pub(super) addresses_per_node: usize,
    pub(super) holdings: usize,
    pub(super) keys: usize,
}

impl Limits {
    pub(super) const NODE: Self = Self {
        names: NAMES,
        names_per_holder: NAMES_PER_HOLDER,
        addresses: ADDRESSES_PER_NAME,
        addresses_per_node: ADDRESSES_PER_NODE,
        holdings: HOLDINGS_PER_HOLDER,
        keys: KEYS,
    };
}
