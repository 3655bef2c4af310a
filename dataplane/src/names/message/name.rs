//! Domain names as text.

use std::fmt;
use std::hash::{Hash, Hasher};

use super::Fault;
use super::labels::{Labels, NAME_MAX};

/// Longest name in bytes as dotted text: the wire form has one byte more in front and the root's byte at the end.
const TEXT_MAX: usize = NAME_MAX - 2;

/// A domain name as dotted text in lower case, without a trailing dot. The text has 1 to 253 bytes: ASCII letters, digits, `-`, `_` and
/// dots.
#[derive(Clone, Copy)]
pub(crate) struct DomainName {
    len: u8,
    text: [u8; TEXT_MAX],
}

impl DomainName {
    /// Returns the text as a string.
    pub(crate) fn as_str(&self) -> &str {
        str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    /// Returns the text as ASCII bytes.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.text.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// Collects labels into a name. [`Fault::UnusualName`] if dotted text cannot represent the labels unambiguously.
    pub(super) fn collect(mut labels: Labels<'_>) -> Result<Self, Fault> {
        let mut name = Self { len: 0, text: [0; TEXT_MAX] };
        while let Some(label) = labels.next_label()? {
            if name.len > 0 {
                name.push(b'.')?;
            }
            for &byte in label {
                if !byte.is_ascii_alphanumeric() && byte != b'-' && byte != b'_' {
                    return Err(Fault::UnusualName);
                }
                name.push(byte.to_ascii_lowercase())?;
            }
        }
        if name.len == 0 { Err(Fault::UnusualName) } else { Ok(name) }
    }

    fn push(&mut self, byte: u8) -> Result<(), Fault> {
        *self.text.get_mut(usize::from(self.len)).ok_or(Fault::MalformedName)? = byte;
        self.len += 1;
        Ok(())
    }
}

impl PartialEq for DomainName {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for DomainName {}

impl Hash for DomainName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl fmt::Debug for DomainName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), formatter)
    }
}

impl fmt::Display for DomainName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}
