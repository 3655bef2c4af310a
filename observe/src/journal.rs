//! The flight recorder's journal: what the state was, and what became of traffic, on disk in a bounded file.
//!
//! **Purpose.** [`Recorder`] writes object changes, verdicts of sessions and headers of dropped packets into memory that is a mapped file.
//! [`History`] reads them: the state at any time, what changed since, what was seen. `why` and `bundle` ask it.
//!
//! **Not its purpose.** No thread, file or clock is in here, so that a journal can be read anywhere, the offline page included.
//! `live::journal` feeds a recorder.
//!
//! ```text
//!   file     header | segment | segment | ...                      a ring: the oldest segment is written over
//!   segment  header | checkpoint | names, changes, verdicts, ...   sequence numbers tell which is the newest
//!   record   length, CRC | kind | CRC of payload | time | generation | payload
//! ```
//!
//! **A segment can be read alone.** It begins with a checkpoint: all objects as they were, compressed. So the loss of the oldest segment, or of
//! a damaged one, costs what was in it and nothing else. The design that lost kept one checkpoint file beside a log of changes: smaller,
//! and every change that was ever lost would have made all later answers wrong, or needed the log to be kept for ever. A state whose
//! checkpoint takes more than half of a segment is not written in each one ([`Recorder::is_too_large`]); its times can be asked about as
//! long as the segment with the last whole state is there.
//!
//! **A torn record is recognised** by its CRCs, whatever part of it got into memory before the process died. What is mapped shared is in
//! the file when the process is killed; no call to the kernel is made for it. When the machine loses power, the kernel may have written any
//! pages and not others: a record of which a page is missing fails its CRC and is counted, and the number of each change tells whether one is
//! missing. A state that would rest on a missing change is an error, never a guess.
//!
//! **Invariant.** What was appended before a crash is read after it. Whatever bytes a file has, reading it neither fails otherwise than by an
//! error nor takes longer than its length allows.

mod format;
mod history;
mod reader;
mod recorder;
mod state;
#[cfg(test)]
mod tests;
mod verdict;
mod writer;

pub use format::{Layout, Memory};
pub use history::{Gap, History, HistoryError, StateAt};
pub use reader::Journal;
pub use recorder::Recorder;
pub use state::Change;
pub use verdict::{LeftOut, Translated, Verdict};
#[cfg(target_os = "linux")]
pub use writer::WriterError;
