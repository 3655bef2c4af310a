//! Colours: of the sixteen that every terminal has, and that its theme makes readable.

use super::super::text::{Color, Style};

/// What is read first.
pub(super) const STRONG: Style = Style::new().bold();
/// Units, and what is zero.
pub(super) const DIM: Style = Style::new().fg(Color::DarkGray);
/// A table's heading.
pub(super) const HEADING: Style = Style::new().fg(Color::Cyan).bold();
/// The heading of the column that rows are ordered by.
pub(super) const ORDER: Style = Style::new().fg(Color::Yellow).bold().underlined();
/// Something is lost, or wrong.
pub(super) const BAD: Style = Style::new().fg(Color::Red).bold();
/// Something may be wrong.
pub(super) const DOUBTFUL: Style = Style::new().fg(Color::Yellow);
/// All is well.
pub(super) const GOOD: Style = Style::new().fg(Color::Green);
/// A key that may be pressed.
pub(super) const KEY: Style = Style::new().fg(Color::Black).bg(Color::Cyan);

/// The first line, on this colour.
pub(super) const fn banner(colour: Color) -> Style {
    Style::new().fg(Color::Black).bg(colour).bold()
}
