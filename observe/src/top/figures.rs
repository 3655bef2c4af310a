//! Formats figures with three digits and an SI prefix.

/// SI prefixes in steps of a thousand.
const PREFIXES: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];

/// Formats a rate: `0`, `<0.1`, `3.4`, `345`, `12.3k`, `1.20M`, or `-` for `None`.
pub(super) fn rate(rate: Option<f64>) -> String {
    match rate {
        None => "-".to_owned(),
        Some(rate) if rate <= 0.0 => "0".to_owned(),
        Some(rate) if rate < 0.05 => "<0.1".to_owned(),
        Some(rate) => scaled(rate),
    }
}

/// Formats a count: exact if small, as in `bulkhead status`, else like a rate.
pub(super) fn count(count: u64) -> String {
    /// Limit for exact counts, given by the column width.
    const EXACT: u64 = 10_000_000;
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    if count < EXACT { count.to_string() } else { scaled(count as f64) }
}

/// Formats a share of 0 to 1 in percent, or `-` for `None`.
pub(super) fn percent(share: Option<f64>) -> String {
    match share {
        None => "-".to_owned(),
        Some(share) if share > 0.0 && share < 0.005 => "<1%".to_owned(),
        // Only a full share is shown as 100%.
        Some(share) if share < 1.0 => format!("{:.0}%", (share * 100.0).min(99.0)),
        Some(share) => format!("{:.0}%", share * 100.0),
    }
}

fn scaled(value: f64) -> String {
    let (mut value, mut prefix) = (value, 0);
    // Same rounding as below: 999.7 is 1.00k.
    while value >= 999.5 && prefix + 1 < PREFIXES.len() {
        (value, prefix) = (value / 1000.0, prefix + 1);
    }
    let digits = match value {
        value if value < 9.995 && prefix > 0 => 2,
        value if value < 9.95 => 1,
        value if value < 99.95 && prefix > 0 => 1,
        _ => 0,
    };
    format!("{value:.digits$}{}", PREFIXES[prefix])
}

#[cfg(test)]
mod tests {
    use bolero::check;

    use super::*;

    #[test]
    fn figures_have_three_digits_and_a_prefix() {
        let told = [0.0, 0.01, 3.44, 9.97, 345.4, 999.7, 12_345.0, 99_960.0, 1_204_000.0, 14.88e9, f64::MAX]
            .map(|value| rate(Some(value)));
        assert_eq!(told[..10], ["0", "<0.1", "3.4", "10", "345", "1.00k", "12.3k", "100k", "1.20M", "14.9G"]);
        assert_eq!((rate(None), count(9_999_999), count(10_000_000)), ("-".into(), "9999999".into(), "10.0M".into()));
        assert_eq!(
            [0.0, 0.001, 0.5, 0.999, 1.0].map(|share| percent(Some(share))),
            ["0%", "<1%", "50%", "99%", "100%"]
        );
    }

    #[test]
    fn whatever_is_counted_fits_in_seven_characters() {
        check!().with_type::<u64>().for_each(|&value| {
            assert!(count(value).len() <= 7, "{}", count(value));
            #[expect(clippy::cast_precision_loss, reason = "as it is shown")]
            let rate = rate(Some(value as f64));
            assert!(rate.len() <= 6, "{rate}");
        });
    }
}
