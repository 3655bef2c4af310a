//! From a picture to lines.
//!
//! A screen is a list of lines that has its height, so that all of it can be looked at in tests. From the top: how the vswitch is, its
//! totals, workers, drops by reason and by policy, ports. What there is no room for is left out from the bottom of each part, and its
//! heading says how much there is. Plain text is the same lines without colours and bounds.

#[cfg(test)]
mod picture_file;
mod style;
mod table;
#[cfg(test)]
mod tests;

use std::time::Duration;

use ratatui::Frame;
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};

use super::choices::Choices;
use super::figures::{count, percent, rate};
use super::picture::{Condition, Picture, PortRates, WorkerRates};
use crate::args::PortOrder;
use crate::output::printable;
use table::Table;

/// From this width on, drops by reason and by policy stand side by side.
const WIDE: usize = 120;
/// From this height on there are empty lines between the parts.
const TALL: usize = 30;
/// From this height on there are keys in the last line.
const HAS_KEYS: usize = 8;
/// Ports in plain text: those that come first in the order that was asked for. JSON has all.
const PLAIN_PORTS: usize = 20;
/// Characters of a bar.
const BAR: usize = 12;

/// What is shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scene<'a> {
    pub(super) picture: &'a Picture,
    pub(super) choices: &'a Choices,
    /// How often there is a new one.
    pub(super) interval: Duration,
    /// Why the vswitch does not answer, where it does not: then the picture is an old one.
    pub(super) away: Option<&'a str>,
}

/// Draws a screen.
pub(super) fn draw(frame: &mut Frame<'_>, scene: Scene<'_>) {
    let area = frame.area();
    let lines = screen(scene, usize::from(area.width), usize::from(area.height));
    for (row, line) in (area.y..).zip(&lines).take(usize::from(area.height)) {
        frame.buffer_mut().set_line(area.x, row, line, area.width);
    }
}

/// The lines of a screen of this size.
fn screen(scene: Scene<'_>, width: usize, height: usize) -> Vec<Line<'static>> {
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
    lines.extend((keys > 0).then(|| last_line(scene.choices)));
    lines
}

/// The same for where there is no screen: everything, of the ports the first ones.
pub(super) fn text(picture: &Picture, choices: &Choices) -> Vec<String> {
    let scene = Scene { picture, choices, interval: Duration::ZERO, away: None };
    let mut lines = vec![Line::from(about(picture))];
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
        lines.extend(table.into_iter().map(|line| Line::from(format!(" {line}"))));
    }
    lines.iter().map(|line| line.to_string().trim_end().to_owned()).collect()
}

/// How the vswitch is, in words.
fn about(picture: &Picture) -> String {
    let judged = picture.judged.as_deref().map(|judged| format!("  judged {judged}")).unwrap_or_default();
    let up = humantime::format_duration(Duration::from_secs(picture.uptime_seconds)).to_string();
    // The larger two units tell enough.
    let up: Vec<&str> = up.split(' ').take(2).collect();
    let node = printable(&picture.node);
    format!("{node}  {}  up {}  generation {}{judged}", picture.condition.name(), up.join(" "), picture.generation)
}

fn banner(scene: Scene<'_>, width: usize) -> Line<'static> {
    let picture = scene.picture;
    let colour = match picture.condition {
        _ if scene.away.is_some() => Color::Red,
        Condition::Ready => Color::Green,
        Condition::Denying => Color::Red,
        Condition::Starting | Condition::NotReady => Color::Yellow,
    };
    let left = format!(" bulkhead top  {}", about(picture));
    let right =
        if scene.choices.is_paused { " PAUSED ".to_owned() } else { format!(" {}s ", scene.interval.as_secs_f64()) };
    let room = width.saturating_sub(right.chars().count());
    let left: String = left.chars().take(room).collect();
    let line = format!("{left:<room$}{right}");
    let on = style::banner(if scene.choices.is_paused { Color::Yellow } else { colour });
    Line::styled(line.chars().take(width).collect::<String>(), on)
}

/// A figure with its unit.
fn figure(value: String, unit: &str, style: Style) -> [Span<'static>; 2] {
    [Span::styled(value, style), Span::styled(format!("{unit}  "), style::DIM)]
}

/// The style of what should be zero.
fn alarm(rate: Option<f64>) -> Style {
    if rate.is_some_and(|rate| rate > 0.0) { style::BAD } else { style::STRONG }
}

fn label(text: &str) -> Span<'static> {
    Span::styled(format!(" {text:<9}"), style::HEADING)
}

fn totals(picture: &Picture) -> Vec<Line<'static>> {
    let total = picture.total;
    let mut packets = vec![label("packets")];
    packets.extend(figure(rate(total.packets_in), "/s in", style::STRONG));
    packets.extend(figure(rate(total.packets_out), "/s out", style::STRONG));
    packets.extend(figure(rate(total.dropped), "/s dropped", alarm(total.dropped)));
    packets.extend(figure(rate(total.bits_in), "bit/s in", style::STRONG));
    packets.extend(figure(rate(total.bits_out), "bit/s out", style::STRONG));
    if picture.in_kernel {
        let told =
            "the node's kernel judges and forwards: no workers, no flow cache, no sessions here (`conntrack -L`)";
        return vec![Line::from(packets), Line::from(vec![label("path"), Span::styled(told, style::DIM)])];
    }
    let sessions = picture.sessions;
    #[expect(clippy::cast_precision_loss, reason = "a bar has few characters")]
    let share = (sessions.capacity > 0).then(|| sessions.used as f64 / sessions.capacity as f64);
    let mut used = vec![label("sessions")];
    used.extend(figure(count(sessions.used), &format!(" of {}", count(sessions.capacity)), style::STRONG));
    used.extend(bar(share));
    used.extend(figure(format!(" {}", percent(share)), "", style::STRONG));
    used.extend(figure(rate(sessions.created), "/s new", style::STRONG));
    used.extend(figure(rate(sessions.refused), "/s refused", alarm(sessions.refused)));
    let path = picture.path;
    let mut line = vec![label("path")];
    line.extend(figure(rate(path.slow), "/s slow, by workers", style::STRONG));
    line.extend(figure(rate(path.cached), "/s by the kernel's flow cache", style::STRONG));
    line.extend(figure(percent(path.cached_share), " cached", style::GOOD));
    vec![Line::from(packets), Line::from(used), Line::from(line)]
}

/// How full or busy something is.
fn bar(share: Option<f64>) -> [Span<'static>; 2] {
    let share = share.unwrap_or(0.0).clamp(0.0, 1.0);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "of a few characters"
    )]
    let filled = (share * BAR as f64).ceil() as usize;
    let style = match share {
        share if share < 0.7 => style::GOOD,
        share if share < 0.9 => style::DOUBTFUL,
        _ => style::BAD,
    };
    [Span::styled("━".repeat(filled), style), Span::styled("─".repeat(BAR - filled), style::DIM)]
}

/// How many rows each part has, of what there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shares {
    workers: usize,
    reasons: usize,
    origins: usize,
    ports: usize,
}

/// Shares `room` out. The ports have what is left, and at least their heading and three rows where there is so much; a part with its
/// heading alone tells nothing, so that it is left out.
fn shares(picture: &Picture, ports: usize, room: usize, is_wide: bool, spaces: usize) -> Shares {
    /// The heading and three ports.
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

fn parts(scene: Scene<'_>, width: usize, room: usize, has_spaces: bool) -> Vec<Line<'static>> {
    let picture = scene.picture;
    let ports = scene.choices.ports(picture);
    let (is_wide, spaces) = (width >= WIDE, usize::from(has_spaces));
    let shares = shares(picture, ports.len(), room, is_wide, spaces);
    // One column at the left stays free.
    let inner = width.saturating_sub(1);
    let mut lines = Vec::new();
    let mut add = |part: Vec<Line<'static>>| {
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

fn indented(line: Line<'static>) -> Line<'static> {
    let mut spans = vec![Span::raw(" ")];
    spans.extend(line.spans);
    Line::from(spans)
}

/// Two parts side by side, the right one from this column on.
fn beside(left: Vec<Line<'static>>, right: Vec<Line<'static>>, column: usize) -> Vec<Line<'static>> {
    let rows = left.len().max(right.len());
    let mut right = right.into_iter();
    let mut left = left.into_iter();
    let line = |_| {
        let mut spans = left.next().unwrap_or_default().spans;
        let length: usize = spans.iter().map(|span| span.content.chars().count()).sum();
        spans.push(Span::raw(" ".repeat(column.saturating_sub(length))));
        spans.extend(right.next().unwrap_or_default().spans);
        Line::from(spans)
    };
    (0..rows).map(line).collect()
}

/// A heading that says how many of all rows are there.
fn of(heading: &str, shown: usize, all: usize) -> String {
    if shown < all { format!("{heading} ({shown} of {all})") } else { heading.to_owned() }
}

fn cell(text: impl Into<String>, style: Style) -> Vec<Span<'static>> {
    vec![Span::styled(text.into(), style)]
}

/// A rate; what is nothing stands back.
fn rate_cell(value: Option<f64>, style: Style) -> Vec<Span<'static>> {
    let is_nothing = value.is_none_or(|value| value <= 0.0);
    cell(rate(value), if is_nothing { style::DIM } else { style })
}

fn count_cell(value: u64, style: Style) -> Vec<Span<'static>> {
    cell(count(value), if value == 0 { style::DIM } else { style })
}

fn workers(picture: &Picture, rows: usize) -> Table {
    let all = picture.workers.len();
    let mut table = Table::new(of("WORKER", rows, all))
        .figures("PKT/S", 0)
        .figures("JUDGED/S", 3)
        .figures("DROPS/S", 1)
        .figures("NS/PKT", 0)
        .words("BUSY", 0)
        .figures("SESSIONS", 2)
        .figures("RESTARTS", 4);
    for (at, worker) in picture.workers.iter().enumerate() {
        let WorkerRates { received, judged, dropped, ns_per_packet, busy, sessions, restarts } = *worker;
        let mut share = bar(busy).to_vec();
        share.push(Span::raw(format!(" {:>4}", percent(busy))));
        table.row([
            cell(at.to_string(), style::STRONG),
            rate_cell(received, Style::new()),
            rate_cell(judged, Style::new()),
            rate_cell(dropped, style::BAD),
            rate_cell(ns_per_packet, Style::new()),
            share,
            count_cell(sessions, Style::new()),
            count_cell(restarts, style::BAD),
        ]);
    }
    table
}

/// Drops by reason. What each means has a column where there is room for it.
fn dropped(picture: &Picture, rows: usize, has_meanings: bool) -> Table {
    let mut table =
        Table::new(of("DROPPED, BY REASON", rows, picture.dropped.len())).figures("/S", 0).figures("TOTAL", 1);
    if has_meanings {
        table = table.words("", 2);
    }
    if picture.dropped.is_empty() {
        table.row([cell("none", style::DIM)]);
    }
    for row in &picture.dropped {
        let mut cells = vec![
            cell(printable(&row.reason), Style::new()),
            rate_cell(row.packets, style::BAD),
            count_cell(row.packets_total, Style::new()),
        ];
        cells.extend(has_meanings.then(|| cell(printable(&row.means), style::DIM)));
        table.row(cells);
    }
    table
}

fn denied(picture: &Picture, rows: usize) -> Table {
    let mut table =
        Table::new(of("DENIED, BY POLICY", rows, picture.denied.len())).figures("/S", 0).figures("TOTAL", 1);
    if picture.denied.is_empty() {
        table.row([cell("none", style::DIM)]);
    }
    for row in &picture.denied {
        let (beside, style) = if row.not_enforced { (" (not enforced)", style::DOUBTFUL) } else { ("", style::BAD) };
        table.row([
            vec![Span::raw(printable(&row.origin)), Span::styled(beside, style::DOUBTFUL)],
            rate_cell(row.packets, style),
            count_cell(row.packets_total, Style::new()),
        ]);
    }
    table
}

/// The ports; their heading says which of them are shown.
fn port_table(scene: Scene<'_>, ports: &[&PortRates], first: usize, rows: usize) -> Table {
    let (all, last) = (ports.len(), first.saturating_add(rows).min(ports.len()));
    let heading = match all {
        all if last - first.min(last) < all => format!("PORT ({}-{last} of {all})", first + 1),
        _ => "PORT".to_owned(),
    };
    let order: &[&str] = match scene.choices.order {
        PortOrder::Packets => &["IN PPS", "OUT PPS"],
        PortOrder::Bits => &["IN BIT/S", "OUT BIT/S"],
        PortOrder::Drops => &["DROPS/S"],
        PortOrder::Sessions => &["SESSIONS"],
        PortOrder::Name => &["PORT"],
    };
    let mut table = Table::new(heading)
        .figures("IN PPS", 0)
        .figures("OUT PPS", 3)
        .figures("IN BIT/S", 2)
        .figures("OUT BIT/S", 4)
        .figures("DROPS/S", 0)
        .figures("DROPPED", 6)
        .figures("SESSIONS", 1)
        .words("STATE", 5)
        .ordered_by(order);
    if ports.is_empty() {
        let none = if scene.picture.ports.is_empty() { "none" } else { "none matches; Esc shows all" };
        table.row([cell(none, style::DIM)]);
    }
    for port in ports {
        let is_open = port.state == "open";
        table.row([
            cell(printable(&port.name), if is_open { Style::new() } else { style::DOUBTFUL }),
            rate_cell(port.packets_in, Style::new()),
            rate_cell(port.packets_out, Style::new()),
            rate_cell(port.bits_in, Style::new()),
            rate_cell(port.bits_out, Style::new()),
            rate_cell(port.dropped, style::BAD),
            count_cell(port.dropped_total, Style::new()),
            port.sessions.map_or_else(|| rate_cell(None, Style::new()), |sessions| count_cell(sessions, Style::new())),
            cell(printable(&port.state), if is_open { style::DIM } else { style::DOUBTFUL }),
        ]);
    }
    table
}

fn last_line(choices: &Choices) -> Line<'static> {
    if choices.is_typing() {
        let filter = printable(&choices.filter);
        return Line::from(vec![
            Span::styled(" ports with: ", style::STRONG),
            Span::raw(filter),
            Span::styled("▏", style::ORDER),
            Span::styled("  Enter keeps it, Esc gives it up", style::DIM),
        ]);
    }
    let mut spans = Vec::new();
    for (key, does) in [("q", "quit"), ("p b d s n", "order"), ("/", "filter"), ("space", "pause"), ("?", "help")] {
        spans.extend([Span::raw(" "), Span::styled(format!(" {key} "), style::KEY), Span::raw(format!(" {does}"))]);
    }
    if !choices.filter.is_empty() {
        spans.push(Span::styled(format!("  ports with: {}", printable(&choices.filter)), style::DOUBTFUL));
    }
    Line::from(spans)
}

fn help() -> Vec<Line<'static>> {
    let keys = [
        ("q, Ctrl-C", "quit"),
        ("p", "order the ports by packets a second, both ways together"),
        ("b", "by bits a second"),
        ("d", "by drops a second, then by drops in all"),
        ("s", "by sessions"),
        ("n", "by name"),
        ("/", "show only ports in whose name some text is; Esc shows all again"),
        ("space", "keep the screen as it is, and go on"),
        ("arrows, page keys", "move through the ports"),
        ("Ctrl-L", "draw everything again"),
        ("?", "this; any key goes back"),
    ];
    let mut lines = vec![Line::default()];
    lines.extend(
        keys.map(|(key, does)| Line::from(vec![Span::styled(format!("  {key:<18}"), style::STRONG), Span::raw(does)])),
    );
    lines.push(Line::default());
    for text in [
        "Rates are those of the last interval; - means that there is none, as after a restart.",
        "IN is what comes in at a port, from a pod or from the uplink; OUT leaves there.",
        "NS/PKT is a worker's time for a packet, the kernel's calls included; BUSY its share of the interval.",
        "docs/top.md tells more.",
    ] {
        lines.push(Line::styled(format!("  {text}"), style::DIM));
    }
    lines
}
