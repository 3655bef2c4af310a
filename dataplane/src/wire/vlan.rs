//! VLAN tags (IEEE 802.1Q, and IEEE 802.1ad for the outer of two): four bytes between the addresses and the type.

use super::ethernet::ADDRESSES_LEN;
use super::{WireError, word};

/// Length in bytes of a tag: tag protocol, then priority and VLAN ID.
pub const TAG_LEN: usize = 4;

mod field {
    pub(super) const PROTOCOL: usize = super::ADDRESSES_LEN;
    pub(super) const CONTROL: usize = super::ADDRESSES_LEN + 2;
}

/// The VLAN ID's bits in the control word.
const ID: u16 = 0x0fff;
const DROP_ELIGIBLE: u16 = 0x1000;
const PRIORITY_SHIFT: u16 = 13;

/// A frame that is long enough for a tag.
#[derive(Clone, Copy, Debug)]
pub struct Frame<T>(T);

impl<T: AsRef<[u8]>> Frame<T> {
    /// Checks that the frame is long enough for a tag.
    ///
    /// # Errors
    /// [`WireError::Truncated`]
    #[inline]
    pub fn new_checked(bytes: T) -> Result<Self, WireError> {
        if bytes.as_ref().len() < ADDRESSES_LEN + TAG_LEN {
            return Err(WireError::Truncated { protocol: "VLAN" });
        }
        Ok(Self(bytes))
    }

    /// Returns the tag protocol, an [ethertype](super::ethernet::ethertype).
    pub fn protocol(&self) -> u16 {
        word(self.0.as_ref(), field::PROTOCOL)
    }

    /// VLAN ID, 0 to 4095.
    pub fn id(&self) -> u16 {
        word(self.0.as_ref(), field::CONTROL) & ID
    }

    /// Priority, 0 to 7.
    pub fn priority(&self) -> u8 {
        (word(self.0.as_ref(), field::CONTROL) >> PRIORITY_SHIFT) as u8
    }

    /// Whether switches should drop the frame first when congested.
    pub fn drop_eligible(&self) -> bool {
        word(self.0.as_ref(), field::CONTROL) & DROP_ELIGIBLE != 0
    }
}

/// A tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The tag protocol, an [ethertype](super::ethernet::ethertype).
    pub protocol: u16,
    /// VLAN ID, 0 to 4095.
    pub id: u16,
    /// Priority, 0 to 7.
    pub priority: u8,
    /// Whether switches should drop the frame first when congested.
    pub drop_eligible: bool,
}

impl Repr {
    /// Reads the tag.
    pub fn parse<T: AsRef<[u8]>>(frame: &Frame<T>) -> Self {
        Self {
            protocol: frame.protocol(),
            id: frame.id(),
            priority: frame.priority(),
            drop_eligible: frame.drop_eligible(),
        }
    }

    /// Returns the tag as on the wire. Higher bits of ID and priority are ignored.
    pub const fn emit(&self) -> [u8; TAG_LEN] {
        let drop_eligible = if self.drop_eligible { DROP_ELIGIBLE } else { 0 };
        let control = ((self.priority as u16) << PRIORITY_SHIFT) | drop_eligible | (self.id & ID);
        let ([a, b], [c, d]) = (self.protocol.to_be_bytes(), control.to_be_bytes());
        [a, b, c, d]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ethernet::ethertype;
    use etherparse::{Ethernet2Slice, SingleVlanSlice};

    #[test]
    fn what_is_written_is_read_again_here_and_by_etherparse() {
        for (id, priority, drop_eligible) in [(0, 0, false), (4095, 7, true), (0x123, 5, false)] {
            let tag = Repr { protocol: ethertype::VLAN, id, priority, drop_eligible };
            let bytes = [&[9; ADDRESSES_LEN][..], &tag.emit(), &[8, 0, 1, 2]].concat();
            assert_eq!(Repr::parse(&Frame::new_checked(&bytes).unwrap()), tag);
            let ethernet = Ethernet2Slice::from_slice_without_fcs(&bytes).unwrap();
            assert_eq!(ethernet.ether_type().0, ethertype::VLAN);
            let vlan = SingleVlanSlice::from_slice(ethernet.payload_slice()).unwrap().to_header();
            assert_eq!(
                (vlan.vlan_id.value(), vlan.pcp.value(), vlan.drop_eligible_indicator),
                (id, priority, drop_eligible)
            );
            assert_eq!(vlan.ether_type.0, ethertype::IPV4);
        }
    }

    #[test]
    fn a_frame_that_is_cut_short_is_an_error_and_a_number_that_is_too_high_keeps_its_low_bits() {
        for len in 0..ADDRESSES_LEN + TAG_LEN {
            assert!(Frame::new_checked(vec![0; len]).is_err());
        }
        let tag = Repr { protocol: ethertype::SERVICE_VLAN, id: 0xf001, priority: 0, drop_eligible: false };
        assert_eq!(tag.emit(), [0x88, 0xa8, 0, 1]);
    }
}
