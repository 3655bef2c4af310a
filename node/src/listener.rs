//! Listening sockets: a Unix socket whose file is replaced safely, and a TCP address.

use std::fs::{self, Permissions};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use super::log;

/// Binds a non-blocking listener to a TCP address.
///
/// # Errors
/// If the address cannot be bound.
pub(crate) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// A listening Unix socket. Dropping it removes the file, unless another process has replaced the file.
pub(crate) struct Listener {
    listener: UnixListener,
    path: PathBuf,
    inode: u64,
}

impl Listener {
    /// Creates the admin socket, accessible to its owner only. Replaces the file of a dead process. `None`, with a logged warning, if
    /// another process answers there or the file cannot be created.
    pub(crate) fn bind(path: &Path) -> Option<Self> {
        Self::bind_as(path, "admin socket", "admin: {socket: PATH}")
    }

    /// Like [`Self::bind`] for another socket. `what` names it in warnings, and `field` is the setting of its path.
    pub(crate) fn bind_as(path: &Path, what: &str, field: &str) -> Option<Self> {
        let name = path.display();
        if UnixStream::connect(path).is_ok() {
            log::warn(&format!(
                "no {what}: another vswitch already answers at {name}\nhelp: give each vswitch on this machine its own path: {field}"
            ));
            return None;
        }
        Self::try_bind(path)
            .inspect_err(|error| {
                log::warn(&format!("no {what}: cannot create {name}: {error}\nhelp: set another path: {field}"));
            })
            .ok()
    }

    /// Returns the path of the socket's file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a tokio listener for the socket, which `what` names in errors. `None`, with a logged error, if the system refuses.
    pub(crate) fn accepting(&self, what: &str) -> Option<tokio::net::UnixListener> {
        let accepting = self.listener.try_clone().and_then(tokio::net::UnixListener::from_std);
        accepting.inspect_err(|error| log::error(&format!("cannot accept connections at {what}: {error}"))).ok()
    }

    fn try_bind(path: &Path) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        // Created under another name, then restricted to its owner, then renamed: nobody else can connect in between.
        let mut hidden = path.as_os_str().to_owned();
        hidden.push(format!(".{}", std::process::id()));
        let hidden = PathBuf::from(hidden);
        let _ = fs::remove_file(&hidden);
        let listener = UnixListener::bind(&hidden)?;
        let placed = fs::set_permissions(&hidden, Permissions::from_mode(0o600))
            .and_then(|()| listener.set_nonblocking(true))
            .and_then(|()| fs::metadata(&hidden))
            .and_then(|made| fs::rename(&hidden, path).map(|()| made.ino()));
        let inode = placed.inspect_err(|_| {
            let _ = fs::remove_file(&hidden);
        })?;
        Ok(Self { listener, path: path.to_owned(), inode })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if fs::metadata(&self.path).is_ok_and(|file| file.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn only_the_owner_may_open_the_socket_and_a_stale_one_is_replaced() {
        let scratch = Scratch::new("admin-socket");
        let path = scratch.path().join("run/admin.sock");
        let first = Listener::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(Listener::bind(&path).is_none(), "the first one is alive");
        assert!(UnixStream::connect(&path).is_ok(), "and keeps its file");
        // The socket file of a killed process.
        let stale = scratch.path().join("stale.sock");
        drop(UnixListener::bind(&stale).unwrap());
        assert!(stale.exists());
        let taken = Listener::bind(&stale).unwrap();
        assert!(UnixStream::connect(&stale).is_ok());
        drop((first, taken));
        assert!(!path.exists() && !stale.exists());
    }
}
