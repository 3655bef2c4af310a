//! The top of the screen: health and totals.

use std::time::Duration;

use super::super::figures::{count, percent, rate};
use super::super::picture::Picture;
use super::super::text::{Color, Line, Span, Style};
use super::{Scene, fit, style};
use crate::admin::Condition;
use bulkhead_answers::output::printable;

/// Width of a bar in columns.
const BAR: usize = 12;

/// Describes the vswitch in one line.
pub(super) fn about(picture: &Picture) -> String {
    let judged = picture.judged.as_deref().map(|judged| format!("  judged {judged}")).unwrap_or_default();
    let up = humantime::format_duration(Duration::from_secs(picture.uptime_seconds)).to_string();
    // The two largest units suffice.
    let up: Vec<&str> = up.split(' ').take(2).collect();
    let node = printable(&picture.node);
    format!("{node}  {}  up {}  generation {}{judged}", picture.condition.name(), up.join(" "), picture.generation)
}

pub(super) fn banner(scene: Scene<'_>, width: usize) -> Line {
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
    let room = width.saturating_sub(right.len());
    let mut spans = fit::without_end(vec![Span::raw(left)], room);
    spans.push(Span::raw(" ".repeat(room.saturating_sub(fit::width(&spans)))));
    spans.push(Span::raw(right));
    let style = style::banner(if scene.choices.is_paused { Color::Yellow } else { colour });
    spans.iter_mut().for_each(|span| span.style = style);
    Line::from(spans)
}

fn figure(value: String, unit: &str, style: Style) -> [Span; 2] {
    [Span::styled(value, style), Span::styled(format!("{unit}  "), style::DIM)]
}

/// Returns the style of a rate that should be zero, such as drops.
fn alarm(rate: Option<f64>) -> Style {
    if rate.is_some_and(|rate| rate > 0.0) { style::BAD } else { style::STRONG }
}

fn label(text: &str) -> Span {
    Span::styled(format!(" {text:<9}"), style::HEADING)
}

pub(super) fn totals(picture: &Picture) -> Vec<Line> {
    let total = picture.total;
    let mut packets = vec![label("packets")];
    packets.extend(figure(rate(total.packets_in), "/s in", style::STRONG));
    packets.extend(figure(rate(total.packets_out), "/s out", style::STRONG));
    packets.extend(figure(rate(total.dropped), "/s dropped", alarm(total.dropped)));
    packets.extend(figure(rate(total.bits_in), "bit/s in", style::STRONG));
    packets.extend(figure(rate(total.bits_out), "bit/s out", style::STRONG));
    if picture.in_kernel {
        let told = "the node's kernel judges and forwards; sessions: `conntrack -L`";
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
    line.extend(figure(rate(path.slow), "/s slow path", style::STRONG));
    line.extend(figure(rate(path.cached), "/s kernel's flow cache", style::STRONG));
    line.extend(figure(percent(path.cached_share), " cached", style::GOOD));
    vec![Line::from(packets), Line::from(used), Line::from(line)]
}

/// Returns a bar of [`BAR`] columns that shows a share of 0 to 1: its filled and its empty part.
pub(super) fn bar(share: Option<f64>) -> [Span; 2] {
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
