//! Parses times. The default zone is UTC, as in `monitor`, the log and `-o json`, because a file from another machine does not contain its
//! user's zone.

use std::time::{Duration, UNIX_EPOCH};

use anyhow::bail;

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 86_400 * SECOND;

/// Parses a time into nanoseconds since 1970. A time of day is its latest occurrence not after `now`; a duration counts back from `now`.
///
/// # Errors
/// If the text is not a time.
pub(super) fn parse(text: &str, now: u64) -> anyhow::Result<u64> {
    let text = text.trim();
    if text == "now" {
        return Ok(now);
    }
    let ago = text.strip_suffix("ago").map_or(text, str::trim_end);
    if let Ok(ago) = humantime::parse_duration(ago) {
        return Ok(now.saturating_sub(u64::try_from(ago.as_nanos()).unwrap_or(u64::MAX)));
    }
    if let Some(time) = time_of_day(text) {
        let today = now / DAY * DAY + time;
        return Ok(if today <= now { today } else { today.saturating_sub(DAY) });
    }
    if let Some(time) = date(text) {
        return Ok(time);
    }
    bail!(
        "`{}` is not a valid time\n  help: write 14:32 or 14:32:07.5 (UTC), 2026-11-24T14:32:00Z, 2026-11-24T15:32:00+01:00, or how long ago: 10m",
        bulkhead_answers::output::printable(text)
    )
}

/// Parses `14:32`, `14:32:07` or `14:32:07.123` into nanoseconds since midnight. `None` for other text.
fn time_of_day(text: &str) -> Option<u64> {
    let mut parts = text.split(':');
    let (hour, minute, second) = (parts.next()?, parts.next()?, parts.next());
    let two = |text: &str, below: u64| {
        let number = text.parse().ok().filter(|_| text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit()));
        number.filter(|&number: &u64| number < below)
    };
    let (whole, part) = second.map_or(("00", ""), |second| second.split_once('.').unwrap_or((second, "")));
    let is_part = part.len() <= 9 && part.bytes().all(|byte| byte.is_ascii_digit());
    if parts.next().is_some() || !is_part {
        return None;
    }
    let nanoseconds: u64 = if part.is_empty() { 0 } else { format!("{part:0<9}").parse().ok()? };
    Some((two(hour, 24)? * 3600 + two(minute, 60)? * 60 + two(whole, 60)?) * SECOND + nanoseconds)
}

/// Parses RFC 3339 with any offset (default UTC) into nanoseconds since 1970. `None` for other text.
fn date(text: &str) -> Option<u64> {
    let (local, offset) = match text.get(19..) {
        Some(rest) => match rest.find(['+', '-']) {
            Some(at) => (&text[..19 + at], Some(&rest[at..])),
            None => (text, None),
        },
        None => (text, None),
    };
    let time = humantime::parse_rfc3339_weak(local).ok()?;
    let time = u64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_nanos()).ok()?;
    let Some(offset) = offset else { return Some(time) };
    let seconds = time_of_day(&offset[1..]).filter(|_| offset.len() == 6)?;
    if offset.starts_with('+') { time.checked_sub(seconds) } else { time.checked_add(seconds) }
}

/// The last representable second: the end of the year 9999.
const LAST: u64 = 253_402_300_799;

/// Formats RFC 3339 with milliseconds.
pub(super) fn rfc3339(time: u64) -> String {
    let time = Duration::from_nanos(time).min(Duration::from_secs(LAST));
    humantime::format_rfc3339_millis(UNIX_EPOCH + time).to_string()
}

/// Formats a time for people, without the date if it is the day of `about`.
pub(super) fn clock(time: u64, about: u64) -> String {
    let text = rfc3339(time);
    let (date, clock) = text.trim_end_matches('Z').split_once('T').unwrap_or_default();
    if time / DAY == about / DAY { clock.to_owned() } else { format!("{date} {clock}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_taken_as_people_write_them() {
        let now = date("2026-11-24T14:40:00Z").unwrap();
        let told = |text: &str| parse(text, now).map(rfc3339).unwrap();
        for (text, expected) in [
            ("14:32", "2026-11-24T14:32:00.000Z"),
            ("14:40", "2026-11-24T14:40:00.000Z"),
            ("14:40:00.001", "2026-11-23T14:40:00.001Z"),
            ("23:59:59", "2026-11-23T23:59:59.000Z"),
            ("00:00", "2026-11-24T00:00:00.000Z"),
            ("10m", "2026-11-24T14:30:00.000Z"),
            ("1h 10m ago", "2026-11-24T13:30:00.000Z"),
            ("now", "2026-11-24T14:40:00.000Z"),
            ("2026-11-24T15:32:00+01:00", "2026-11-24T14:32:00.000Z"),
            ("2026-11-24T07:32:00.5-07:30", "2026-11-24T15:02:00.500Z"),
            ("2026-11-24 14:32:07", "2026-11-24T14:32:07.000Z"),
            ("2025-01-01T00:00:00.123Z", "2025-01-01T00:00:00.123Z"),
        ] {
            assert_eq!(told(text), expected, "{text}");
        }
        for wrong in
            ["", "14", "14:60", "24:00", "1:2", "14:32:07.1234567890", "14:32:00:00", "yesterday", "-10m", "+1:00"]
        {
            assert!(parse(wrong, now).is_err(), "{wrong}");
        }
        assert_eq!(clock(date("2026-11-24T14:32:00.250Z").unwrap(), now), "14:32:00.250");
        assert_eq!(clock(date("2026-11-23T14:32:00Z").unwrap(), now), "2026-11-23 14:32:00.000");
    }
}
