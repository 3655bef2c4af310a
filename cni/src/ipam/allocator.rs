//! Assigns addresses: the commands of an IPAM plugin on the folder of one network.
//!
//! **Invariants**, also for processes that are killed between any two steps, and for concurrent ones: no two attachments have one address;
//! an address without an attachment can be assigned again after `DEL` or `GC`. One lock serialises all commands of a network.
//!
//! An `ADD` that is repeated for the same container and interface gets the same addresses again. `host-local` refuses it, so an `ADD` that
//! was killed fails until a `DEL`. Repeating is safe: the plugin first refuses an interface that exists, so no running pod has the addresses,
//! and the specification forbids two commands for one container at the same time.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::PathBuf;

use super::ranges::Set;
use super::store::{Before, Lease, Owner, Store};
use crate::error::{Code, Error};
use crate::netconf::Attached;

/// Maximum number of files named in one error.
const MAX_NAMED: usize = 5;

/// The allocator of one network.
pub(super) struct Allocator<'a> {
    /// The network's folder of reserved addresses.
    pub(super) folder: PathBuf,
    /// The sets, from each of which a container gets one address. Not needed to release an attachment's addresses.
    pub(super) sets: Vec<Set>,
    /// The function that the store calls before each change of the folder; its error ends the command. Tests end a process there.
    pub(super) before: Before<'a>,
}

impl Allocator<'_> {
    /// Reserves an address of each set for an attachment. Returns them in the order of the sets.
    ///
    /// # Errors
    /// [`Code::TryAgain`] if a set has no address left: then none is reserved. [`Code::Io`] with the file.
    pub(super) fn add(&self, container: &str, interface: &str) -> Result<Vec<IpAddr>, Error> {
        let store = Store::open(&self.folder, self.before)?;
        let leases = store.leases()?;
        let taken: HashSet<IpAddr> = leases.iter().map(|lease| lease.address).collect();
        // A file without an interface's name may be another interface's.
        let is_named = |lease: &&Lease| lease.owner.as_ref().is_some_and(|owner| owner.interface.is_some());
        let own: Vec<IpAddr> =
            owned(&leases, container, interface).filter(is_named).map(|lease| lease.address).collect();
        // Everything is chosen before anything is written, so that a full set needs no cleanup of the others.
        let mut chosen = Vec::new();
        for (at, set) in self.sets.iter().enumerate() {
            let earlier = own.iter().find(|address| set.contains(**address)).map(|address| (*address, false));
            let next = || set.next(store.last(at), |address| taken.contains(&address)).map(|address| (address, true));
            chosen.push(earlier.or_else(next).ok_or_else(|| self.full(at, &leases))?);
        }
        for (at, (address, _)) in chosen.iter().enumerate().filter(|(_, (_, is_new))| *is_new) {
            store.reserve(*address, container, interface)?;
            store.set_last(at, *address)?;
        }
        store.sync()?;
        Ok(chosen.into_iter().map(|(address, _)| address).collect())
    }

    /// Releases the addresses of an attachment. Succeeds if it has none.
    ///
    /// # Errors
    /// [`Code::Io`] with the file.
    pub(super) fn del(&self, container: &str, interface: &str) -> Result<(), Error> {
        let Some(store) = Store::existing(&self.folder, self.before)? else { return Ok(()) };
        release(&store, owned(&store.leases()?, container, interface))
    }

    /// Checks that an attachment has the addresses in `expected` that are in the ranges, and at least one address.
    ///
    /// # Errors
    /// [`Code::Different`] with the missing address. [`Code::Io`] with the file.
    pub(super) fn check(&self, container: &str, interface: &str, expected: &[IpAddr]) -> Result<(), Error> {
        let store = Store::existing(&self.folder, self.before)?;
        let leases = store.map_or_else(|| Ok(Vec::new()), |store| store.leases())?;
        let own: Vec<IpAddr> = owned(&leases, container, interface).map(|lease| lease.address).collect();
        // The ranges may have changed since the `ADD`.
        let ours = expected.iter().filter(|address| self.sets.iter().any(|set| set.contains(**address)));
        let missing = ours.filter(|address| !own.contains(address)).map(IpAddr::to_string).next();
        let missing = missing.or_else(|| own.is_empty().then(|| "an address".to_owned()));
        missing.map_or(Ok(()), |missing| {
            let folder = self.folder.display();
            Err(Error::different(format!("{missing} is not reserved for {interface} of the container in {folder}")))
        })
    }

    /// Releases the addresses of all attachments that are not in `valid`. Releases an address whose owner is unknown if every valid attachment
    /// has another one of the same set. An address outside all sets is kept until no attachment is valid.
    ///
    /// # Errors
    /// [`Code::Io`] with the file.
    pub(super) fn gc(&self, valid: &[Attached]) -> Result<(), Error> {
        let Some(store) = Store::existing(&self.folder, self.before)? else { return Ok(()) };
        let leases = store.leases()?;
        let is_of = |owner: &Owner, valid: &Attached| owner.is(&valid.container, &valid.interface);
        let set_of = |lease: &Lease| self.sets.iter().position(|set| set.contains(lease.address));
        let has_one_of = |valid: &Attached, set| {
            owned(&leases, &valid.container, &valid.interface).any(|lease| set_of(lease) == Some(set))
        };
        let is_garbage = |lease: &&Lease| match (&lease.owner, set_of(lease)) {
            (Some(owner), _) => !valid.iter().any(|valid| is_of(owner, valid)),
            (None, Some(set)) => valid.iter().all(|valid| has_one_of(valid, set)),
            (None, None) => valid.is_empty(),
        };
        release(&store, leases.iter().filter(is_garbage))
    }

    /// Returns the error about a set without an address left. Names the files whose owner is unknown.
    fn full(&self, at: usize, leases: &[Lease]) -> Error {
        let (set, folder) = (&self.sets[at], self.folder.display());
        let mut unknown: Vec<IpAddr> =
            leases.iter().filter(|lease| lease.owner.is_none()).map(|lease| lease.address).collect();
        unknown.retain(|address| set.contains(*address));
        unknown.sort();
        let damaged = match unknown.len() {
            0 => String::new(),
            count => {
                let named: Vec<_> = unknown.iter().take(MAX_NAMED).map(IpAddr::to_string).collect();
                format!(
                    "; {count} of these files are empty or damaged: remove those whose address no pod has: {}",
                    named.join(", ")
                )
            }
        };
        let details = format!(
            "ipam.ranges[{at}]: all addresses of {set} are reserved by files in {folder}; end pods of the node, or add a range{damaged}"
        );
        Error::new(Code::TryAgain, "no address is left", details)
    }
}

/// Returns the leases of an attachment.
fn owned<'a>(leases: &'a [Lease], container: &'a str, interface: &'a str) -> impl Iterator<Item = &'a Lease> {
    leases.iter().filter(move |lease| lease.owner.as_ref().is_some_and(|owner| owner.is(container, interface)))
}

/// Releases all, even if one cannot be released. Returns the first error.
fn release<'a>(store: &Store<'_>, leases: impl Iterator<Item = &'a Lease>) -> Result<(), Error> {
    let released = leases.map(|lease| store.release(lease)).reduce(Result::and);
    // Without a released address, the folder has not changed.
    released.map_or(Ok(()), |released| released.and(store.sync()))
}
