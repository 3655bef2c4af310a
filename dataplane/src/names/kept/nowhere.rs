//! Files of learned names are not supported on systems other than Linux.

use std::net::IpAddr;

use super::NameId;

/// A type without values, since no file of names exists.
#[derive(Debug)]
pub enum KeptNames {}

impl KeptNames {
    pub(crate) fn keep(&self, _pod: IpAddr, _name: (NameId, &str), _address: IpAddr, _until: u64) {
        match *self {}
    }
}
