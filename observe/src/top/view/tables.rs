//! The tables of the screen: workers, drops, denials, ports.

use super::super::figures::{count, percent, rate};
use super::super::picture::{Picture, PortRates, WorkerRates};
use super::super::text::{Span, Style};
use super::head::bar;
use super::table::Table;
use super::{Scene, style};
use crate::args::PortOrder;
use bulkhead_answers::output::printable;

/// Returns a heading, with the number of rows if some are not shown.
fn of(heading: &str, shown: usize, all: usize) -> String {
    if shown < all { format!("{heading} ({shown} of {all})") } else { heading.to_owned() }
}

fn cell(text: impl Into<String>, style: Style) -> Vec<Span> {
    vec![Span::styled(text.into(), style)]
}

/// Returns a cell with a rate. Zero is dimmed, other values have `style`.
fn rate_cell(value: Option<f64>, style: Style) -> Vec<Span> {
    let is_nothing = value.is_none_or(|value| value <= 0.0);
    cell(rate(value), if is_nothing { style::DIM } else { style })
}

fn count_cell(value: u64, style: Style) -> Vec<Span> {
    cell(count(value), if value == 0 { style::DIM } else { style })
}

pub(super) fn workers(picture: &Picture, rows: usize) -> Table {
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

/// Returns the table of drops by reason, with a column of meanings if `has_meanings`.
pub(super) fn dropped(picture: &Picture, rows: usize, has_meanings: bool) -> Table {
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
            rate_cell(row.counted.packets, style::BAD),
            count_cell(row.counted.packets_total, Style::new()),
        ];
        cells.extend(has_meanings.then(|| cell(printable(&row.means), style::DIM)));
        table.row(cells);
    }
    table
}

pub(super) fn denied(picture: &Picture, rows: usize) -> Table {
    let mut table =
        Table::new(of("DENIED, BY POLICY", rows, picture.denied.len())).figures("/S", 0).figures("TOTAL", 1);
    if picture.denied.is_empty() {
        table.row([cell("none", style::DIM)]);
    }
    for row in &picture.denied {
        let (beside, style) = if row.not_enforced { (" (not enforced)", style::DOUBTFUL) } else { ("", style::BAD) };
        table.row([
            vec![Span::raw(printable(&row.origin)), Span::styled(beside, style::DOUBTFUL)],
            rate_cell(row.counted.packets, style),
            count_cell(row.counted.packets_total, Style::new()),
        ]);
    }
    table
}

/// Returns the table of ports. The heading says which rows are shown.
pub(super) fn port_table(scene: Scene<'_>, ports: &[&PortRates], first: usize, rows: usize) -> Table {
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
            rate_cell(port.traffic.packets_in, Style::new()),
            rate_cell(port.traffic.packets_out, Style::new()),
            rate_cell(port.traffic.bits_in, Style::new()),
            rate_cell(port.traffic.bits_out, Style::new()),
            rate_cell(port.traffic.dropped, style::BAD),
            count_cell(port.traffic.dropped_total, Style::new()),
            port.sessions.map_or_else(|| rate_cell(None, Style::new()), |sessions| count_cell(sessions, Style::new())),
            cell(printable(&port.state), if is_open { style::DIM } else { style::DOUBTFUL }),
        ]);
    }
    table
}
