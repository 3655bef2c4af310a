//! The container's network namespace.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bulkhead_dataplane::io::in_namespace;

use super::environment::Environment;
use super::error::{Code, Error};

/// The calling thread's network namespace.
const OWN: &str = "/proc/thread-self/ns/net";

/// A container's network namespace, which is not the node's.
#[derive(Debug)]
pub(super) struct Sandbox<'a> {
    pub(super) path: &'a Path,
    file: File,
}

impl<'a> Sandbox<'a> {
    /// Opens the namespace that `CNI_NETNS` names.
    ///
    /// # Errors
    /// [`Code::UnknownContainer`] if the path does not exist. Another [`Error`] if it is not a namespace or is the node's own.
    pub(super) fn open(environment: &'a Environment) -> Result<Self, Error> {
        let path = environment.netns.as_deref().ok_or_else(|| Error::environment("CNI_NETNS: missing"))?;
        let wrong = |why: &str| Error::environment(format!("CNI_NETNS: {}: {why}", path.display()));
        // Opening a named pipe would block until it has a writer.
        let open = || match std::fs::metadata(path)?.is_file() {
            true => File::open(path),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a network namespace")),
        };
        let file = open().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                let details = format!("CNI_NETNS: {}: {error}", path.display());
                Error::new(Code::UnknownContainer, "the container does not exist", details)
            }
            _ => wrong(&error.to_string()),
        })?;
        let number = |metadata: io::Result<std::fs::Metadata>| metadata.map(|found| (found.dev(), found.ino()));
        let (own, its) = (number(std::fs::metadata(OWN)), number(file.metadata()));
        match (own, its) {
            (Ok(own), Ok(its)) if own == its => {
                Err(wrong("this is the node's own namespace; pods with hostNetwork need no CNI plugin"))
            }
            (Err(error), _) | (_, Err(error)) => Err(wrong(&error.to_string())),
            _ => Ok(Self { path, file }),
        }
    }

    /// Runs `inside` in the namespace, on a separate thread.
    ///
    /// # Errors
    /// [`Error`] if the namespace cannot be entered, or the error of `inside`.
    pub(super) fn enter<T: Send>(&self, inside: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
        in_namespace(self.path, inside).map_err(|error| Error::environment(format!("CNI_NETNS: {error}")))?
    }
}

impl AsFd for Sandbox<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
