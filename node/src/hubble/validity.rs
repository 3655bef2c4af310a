//! The period in which the server's certificates are valid, with the warnings before its end.
//!
//! Only the two times are read, from DER (RFC 5280, section 4.1): rustls does not show them, and parsers of X.509 are large.

use std::time::{Duration, SystemTime};

/// A certificate's renewal is due when this much time is left until its end: two weeks, in which a person can find out why the renewal did
/// not happen by itself.
const SOON: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// A certificate that lives for less than 8 weeks is due when less than a quarter (1 / 4) of its life is left. At two weeks it could still be
/// new, and cert-manager renews when a third is left.
const LAST_PART: u32 = 4;

/// Tags of DER elements: explicit `[0]`, `UTCTime` and `GeneralizedTime`.
mod tag {
    pub(super) const VERSION: u8 = 0xa0;
    pub(super) const UTC_TIME: u8 = 0x17;
    pub(super) const GENERALIZED_TIME: u8 = 0x18;
}

/// The period in which a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    /// The first second.
    pub(crate) start: SystemTime,
    /// The last second. Clients refuse the certificate afterwards.
    pub(crate) end: SystemTime,
}

/// Whether a certificate should have been renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    NotDue,
    /// The certificate ends soon.
    Due,
    /// The certificate has ended.
    Overdue,
}

impl Validity {
    /// Reads the validity from a certificate in DER. `None` if the bytes are no certificate.
    pub(super) fn of(certificate: &[u8]) -> Option<Self> {
        let mut fields = element(element(certificate)?.content)?.content;
        if fields.first() == Some(&tag::VERSION) {
            fields = element(fields)?.rest;
        }
        // The serial number, the signature's algorithm and the issuer.
        for _ in 0..3 {
            fields = element(fields)?.rest;
        }
        let start = element(element(fields)?.content)?;
        let end = element(start.rest)?;
        Some(Self { start: start.time()?, end: end.time()? })
    }

    /// Returns whether the certificate should have been renewed by `now`.
    pub(crate) fn renewal(self, now: SystemTime) -> Renewal {
        let lifetime = self.end.duration_since(self.start).unwrap_or_default();
        match self.end.duration_since(now) {
            Err(_) => Renewal::Overdue,
            Ok(left) if left <= SOON.min(lifetime / LAST_PART) => Renewal::Due,
            Ok(_) => Renewal::NotDue,
        }
    }
}

/// A DER element.
struct Element<'a> {
    /// Its type.
    tag: u8,
    content: &'a [u8],
    /// The bytes after the element.
    rest: &'a [u8],
}

/// Splits off the first element of these bytes. `None` if they do not begin with a whole element of DER.
fn element(bytes: &[u8]) -> Option<Element<'_>> {
    let (&[tag, first], bytes) = bytes.split_first_chunk()?;
    let (length, bytes) = match first {
        0..=0x7f => (usize::from(first), bytes),
        // The number of bytes of the length. Four are enough for every certificate.
        0x81..=0x84 => {
            let (length, bytes) = bytes.split_at_checked(usize::from(first & 0x7f))?;
            (length.iter().fold(0, |length, &byte| length << 8 | usize::from(byte)), bytes)
        }
        _ => return None,
    };
    let (content, rest) = bytes.split_at_checked(length)?;
    Some(Element { tag, content, rest })
}

impl Element<'_> {
    /// Reads the element as a time in UTC. `None` if it is not one in the form that RFC 5280 demands.
    fn time(&self) -> Option<SystemTime> {
        let digits = std::str::from_utf8(self.content).ok()?.strip_suffix('Z')?;
        let (year, digits) = match self.tag {
            // RFC 5280, section 4.1.2.5.1: years from 1950 to 2049.
            tag::UTC_TIME => digits.split_at_checked(2).map(|(year, rest)| {
                let century = if year < "50" { "20" } else { "19" };
                (format!("{century}{year}"), rest)
            })?,
            tag::GENERALIZED_TIME => digits.split_at_checked(4).map(|(year, rest)| (year.to_owned(), rest))?,
            _ => return None,
        };
        let part = |at: usize| digits.get(at..at + 2);
        let [month, day, hour, minute, second] = [part(0)?, part(2)?, part(4)?, part(6)?, part(8)?];
        if digits.len() != 10 {
            return None;
        }
        humantime::parse_rfc3339(&format!("{year}-{month}-{day}T{hour}:{minute}:{second}Z")).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn der(tag: u8, content: &[u8]) -> Vec<u8> {
        let length = content.len();
        let length = match u8::try_from(length) {
            Ok(short) if short < 0x80 => vec![short],
            Ok(byte) => vec![0x81, byte],
            Err(_) => vec![0x82, u8::try_from(length >> 8).unwrap(), u8::try_from(length & 0xff).unwrap()],
        };
        [&[tag], &length[..], content].concat()
    }

    /// A certificate with the fields up to the validity, and an issuer of this length.
    fn certificate(has_version: bool, issuer: usize, start: &[u8], end: &[u8]) -> Vec<u8> {
        let version = if has_version { der(tag::VERSION, &der(2, &[2])) } else { Vec::new() };
        let validity = der(0x30, &[start, end].concat());
        let fields = [version, der(2, &[7]), der(0x30, &[]), der(0x30, &vec![0; issuer]), validity, der(0x30, &[])];
        der(0x30, &[der(0x30, &fields.concat()), der(0x30, &[])].concat())
    }

    fn at(text: &str) -> SystemTime {
        humantime::parse_rfc3339(text).unwrap()
    }

    #[test]
    fn both_forms_of_times_and_of_lengths_are_read() {
        let (utc, general) = (
            |text: &str| der(tag::UTC_TIME, text.as_bytes()),
            |text: &str| der(tag::GENERALIZED_TIME, text.as_bytes()),
        );
        for issuer in [0, 100, 200, 1000] {
            for has_version in [true, false] {
                let bytes = certificate(has_version, issuer, &utc("990102030405Z"), &general("20510203040506Z"));
                let expected = Validity { start: at("1999-01-02T03:04:05Z"), end: at("2051-02-03T04:05:06Z") };
                assert_eq!(Validity::of(&bytes), Some(expected));
                let bytes = certificate(has_version, issuer, &utc("260102030405Z"), &utc("490203040506Z"));
                let expected = Validity { start: at("2026-01-02T03:04:05Z"), end: at("2049-02-03T04:05:06Z") };
                assert_eq!(Validity::of(&bytes), Some(expected));
                for length in 0..bytes.len() {
                    assert_eq!(Validity::of(&bytes[..length]), None, "cut after {length} bytes");
                }
            }
        }
    }

    #[test]
    fn other_bytes_are_no_certificate() {
        let time = |tag: u8, text: &str| {
            certificate(true, 9, &der(tag::UTC_TIME, b"260102030405Z"), &der(tag, text.as_bytes()))
        };
        for wrong in ["", "Z", "261302030405Z", "2601020304Z", "260102030405", "260102030405+0100", "26010203040é"] {
            assert_eq!(Validity::of(&time(tag::UTC_TIME, wrong)), None, "{wrong}");
        }
        assert_eq!(Validity::of(&time(4, "260102030405Z")), None, "another tag");
        assert_eq!(Validity::of(&[0x30, 0x80]), None, "a length without an end is not DER");
        assert_eq!(Validity::of(&[0x30, 0x85, 0, 0, 0, 0, 0]), None);
    }

    #[test]
    fn a_renewal_is_due_two_weeks_before_the_end_or_in_the_last_quarter_of_a_short_life() {
        let days = |count: u64| Duration::from_secs(count * 24 * 60 * 60);
        let start = at("2026-01-01T00:00:00Z");
        for (lifetime, before) in [(days(365), days(14)), (days(56), days(14)), (days(4), days(1))] {
            let end = start + lifetime;
            let renewal = |now| Validity { start, end }.renewal(now);
            assert_eq!(renewal(end - before - Duration::from_secs(1)), Renewal::NotDue);
            assert_eq!(renewal(end - before), Renewal::Due);
            assert_eq!(renewal(end), Renewal::Due);
            assert_eq!(renewal(end + Duration::from_secs(1)), Renewal::Overdue);
        }
    }
}
