//! Threads that wait for the kernel's messages about changes.

use bulkhead_dataplane::io::{ChangeWatch, Watched};
use crossbeam_channel::{Receiver, TrySendError, never};

use super::log;

/// Starts to watch this thread's network namespace. Several changes may be one notice. If the kernel refuses, the channel is never ready.
pub(super) fn of(watched: Watched) -> Receiver<()> {
    let (tell, told) = crossbeam_channel::bounded(1);
    let follow = move |watch: ChangeWatch| {
        while watch.wait().is_ok() {
            // A notice that is still in the channel covers this change.
            if let Err(TrySendError::Disconnected(())) = tell.try_send(()) {
                return;
            }
        }
    };
    let (name, what) = match watched {
        Watched::Addresses => ("addresses", "the node's addresses"),
        Watched::Routes => ("routes", "the node's routes"),
    };
    let started = ChangeWatch::new(watched)
        .and_then(|watch| std::thread::Builder::new().name(name.into()).spawn(move || follow(watch)));
    match started {
        Ok(_) => told,
        Err(error) => {
            log::warn(&format!("the kernel does not report changes of {what}: {error}"));
            never()
        }
    }
}
