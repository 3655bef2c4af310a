//! The flight recorder's journal: history of state and verdicts in a file of bounded size.
//!
//! **Purpose.** [`Recorder`] writes object changes, verdicts on sessions and headers of dropped packets to a memory-mapped file.
//! [`History`] returns the state at any time, later changes, and verdicts. `why` and `bundle` use it.
//!
//! **Not its purpose.** It opens no files and uses no threads or clocks, so that journals can be read anywhere, including in a browser. `live::journal`
//! feeds a recorder.
//!
//! ```text
//!   file     header | segment | segment | ...                      a ring: the oldest segment is overwritten
//!   segment  header | checkpoint | names, changes, verdicts, ...   sequence numbers identify the newest one
//!   record   length, CRC | kind | CRC of payload | time | generation | payload
//! ```
//!
//! **Segments are independent.** Each starts with a checkpoint: all objects, compressed. Losing the oldest or a damaged segment loses only
//! its own contents. The rejected alternative was one checkpoint file and a log of changes: smaller, but every lost change would invalidate
//! all later answers, or the log would grow forever. If a checkpoint exceeds half a segment, it is not written in each one
//! ([`Recorder::is_too_large`]); answers then reach back to the segment with the last whole state.
//!
//! **Torn records are detected** by their CRCs, whatever part reached memory before the process died. A shared mapping survives the process
//! without system calls. After a power failure, any page may be missing: such a record fails its CRC and is counted, and the numbers of
//! changes reveal missing ones. A state that depends on a missing change is an error, never a guess.
//!
//! **Invariant.** Records appended before a crash are readable after it. Reading arbitrary bytes never panics, and takes time proportional
//! to their length. It needs little memory besides the state that was asked about: a file is read through a window of 256 KiB, and what a
//! record decompresses to is bounded by its own size (`bundle::weight`).

mod format;
mod history;
mod input;
mod reader;
mod recorder;
mod state;
#[cfg(test)]
mod tests;
mod verdict;
mod writer;

pub use format::{Layout, Memory};
pub use history::{Gap, History, HistoryError, StateAt};
pub use input::Input;
pub use reader::JournalError;
pub use recorder::Recorder;
pub use state::Change;
pub use verdict::{LeftOut, Translated, Verdict};
#[cfg(target_os = "linux")]
pub use writer::WriterError;
