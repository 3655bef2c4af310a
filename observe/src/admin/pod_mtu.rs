//! The MTU of new pods, which the vswitch computes and the CNI plugin reads.
//!
//! ```text
//!   the vswitch: links and tunnel to other nodes --> /run/bulkhead/pod-mtu: "1450" --> the plugin's next ADD
//! ```
//!
//! A file, and no request to the vswitch: a node starts a hundred pods at once, and the plugin needs the number before it creates the
//! interface. The file is next to the vswitch's socket, and disappears on reboot.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const FILE: &str = "pod-mtu";

/// The file with the MTU of new pods.
#[derive(Clone, Debug)]
pub struct PodMtu {
    path: PathBuf,
}

impl PodMtu {
    /// Returns the file of the vswitch with this socket.
    pub fn of(socket: &Path) -> Self {
        Self { path: socket.parent().unwrap_or(Path::new("/")).join(FILE) }
    }

    /// Returns the MTU in bytes. `None` if the vswitch has written none, or the file is damaged.
    pub fn read(&self) -> Option<u32> {
        fs::read_to_string(&self.path).ok()?.trim().parse().ok()
    }

    /// Replaces the file atomically.
    ///
    /// # Errors
    /// If the folder does not exist, or the system refuses.
    pub fn write(&self, mtu: u32) -> io::Result<()> {
        let new = self.path.with_extension("new");
        fs::write(&new, format!("{mtu}\n"))?;
        fs::rename(&new, &self.path)
    }

    /// Removes the file, so that the plugin uses the MTU of the default route's interface. Does nothing if there is no file.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn the_last_number_is_read_and_none_where_there_is_none() {
        let scratch = Scratch::new("pod-mtu");
        let file = PodMtu::of(&scratch.path().join("admin.sock"));
        assert_eq!(file.read(), None);
        file.remove().unwrap();
        file.write(1500).unwrap();
        file.write(1450).unwrap();
        assert_eq!(file.read(), Some(1450));
        fs::write(scratch.path().join(FILE), "14x").unwrap();
        assert_eq!(file.read(), None);
        file.remove().unwrap();
        assert!(fs::read_dir(scratch.path()).unwrap().next().is_none());
    }
}
