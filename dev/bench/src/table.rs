//! The table of measured values and goals.

use std::io::{self, Write};
use std::time::Duration;

use serde_json::{Map, Value, json};

/// The promised bound of a value, in the value's unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
    /// No bound: the value is only reported.
    Unbounded,
}

impl Goal {
    /// Whether a value meets the goal. `None` without a bound.
    fn holds(self, value: f64) -> Option<bool> {
        match self {
            Self::AtLeast(least) => Some(value >= least),
            Self::AtMost(most) => Some(value <= most),
            Self::Unbounded => None,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtLeast(least) => format!(">= {least}"),
            Self::AtMost(most) => format!("<= {most}"),
            Self::Unbounded => String::new(),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// The row of the command line (`--only`).
    pub(crate) row: &'static str,
    /// What was measured, and compared with what.
    pub(crate) what: String,
    /// The value, or the reason why it is missing.
    pub(crate) measured: Result<Measured, String>,
}

/// A value with its goal and details.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) value: f64,
    /// The unit. `x` for ratios.
    pub(crate) unit: &'static str,
    pub(crate) goal: Goal,
    /// Further values for the JSON output.
    pub(crate) detail: Map<String, Value>,
    /// A remark for the text output.
    pub(crate) note: String,
}

impl Line {
    pub(crate) fn value(row: &'static str, what: &str, value: f64, unit: &'static str, goal: Goal) -> Self {
        let measured = Measured { value, unit, goal, detail: Map::new(), note: String::new() };
        Self { row, what: what.to_owned(), measured: Ok(measured) }
    }

    /// Returns a line with the median of the rounds' ratios `ours` / `other`, which have one value per round.
    pub(crate) fn ratio(row: &'static str, what: String, ours: &[f64], other: &[f64], unit: &str, goal: Goal) -> Self {
        let ratios: Vec<f64> =
            ours.iter().zip(other).filter(|(_, other)| **other > 0.0).map(|(ours, other)| ours / other).collect();
        if ratios.is_empty() {
            return Self::skipped(row, what, "no packets arrived on the alternative path".to_owned());
        }
        let mut detail = Map::new();
        detail.insert("vswitch".into(), json!(digits(median(ours))));
        detail.insert("other".into(), json!(digits(median(other))));
        detail.insert("unit".into(), unit.into());
        let all = |values: &[f64]| Value::from(values.iter().map(|&value| digits(value)).collect::<Vec<_>>());
        detail.insert("vswitch_rounds".into(), all(ours));
        detail.insert("other_rounds".into(), all(other));
        let [least, most] = [0.0, 100.0].map(|percent| digits(percentile(&ratios, percent)));
        let note = format!("{least}-{most}; {} to {} {unit}", digits(median(ours)), digits(median(other)));
        Self { row, what, measured: Ok(Measured { value: median(&ratios), unit: "x", goal, detail, note }) }
    }

    /// Returns a line without a value. `why` is the reason.
    pub(crate) const fn skipped(row: &'static str, what: String, why: String) -> Self {
        Self { row, what, measured: Err(why) }
    }

    /// Appends a remark for the text output.
    pub(crate) fn noted(mut self, note: &str) -> Self {
        if let Ok(measured) = &mut self.measured {
            if !measured.note.is_empty() {
                measured.note.push_str("; ");
            }
            measured.note.push_str(note);
        }
        self
    }

    /// Adds a value to the JSON output.
    pub(crate) fn with(mut self, key: &str, value: Value) -> Self {
        if let Ok(measured) = &mut self.measured {
            measured.detail.insert(key.to_owned(), value);
        }
        self
    }

    /// Whether the value meets its goal. `None` if the row was not measured or its goal has no bound.
    pub(crate) fn is_met(&self) -> Option<bool> {
        self.measured.as_ref().ok().and_then(|measured| measured.goal.holds(measured.value))
    }

    fn json(&self) -> Value {
        match &self.measured {
            Err(why) => json!({"row": self.row, "what": self.what, "skipped": why}),
            Ok(Measured { value, unit, goal, detail, note }) => json!({
                "row": self.row, "what": self.what, "value": digits(*value), "unit": unit, "goal": goal.text(),
                "met": goal.holds(*value), "note": note, "detail": detail,
            }),
        }
    }
}

pub(crate) fn json(lines: &[Line]) -> Value {
    lines.iter().map(Line::json).collect()
}

/// Writes the table as text.
pub(crate) fn write(lines: &[Line], out: &mut dyn Write) -> io::Result<()> {
    let mut cells = vec![["ROW", "WHAT", "VALUE", "GOAL", "MET", "NOTE"].map(str::to_owned)];
    for Line { row, what, measured } in lines {
        cells.push(match measured {
            Err(why) => [row, what.as_str(), "skipped", "", "", why].map(str::to_owned),
            Ok(Measured { value, unit, goal, note, .. }) => [
                (*row).to_owned(),
                what.clone(),
                format!("{} {unit}", digits(*value)),
                goal.text(),
                goal.holds(*value).map_or("", |met| if met { "yes" } else { "NO" }).to_owned(),
                note.clone(),
            ],
        });
    }
    let width = |at: usize| cells.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2), width(3), width(4)];
    for row in &cells {
        for (cell, width) in row.iter().zip(widths) {
            write!(out, "{cell:<width$}  ")?;
        }
        writeln!(out, "{}", row[5])?;
    }
    Ok(())
}

/// Rounds a value to three significant digits.
pub(crate) fn digits(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let scale = 10f64.powf(2.0 - value.abs().log10().floor());
    (value * scale).round() / scale
}

pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Returns the median. 0 for an empty list.
pub(crate) fn median(values: &[f64]) -> f64 {
    percentile(values, 50.0)
}

/// Returns the smallest value that `percent` of the values do not exceed. For 50 percent of an even number of values, returns the mean of
/// the middle two. 0 for an empty list.
pub(crate) fn percentile(values: &[f64], percent: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let count = values.len();
    if count == 0 {
        return 0.0;
    }
    if percent == 50.0 && count.is_multiple_of(2) {
        return f64::midpoint(values[count / 2 - 1], values[count / 2]);
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a position in a list, from 1 to its length"
    )]
    let position = (percent / 100.0 * count as f64).ceil() as usize;
    values[position.clamp(1, count) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_the_median_of_the_rounds_ratios() {
        let line = Line::ratio("tcp", "x".into(), &[9.0, 10.0, 100.0], &[10.0, 5.0, 100.0], "Gb/s", Goal::AtLeast(1.1));
        let json = line.json();
        assert_eq!(json["note"], "0.9-2; 10 to 10 Gb/s");
        assert_eq!((&json["value"], &json["met"], &json["goal"]), (&json!(1.0), &json!(false), &json!(">= 1.1")));
        assert_eq!((&json["detail"]["vswitch"], &json["detail"]["other"]), (&json!(10.0), &json!(10.0)));
        let line = Line::ratio("tcp", "x".into(), &[9.0], &[0.0], "Gb/s", Goal::AtLeast(1.1));
        assert!(line.json()["skipped"].is_string());
    }

    #[test]
    fn a_goal_is_kept_at_its_bound() {
        assert_eq!([1.1, 1.09].map(|value| Goal::AtLeast(1.1).holds(value)), [Some(true), Some(false)]);
        assert_eq!([5.0, 5.1].map(|value| Goal::AtMost(5.0).holds(value)), [Some(true), Some(false)]);
        assert_eq!(Goal::Unbounded.holds(1.0), None);
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!((percentile(&values, 99.0), percentile(&values, 100.0), median(&values)), (99.0, 100.0, 50.5));
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[])), (2.0, 0.0));
        assert_eq!((digits(1234.5), digits(0.98765), digits(0.0)), (1230.0, 0.988, 0.0));
    }

    #[test]
    fn the_table_says_why_a_line_has_no_value() {
        let lines = [
            Line::value("pods", "idle CPU", 0.25, "%", Goal::AtMost(0.5)).noted("500 pods"),
            Line::skipped("redis", "GET".into(), "no redis-server".into()),
        ];
        let mut text = Vec::new();
        write(&lines, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("0.25 %") && text.contains("<= 0.5  yes") && text.contains("500 pods"), "{text}");
        assert!(text.contains("skipped") && text.contains("no redis-server"), "{text}");
        assert_eq!(json(&lines).as_array().map(Vec::len), Some(2));
    }
}
