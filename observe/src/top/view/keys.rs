//! The last line of the screen with keys, and the help.

use super::super::choices::Choices;
use super::super::text::{Line, Span, Style};
use super::{fit, style};
use bulkhead_answers::output::printable;

/// Minimum width of the filter input in columns.
const FILTER: usize = 10;

pub(super) fn last_line(choices: &Choices, width: usize) -> Line {
    let filter = |style, room| fit::without_middle(&[Span::styled(printable(&choices.filter), style)], room);
    if choices.is_typing() {
        let before = Span::styled(" ports with: ", style::STRONG);
        let after = Span::styled("  Enter applies, Esc cancels", style::DIM);
        let cursor = Span::styled("▏", style::ORDER);
        let room = width.saturating_sub(fit::width(&[before.clone(), cursor.clone(), after.clone()]));
        let filter = filter(Style::new(), room.max(FILTER));
        return Line::from([vec![before], filter, vec![cursor, after]].concat());
    }
    let mut spans = Vec::new();
    for (key, does) in [("q", "quit"), ("p b d s n", "order"), ("/", "filter"), ("space", "pause"), ("?", "help")] {
        spans.extend([Span::raw(" "), Span::styled(format!(" {key} "), style::KEY), Span::raw(format!(" {does}"))]);
    }
    if !choices.filter.is_empty() {
        spans.push(Span::styled("  ports with: ", style::DOUBTFUL));
        let room = width.saturating_sub(fit::width(&spans));
        spans.extend(filter(style::DOUBTFUL, room));
    }
    Line::from(spans)
}

pub(super) fn help() -> Vec<Line> {
    let keys = [
        ("q, Ctrl-C", "quit"),
        ("p", "sort ports by packets per second, IN plus OUT"),
        ("b", "sort by bits per second"),
        ("d", "sort by drops per second, then by total drops"),
        ("s", "by sessions"),
        ("n", "by name"),
        ("/", "filter ports by name; Esc shows all"),
        ("space", "freeze or resume the screen"),
        ("arrows, page keys", "scroll the list of ports"),
        ("Ctrl-L", "redraw the screen"),
        ("?", "show this help; any key closes it"),
    ];
    let mut lines = vec![Line::default()];
    lines.extend(
        keys.map(|(key, does)| Line::from(vec![Span::styled(format!("  {key:<18}"), style::STRONG), Span::raw(does)])),
    );
    lines.push(Line::default());
    for text in [
        "Rates cover the last interval; - means unknown, as after a restart.",
        "IN counts packets from the pod or uplink, OUT packets to it.",
        "NS/PKT is a worker's time per packet, system calls included;",
        "BUSY is the share of the interval in which the worker had work.",
        "See docs/top.md.",
    ] {
        lines.push(Line::styled(format!("  {text}"), style::DIM));
    }
    lines
}
