//! Being told by the kernel that interfaces have changed, so that a new one does not wait for the next look.

use bulkhead_dataplane::io::LinkWatch;
use crossbeam_channel::{Receiver, TrySendError};

use super::log;

/// Starts to listen, in this thread's network namespace. Several changes that nobody has heard of yet are one message.
/// Where listening fails, or ends, the channel is closed: interfaces are looked at from time to time in any case.
pub(super) fn listen() -> Receiver<()> {
    let (tell, told) = crossbeam_channel::bounded(1);
    let started = LinkWatch::new().and_then(|watch| {
        std::thread::Builder::new().name("links".into()).spawn(move || {
            // Full: the one that waits says the same.
            while watch.wait().is_ok() && tell.try_send(()) != Err(TrySendError::Disconnected(())) {}
        })
    });
    if let Err(error) = started {
        log::warn(&format!("the kernel does not tell of new interfaces, which are seen a little later: {error}"));
    }
    told
}
