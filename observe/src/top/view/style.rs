//! Styles. They use the 16 basic colours, which a terminal's theme keeps readable.

use super::super::text::{Color, Style};

/// The main figures, such as rates and totals.
pub(super) const STRONG: Style = Style::new().bold();
/// Units and zeros.
pub(super) const DIM: Style = Style::new().fg(Color::DarkGray);
pub(super) const HEADING: Style = Style::new().fg(Color::Cyan).bold();
/// Heading of the column that determines the order.
pub(super) const ORDER: Style = Style::new().fg(Color::Yellow).bold().underlined();
/// Figures and states that mean a loss or fault.
pub(super) const BAD: Style = Style::new().fg(Color::Red).bold();
/// Figures and states that may mean a fault.
pub(super) const DOUBTFUL: Style = Style::new().fg(Color::Yellow);
/// Figures and states that mean health.
pub(super) const GOOD: Style = Style::new().fg(Color::Green);
/// A key's name in the last line and in the help.
pub(super) const KEY: Style = Style::new().fg(Color::Black).bg(Color::Cyan);

/// Returns the style of the first line, with this background colour.
pub(super) const fn banner(colour: Color) -> Style {
    Style::new().fg(Color::Black).bg(colour).bold()
}
