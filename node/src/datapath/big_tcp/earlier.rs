//! Keeps the limits that interfaces had before `big_tcp`, so that they can be restored.
//!
//! ```text
//!   PINS/big-tcp-NAMESPACE/INTERFACE -> {"set":196608,"ends":[{"interface":"eth0","v4":65536,"v6":65536}]}
//! ```
//!
//! The records are symbolic links, because a BPF file system holds no files. They outlive the process and end with the node, like the limits.
//! The file system refuses names with a dot, which a VLAN's interface has. The record of `eth0.5` is named `eth0:5`: no interface has a colon in
//! its name (Linux, `dev_valid_name`).

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use bulkhead_dataplane::io::{TcpLimits, XskError, in_namespace, network_namespace};
use serde::{Deserialize, Serialize};

use crate::log;
use crate::preflight::namespace_path;

/// An interface, and the limits that it had before, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct End {
    /// The interface's name in its network namespace.
    pub(super) interface: String,
    /// The network namespace, as a name or path. `None` for the vswitch's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) netns: Option<String>,
    /// The limit over IPv4, in bytes.
    pub(super) v4: u32,
    /// The limit over IPv6, in bytes.
    pub(super) v6: u32,
}

impl End {
    /// Reads the limits that an interface has now.
    ///
    /// # Errors
    /// [`XskError`] if there is no such namespace or interface, or the kernel is older than 6.3.
    pub(super) fn read(interface: &str, netns: Option<&str>) -> Result<Self, XskError> {
        let TcpLimits { v4, v6 } = within(netns, || TcpLimits::read(interface))?;
        Ok(Self { interface: interface.to_owned(), netns: netns.map(str::to_owned), v4, v6 })
    }

    /// Sets the interface's limits.
    ///
    /// # Errors
    /// [`XskError`] if there is no such namespace or interface, or the driver refuses.
    pub(super) fn set(&self, limits: TcpLimits) -> Result<(), XskError> {
        within(self.netns.as_deref(), || limits.set(&self.interface))
    }

    /// Restores the earlier limits where the interface still has the limit `set`. Returns whether it changed one.
    fn restore(&self, set: u32) -> Result<bool, XskError> {
        let now = Self::read(&self.interface, self.netns.as_deref())?;
        let of = |now: u32, earlier: u32| if now == set { earlier } else { now };
        let limits = TcpLimits { v4: of(now.v4, self.v4), v6: of(now.v6, self.v6) };
        let changes = (limits.v4, limits.v6) != (now.v4, now.v6);
        if changes {
            self.set(limits)?;
        }
        Ok(changes)
    }
}

/// What `big_tcp` changed for a port.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    /// The limit that it set, over both families, in bytes.
    set: u32,
    /// The interfaces at which it set the limit, with their limits before: the port's, and the pod's end of a veth.
    ends: Vec<End>,
}

impl Record {
    /// Restores the limits that nobody has changed since. Returns whether it restored any.
    ///
    /// # Errors
    /// The first [`XskError`], after all ends have been tried. An end that is gone is no error.
    fn restore(&self) -> Result<bool, XskError> {
        let results: Vec<_> = self.ends.iter().map(|end| end.restore(self.set)).collect();
        results.into_iter().try_fold(false, |has_restored, result| match result {
            Ok(restored) => Ok(has_restored | restored),
            // The pod is gone, or its namespace is not in reach: then it loses its interface with the plugin.
            Err(XskError::NoInterface { .. } | XskError::Namespace { .. }) => Ok(has_restored),
            Err(error) => Err(error),
        })
    }
}

/// The folder with the records of the calling thread's network namespace.
#[derive(Debug)]
pub(crate) struct EarlierLimits {
    folder: PathBuf,
}

impl EarlierLimits {
    /// Names the folder below the path of the pins. `None` without `/proc`.
    pub(crate) fn below(pins: &Path) -> Option<Self> {
        Some(Self { folder: pins.join(format!("big-tcp-{}", network_namespace()?)) })
    }

    /// Records the ends' limits before the limit `set` replaces them. Where an end has the limit of an existing record, the earlier limits
    /// of that record stay.
    ///
    /// # Errors
    /// If the file system refuses.
    pub(super) fn keep(&self, port: &str, set: u32, mut ends: Vec<End>) -> io::Result<()> {
        if let Some(old) = self.read(port) {
            for end in &mut ends {
                let is_same = |other: &&End| other.interface == end.interface && other.netns == end.netns;
                let Some(earlier) = old.ends.iter().find(is_same) else { continue };
                for (now, earlier) in [(&mut end.v4, earlier.v4), (&mut end.v6, earlier.v6)] {
                    *now = if *now == old.set { earlier } else { *now };
                }
            }
        }
        fs::create_dir_all(&self.folder)?;
        // Renamed, so that a process that is killed here leaves the old record or the new one. No interface has a space in its name.
        let unfinished = self.record(&format!("{port} new"));
        // Fails unless a process was killed here.
        let _ = fs::remove_file(&unfinished);
        symlink(serde_json::to_string(&Record { set, ends })?, &unfinished)?;
        fs::rename(unfinished, self.record(port))
    }

    /// Returns the path of a port's record, given its interface.
    fn record(&self, port: &str) -> PathBuf {
        self.folder.join(port.replace('.', ":"))
    }

    /// Reads a port's record, given its interface. `None` if there is none, or if it cannot be parsed.
    fn read(&self, port: &str) -> Option<Record> {
        let text = fs::read_link(self.record(port)).ok()?;
        serde_json::from_str(text.to_str()?).ok()
    }

    /// Removes the record of a port whose interface is gone.
    pub(super) fn forget(&self, port: &str) {
        // Fails if there is none.
        let _ = fs::remove_file(self.record(port));
    }

    /// Removes the records of ports whose interfaces are gone.
    pub(super) fn forget_missing(&self) {
        for port in self.ports() {
            if let Err(XskError::NoInterface { .. }) = TcpLimits::read(&port) {
                self.forget(&port);
            }
        }
    }

    /// Restores all recorded limits that nobody has changed since, and removes the records and their empty folders. Logs a limit that cannot
    /// be restored, and keeps its record for the next attempt. Returns whether it restored any.
    pub(crate) fn restore(&self) -> bool {
        let mut has_restored = false;
        for port in self.ports() {
            match self.read(&port).as_ref().map_or(Ok(false), Record::restore) {
                Ok(restored) => {
                    has_restored |= restored;
                    self.forget(&port);
                }
                Err(error) => log::warn(&format!("port {port}: big_tcp is not undone: {error}")),
            }
        }
        // Fails if somebody else has something there.
        if fs::remove_dir(&self.folder).is_ok() {
            let _ = self.folder.parent().map(fs::remove_dir);
        }
        has_restored
    }

    /// Returns the interfaces of ports with a record.
    fn ports(&self) -> Vec<String> {
        // Absent until the first record.
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| Some(entry.file_name().into_string().ok()?.replace(':', "."))).collect()
    }
}

/// Runs `act` on a thread in the network namespace. `None` is the calling thread's own.
fn within<T: Send>(netns: Option<&str>, act: impl FnOnce() -> Result<T, XskError> + Send) -> Result<T, XskError> {
    match netns {
        Some(netns) => in_namespace(&namespace_path(netns), act).and_then(|done| done),
        None => act(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(interface: &str, v4: u32, v6: u32) -> End {
        End { interface: interface.to_owned(), netns: None, v4, v6 }
    }

    #[test]
    fn the_first_limits_are_kept_until_somebody_else_changes_them() {
        let pins = std::env::temp_dir().join(format!("bulkhead-earlier-{}", std::process::id()));
        let earlier = EarlierLimits { folder: pins.join("big-tcp-1") };
        let kept = || earlier.read("p1").map(|Record { set, ends }| (set, ends));
        assert!(kept().is_none() && !earlier.restore());
        earlier.keep("p1", 131_072, vec![end("p1", 65_536, 80_000)]).unwrap();
        // Another size in the configuration.
        earlier.keep("p1", 196_608, vec![end("p1", 131_072, 131_072)]).unwrap();
        assert_eq!(kept().unwrap(), (196_608, vec![end("p1", 65_536, 80_000)]));
        // Somebody has changed one.
        earlier.keep("p1", 131_072, vec![end("p1", 196_608, 90_000)]).unwrap();
        assert_eq!(kept().unwrap(), (131_072, vec![end("p1", 65_536, 90_000)]));
        // A VLAN's interface, which does not exist.
        earlier.keep("p2.5", 131_072, vec![end("p2.5", 65_536, 65_536)]).unwrap();
        assert!(earlier.read("p2.5").is_some() && earlier.ports().contains(&"p2.5".to_owned()));
        assert!(fs::read_dir(&earlier.folder).unwrap().all(|entry| !entry.unwrap().path().ends_with("p2.5")));
        earlier.forget("p1");
        assert!(kept().is_none());
        assert!(!earlier.restore() && !pins.exists());
    }
}
