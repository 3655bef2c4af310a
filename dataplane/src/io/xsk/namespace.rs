//! Runs code in another network namespace.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use super::error::XskError;

/// Calls `inside` on a new thread in the network namespace at `path` (`/run/netns/NAME`, `/proc/PID/ns/net`) and waits for its result.
/// Sockets that it opens stay in that namespace; any thread can use them. The thread is new because an existing thread might fail to
/// return to its namespace.
///
/// # Errors
/// [`XskError::Namespace`] if the thread cannot enter the namespace.
///
/// # Panics
/// If `inside` panics.
pub fn in_namespace<T: Send>(path: &Path, inside: impl FnOnce() -> T + Send) -> Result<T, XskError> {
    let enter = || {
        // Opening a named pipe would wait forever for its writer.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path is not a network namespace"));
        }
        let namespace = File::open(path)?;
        // SAFETY: changes what network this thread sees, and no memory.
        let result = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    let scratch = || {
        enter().map_err(|source| XskError::Namespace { path: path.to_owned(), source })?;
        Ok(inside())
    };
    std::thread::scope(|scope| scope.spawn(scratch).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Returns the inode number of the calling thread's network namespace. `None` without `/proc`.
pub fn network_namespace() -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/thread-self/ns/net").ok().map(|namespace| namespace.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_is_none_is_an_error_that_names_it() {
        let error = in_namespace(Path::new("/no/such/namespace"), || ()).unwrap_err().to_string();
        assert!(error.contains("/no/such/namespace") && error.contains("/run/netns"), "{error}");
        let error = in_namespace(Path::new("/dev/null"), || ()).unwrap_err();
        assert!(matches!(error, XskError::Namespace { .. }));
    }
}
