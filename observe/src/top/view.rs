//! Draws a picture as lines.
//!
//! A screen is a list of lines of the screen's height, which tests can check. From the top: health, totals, workers, drops by reason and by
//! policy, ports. If there is too little room, each part is cut at the bottom and its heading says how many rows there are; a line that is
//! too wide ends with an ellipsis. Plain text has the same lines without colours and limits.

mod fit;
mod head;
mod keys;
#[cfg(test)]
mod picture_file;
mod style;
mod table;
mod tables;
#[cfg(test)]
mod tests;

use std::time::Duration;

use super::choices::Choices;
use super::picture::Picture;
use super::text::{Line, Span};
use head::{about, banner, totals};
use keys::{help, last_line};
use tables::{denied, dropped, port_table, workers};

/// Minimum width in columns to show drops by reason and by policy side by side.
const WIDE: usize = 120;
/// Minimum height in rows for empty lines between parts.
const TALL: usize = 30;
/// Minimum height in rows for a last line with keys.
const HAS_KEYS: usize = 8;
/// Maximum number of ports in plain text. JSON has all.
const PLAIN_PORTS: usize = 20;

/// Everything that a screen shows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scene<'a> {
    pub(super) picture: &'a Picture,
    pub(super) choices: &'a Choices,
    /// Interval between two refreshes of the screen.
    pub(super) interval: Duration,
    /// Why the vswitch does not answer. `None` if it does; otherwise `picture` is old.
    pub(super) away: Option<&'a str>,
}

/// Returns the lines of a screen of this size, cut to its width.
pub(super) fn draw(scene: Scene<'_>, (width, height): (u16, u16)) -> Vec<Line> {
    let (width, height) = (usize::from(width), usize::from(height));
    let lines = screen(scene, width, height).into_iter().take(height);
    lines.map(|line| fit::without_end(line.spans, width).into()).collect()
}

/// Returns the lines of a screen of this size, uncut.
fn screen(scene: Scene<'_>, width: usize, height: usize) -> Vec<Line> {
    let mut lines = vec![banner(scene, width)];
    lines.extend(scene.away.map(|why| Line::styled(format!(" no answer, trying again: {why}"), style::BAD)));
    if scene.choices.shows_help {
        lines.extend(help());
        lines.resize(height, Line::default());
        return lines;
    }
    lines.extend(scene.picture.note.map(|note| Line::styled(format!(" {note}"), style::DOUBTFUL)));
    lines.extend(totals(scene.picture));
    let keys = usize::from(height >= HAS_KEYS);
    let room = height.saturating_sub(lines.len() + keys);
    lines.extend(parts(scene, width, room, height >= TALL));
    lines.resize(height.saturating_sub(keys), Line::default());
    lines.extend((keys > 0).then(|| last_line(scene.choices, width)));
    lines
}

/// Returns all lines as plain text, with the first [`PLAIN_PORTS`] ports.
pub(super) fn text(picture: &Picture, choices: &Choices) -> Vec<String> {
    let scene = Scene { picture, choices, interval: Duration::ZERO, away: None };
    let mut lines = vec![Line::raw(about(picture))];
    lines.extend(picture.note.map(Line::raw));
    lines.extend(totals(picture));
    let all = usize::MAX;
    let ports = choices.ports(picture);
    let tables = [
        (!picture.workers.is_empty()).then(|| workers(picture, all).lines(all, 0, all)),
        (!picture.dropped.is_empty()).then(|| dropped(picture, all, true).lines(all, 0, all)),
        (!picture.denied.is_empty()).then(|| denied(picture, all).lines(all, 0, all)),
        Some(port_table(scene, &ports, 0, PLAIN_PORTS).lines(all, 0, PLAIN_PORTS)),
    ];
    for table in tables.into_iter().flatten() {
        lines.push(Line::default());
        lines.extend(table.into_iter().map(|line| Line::raw(format!(" {line}"))));
    }
    lines.iter().map(|line| line.to_string().trim_end().to_owned()).collect()
}

/// Number of rows of each part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shares {
    workers: usize,
    reasons: usize,
    origins: usize,
    ports: usize,
}

/// Distributes `room` rows. Ports get the rest, and at least a heading and three rows if possible. A part with room only for its heading is
/// omitted.
fn shares(picture: &Picture, ports: usize, room: usize, is_wide: bool, spaces: usize) -> Shares {
    /// A heading and three ports.
    const PORTS: usize = 4;
    let mut left = room.saturating_sub(PORTS.min(ports + 1));
    let mut take = |rows: usize, most: usize| {
        let taken = rows.min(most).min(left.saturating_sub(1 + spaces));
        left -= if taken > 0 { taken + 1 + spaces } else { 0 };
        taken
    };
    let third = room / 3;
    let (reasons, origins) = if is_wide {
        let rows = take(picture.dropped.len().max(picture.denied.len()).max(1), third);
        (rows, rows)
    } else {
        (take(picture.dropped.len().max(1), (third / 2).max(1)), take(picture.denied.len(), (third / 2).max(1)))
    };
    let workers = take(picture.workers.len(), third.max(1));
    let used = room.saturating_sub(PORTS.min(ports + 1)) - left;
    Shares { workers, reasons, origins, ports: room.saturating_sub(used + spaces + 1) }
}

fn parts(scene: Scene<'_>, width: usize, room: usize, has_spaces: bool) -> Vec<Line> {
    let picture = scene.picture;
    let ports = scene.choices.ports(picture);
    let (is_wide, spaces) = (width >= WIDE, usize::from(has_spaces));
    let shares = shares(picture, ports.len(), room, is_wide, spaces);
    // Keep the leftmost column empty.
    let inner = width.saturating_sub(1);
    let mut lines = Vec::new();
    let mut add = |part: Vec<Line>| {
        lines.extend(has_spaces.then(Line::default));
        lines.extend(part.into_iter().map(indented));
    };
    if shares.workers > 0 {
        add(workers(picture, shares.workers).lines(inner, 0, shares.workers));
    }
    if is_wide && shares.reasons > 0 {
        let half = inner / 2 - 2;
        let left = dropped(picture, shares.reasons, false).lines(half, 0, shares.reasons);
        let right = denied(picture, shares.origins).lines(inner - half - 4, 0, shares.origins);
        add(beside(left, right, half + 4));
    } else {
        if shares.reasons > 0 {
            add(dropped(picture, shares.reasons, true).lines(inner, 0, shares.reasons));
        }
        if shares.origins > 0 {
            add(denied(picture, shares.origins).lines(inner, 0, shares.origins));
        }
    }
    let first = scene.choices.first.min(ports.len().saturating_sub(shares.ports.max(1)));
    add(port_table(scene, &ports, first, shares.ports).lines(inner, first, shares.ports));
    lines.truncate(room);
    lines
}

fn indented(line: Line) -> Line {
    let mut spans = vec![Span::raw(" ")];
    spans.extend(line.spans);
    Line::from(spans)
}

/// Places two parts side by side, the right one from `column` on.
fn beside(left: Vec<Line>, right: Vec<Line>, column: usize) -> Vec<Line> {
    let rows = left.len().max(right.len());
    let mut right = right.into_iter();
    let mut left = left.into_iter();
    let line = |_| {
        let mut spans = left.next().unwrap_or_default().spans;
        spans.push(Span::raw(" ".repeat(column.saturating_sub(fit::width(&spans)))));
        spans.extend(right.next().unwrap_or_default().spans);
        Line::from(spans)
    };
    (0..rows).map(line).collect()
}
