//! MAC addresses as text.

use std::fmt;
use std::str::FromStr;

/// A unicast MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mac(pub(super) [u8; 6]);

impl Mac {
    /// Makes a locally administered unicast address of the bytes (IEEE 802: sets bit 1 of the first byte, clears the group bit 0).
    pub(super) const fn local(mut bytes: [u8; 6]) -> Self {
        bytes[0] = bytes[0] & 0xfc | 0x02;
        Self(bytes)
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || format!("`{text}` is not a unicast MAC address such as 02:00:0a:f4:01:04");
        let (mut bytes, mut parts) = ([0; 6], text.split(':'));
        for byte in &mut bytes {
            let is_hex = |part: &&str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
            let part = parts.next().filter(is_hex).ok_or_else(malformed)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| malformed())?;
        }
        if parts.next().is_some() || bytes[0] & 1 == 1 || bytes == [0; 6] {
            return Err(malformed());
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_station_has_an_address_of_six_bytes_that_is_nobody_elses() {
        assert_eq!("02:00:0a:F4:01:04".parse::<Mac>().unwrap().to_string(), "02:00:0a:f4:01:04");
        for wrong in [
            "",
            "02:00",
            "02:00:0a:f4:01:04:05",
            "01:00:5e:00:00:01",
            "00:00:00:00:00:00",
            "2:0:a:f4:1:4",
            "+2:00:00:00:00:00",
        ] {
            assert!(wrong.parse::<Mac>().is_err(), "{wrong}");
        }
        assert_eq!(Mac::local([0xff; 6]).to_string(), "fe:ff:ff:ff:ff:ff");
        assert_eq!(Mac::local([0; 6]).to_string(), "02:00:00:00:00:00");
    }
}
