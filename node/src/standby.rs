//! Standing by: a process that waits for the one before it, so that a rolling update replaces that one at once.
//!
//! ```text
//!   old process  ==runs=========|SIGTERM, ends
//!   new process       --stands by--|checks, loads the state, takes over ports and sessions
//! ```
//!
//! Each process holds a listening abstract socket while it runs: the claim of the trunk, or the ownership of the nftables table. The waiting
//! process connects to it, and the connection ends with the socket. Nothing is polled, and a killed process is noticed too.

use std::io::Read;
use std::os::unix::net::UnixStream;

use anyhow::Context;
use bulkhead_dataplane::io::trunk_claimant;
use crossbeam_channel::{Receiver, select};

use super::config::TRUNK;
use super::signals::Request;
use super::{log, nft};

/// Waits until no other process forwards or enforces policy in this network namespace. Returns false if a signal asks this process to stop
/// meanwhile.
///
/// # Errors
/// If the system refuses a thread.
pub(super) fn stand_by(requests: &Receiver<Request>) -> anyhow::Result<bool> {
    while let Some(other) = trunk_claimant(TRUNK[0]).or_else(nft::owner) {
        log::info(
            "standing by: another process runs in this network namespace; this one starts when that one has ended",
        );
        if !wait(other, requests)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Waits for the end of a connection. Returns false if a signal asks this process to stop before.
fn wait(mut other: UnixStream, requests: &Receiver<Request>) -> anyhow::Result<bool> {
    let (tell, ended) = crossbeam_channel::bounded(1);
    let read = move || {
        // The other process never accepts, so this returns at its end: nothing, or an error.
        let _ = other.read(&mut [0]);
        let _ = tell.send(());
    };
    std::thread::Builder::new().name("standby".into()).spawn(read).context("cannot wait for the other process")?;
    loop {
        select! {
            recv(ended) -> _ => return Ok(true),
            recv(requests) -> request => match request.unwrap_or(Request::Stop) {
                Request::Stop => return Ok(false),
                // There is nothing to print yet, and everything is read at the start.
                Request::Summary | Request::Look => {}
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_wait_ends_with_the_other_process_or_with_a_signal_to_stop() {
        let name = SocketAddr::from_abstract_name(format!("bulkhead-standby-{}", std::process::id())).unwrap();
        let listener = UnixListener::bind_addr(&name).unwrap();
        let (tell, requests) = crossbeam_channel::unbounded();
        let [first, second] = [(), ()].map(|()| UnixStream::connect_addr(&name).unwrap());
        tell.send(Request::Look).unwrap();
        tell.send(Request::Stop).unwrap();
        assert!(!wait(first, &requests).unwrap());
        let ended = std::thread::spawn(move || wait(second, &requests).unwrap());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!ended.is_finished());
        drop(listener);
        assert!(ended.join().unwrap());
    }
}
