//! AF_XDP sockets over `libc`.
#![expect(
    unsafe_code,
    reason = "memory that is shared with the kernel, and system calls that libc has no safe form of"
)]

mod umem;

pub use umem::{Frame, Umem, UmemError};
