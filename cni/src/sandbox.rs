//! The container's network namespace.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bulkhead_dataplane::io::in_namespace;

use super::environment::Environment;
use super::error::{Code, Error};

/// Where the calling thread's own namespace is.
const OWN: &str = "/proc/thread-self/ns/net";

/// A network namespace that is not the node's.
#[derive(Debug)]
pub(super) struct Sandbox<'a> {
    pub(super) path: &'a Path,
    file: File,
}

impl<'a> Sandbox<'a> {
    /// The one that the runtime names.
    ///
    /// # Errors
    /// When there is none, or when it is the node's.
    pub(super) fn open(environment: &'a Environment) -> Result<Self, Error> {
        let path = environment.netns.as_deref().ok_or_else(|| Error::environment("CNI_NETNS: missing"))?;
        let wrong = |why: &str| Error::environment(format!("CNI_NETNS: {}: {why}", path.display()));
        // To open a named pipe would wait for its writer, for ever.
        let open = || match std::fs::metadata(path)?.is_file() {
            true => File::open(path),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no network namespace")),
        };
        let file = open().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                let details = format!("CNI_NETNS: {}: {error}", path.display());
                Error::new(Code::UnknownContainer, "there is no such container", details)
            }
            _ => wrong(&error.to_string()),
        })?;
        let number = |metadata: io::Result<std::fs::Metadata>| metadata.map(|found| (found.dev(), found.ino()));
        let (own, its) = (number(std::fs::metadata(OWN)), number(file.metadata()));
        match (own, its) {
            (Ok(own), Ok(its)) if own == its => {
                Err(wrong("it is the node's own namespace; pods of the host network have no interface of their own"))
            }
            (Err(error), _) | (_, Err(error)) => Err(wrong(&error.to_string())),
            _ => Ok(Self { path, file }),
        }
    }

    /// Does something inside, on a thread of its own.
    ///
    /// # Errors
    /// When it cannot be entered, or what `inside` says.
    pub(super) fn enter<T: Send>(&self, inside: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
        in_namespace(self.path, inside).map_err(|error| Error::environment(format!("CNI_NETNS: {error}")))?
    }
}

impl AsFd for Sandbox<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
