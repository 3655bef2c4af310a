//! Messages from the other threads to the thread that runs the vswitch.

/// A message of another thread to the main thread ([`Daemon`](crate::daemon::Daemon)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// The interfaces thread has tried every configured port once. `open` of `all` ports are open.
    Settled { open: usize, all: usize },
    /// A new policy is ready to publish.
    Policy,
    /// Services have changed; policy has not.
    Services,
    /// A client of the admin socket requests to read the files now.
    Look,
}
