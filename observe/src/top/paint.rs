//! Converts lines to terminal output (ECMA-48), only for rows that changed.
//!
//! A changed row is redrawn from its first column. If a terminal disagrees about a character's width, only that row is wrong until it
//! changes.

use std::fmt::Write;

use super::text::{Line, Style};

/// Enters the alternate screen and hides the cursor.
pub(super) const ENTER: &str = "\x1b[?1049h\x1b[?25l";
/// Shows the cursor and leaves the alternate screen.
pub(super) const LEAVE: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";

/// Keeps the lines that the terminal shows, to redraw only rows that change.
#[derive(Debug)]
pub(super) struct Painter {
    /// The lines that the terminal shows. `None` if unknown.
    shown: Option<Vec<Line>>,
    /// Size of the terminal in columns and rows.
    size: (u16, u16),
    has_colours: bool,
}

impl Painter {
    /// Returns a painter for a terminal of this size. Without colours, bold and underline are still used.
    pub(super) const fn new(size: (u16, u16), has_colours: bool) -> Self {
        Self { shown: None, size, has_colours }
    }

    pub(super) const fn size(&self) -> (u16, u16) {
        self.size
    }

    /// Sets the terminal's size, and forgets what it shows.
    pub(super) fn restart(&mut self, size: (u16, u16)) {
        (self.shown, self.size) = (None, size);
    }

    /// Returns the output that makes the terminal show these lines.
    pub(super) fn paint(&mut self, mut lines: Vec<Line>) -> String {
        let (width, height) = (usize::from(self.size.0), usize::from(self.size.1));
        lines.resize(height, Line::default());
        let mut out = String::new();
        if self.shown.is_none() {
            out.push_str("\x1b[2J");
        }
        let shown = self.shown.take().unwrap_or_else(|| vec![Line::default(); height]);
        for (at, (line, _)) in lines.iter().zip(&shown).enumerate().filter(|(_, (line, before))| line != before) {
            // Rows are numbered from 1.
            let _ = write!(out, "\x1b[{};1H", at + 1);
            self.row(line, width, &mut out);
        }
        self.shown = Some(lines);
        out
    }

    fn row(&self, line: &Line, width: usize, out: &mut String) {
        let (mut style, mut used) = (Style::new(), 0);
        for grapheme in line.visible(width) {
            if grapheme.style != style {
                style = grapheme.style;
                self.set(style, out);
            }
            out.push_str(grapheme.symbol);
            used += grapheme.columns();
        }
        if style != Style::new() {
            out.push_str("\x1b[0m");
        }
        // In the last column, some terminals would erase that column.
        if used < width {
            out.push_str("\x1b[K");
        }
    }

    /// Sets the style, independent of the previous one.
    fn set(&self, style: Style, out: &mut String) {
        out.push_str("\x1b[0");
        if style.is_bold {
            out.push_str(";1");
        }
        if style.is_underlined {
            out.push_str(";4");
        }
        for (which, colour) in [(38, style.fg), (48, style.bg)] {
            // 256-colour codes: with the basic ones, some terminals brighten bold text.
            if let Some(colour) = colour.filter(|_| self.has_colours) {
                let _ = write!(out, ";{which};5;{}", colour as u8);
            }
        }
        out.push('m');
    }
}

#[cfg(test)]
mod tests {
    use bolero::check;

    use super::super::text::{Color, Span};
    use super::*;

    /// A terminal that interprets a painter's output. Each cell has a grapheme (empty right of a wide one) and its style's parameters.
    struct Terminal {
        rows: Vec<Vec<(String, String)>>,
    }

    impl Terminal {
        /// Returns a terminal whose cells hold `?`, which a painter must overwrite.
        fn new((width, height): (u16, u16)) -> Self {
            Self { rows: vec![vec![("?".to_owned(), "0;4".to_owned()); width.into()]; height.into()] }
        }

        fn blank() -> (String, String) {
            (" ".to_owned(), "0".to_owned())
        }

        fn read(&mut self, sent: &str) {
            let (mut row, mut column, mut style) = (0, 0, "0".to_owned());
            for (at, piece) in sent.split('\u{1b}').enumerate() {
                let text = if at == 0 {
                    piece
                } else {
                    let sequence = piece.strip_prefix('[').unwrap();
                    let end = sequence.find(|char: char| char.is_ascii_alphabetic()).unwrap();
                    let (parameters, rest) = sequence.split_at(end);
                    match (rest.chars().next().unwrap(), parameters) {
                        ('H', place) => {
                            let (line, first) = place.split_once(';').unwrap();
                            (row, column) = (line.parse::<usize>().unwrap() - 1, first.parse::<usize>().unwrap() - 1);
                        }
                        ('J', "2") => self.rows.iter_mut().flatten().for_each(|cell| *cell = Self::blank()),
                        ('K', "") => {
                            assert_eq!(style, "0", "or the rest of the row has a colour");
                            assert!(column < self.rows[row].len(), "the last column is there, and would be erased");
                            self.rows[row][column..].iter_mut().for_each(|cell| *cell = Self::blank());
                        }
                        ('m', parameters) => style = parameters.to_owned(),
                        other => panic!("{other:?}"),
                    }
                    &rest[1..]
                };
                let span = Span::raw(text.to_owned());
                for grapheme in span.graphemes() {
                    self.rows[row][column] = (grapheme.symbol.to_owned(), style.clone());
                    (1..grapheme.columns()).for_each(|more| self.rows[row][column + more] = Default::default());
                    column += grapheme.columns();
                }
            }
            assert_eq!(style, "0", "the next text has no style of this one");
        }

        fn text(&self) -> Vec<String> {
            self.rows.iter().map(|row| row.iter().map(|(symbol, _)| symbol.as_str()).collect()).collect()
        }
    }

    #[test]
    fn a_terminal_shows_the_lines_and_is_sent_only_rows_that_have_changed() {
        let mut painter = Painter::new((6, 3), true);
        let red = Style::new().fg(Color::Red).bold();
        let mut lines = vec![Line::from(vec![Span::raw("a "), Span::styled("日", red)]), Line::raw("123456")];
        assert_eq!(
            painter.paint(lines.clone()),
            "\u{1b}[2J\u{1b}[1;1Ha \u{1b}[0;1;38;5;1m日\u{1b}[0m\u{1b}[K\u{1b}[2;1H123456"
        );
        assert_eq!(painter.paint(lines.clone()), "");
        lines[1] = Line::raw("12");
        assert_eq!(painter.paint(lines.clone()), "\u{1b}[2;1H12\u{1b}[K");
        painter.restart((2, 1));
        assert_eq!(painter.paint(lines), "\u{1b}[2J\u{1b}[1;1Ha ");
    }

    #[test]
    fn without_colours_text_is_still_bold_and_underlined() {
        let style = Style::new().fg(Color::Black).bg(Color::Cyan).bold().underlined();
        let sent = |has_colours| Painter::new((1, 1), has_colours).paint(vec![Line::styled("x", style)]);
        assert!(sent(true).contains("\u{1b}[0;1;4;38;5;0;48;5;6mx"), "{:?}", sent(true));
        assert!(sent(false).contains("\u{1b}[0;1;4mx"), "{:?}", sent(false));
    }

    #[test]
    fn whatever_was_shown_before_a_terminal_shows_the_last_lines() {
        let styles = [Style::new(), Style::new().bold(), Style::new().bg(Color::Green)];
        check!().with_type::<(u8, u8, Vec<Vec<Vec<(String, u8)>>>)>().for_each(|(width, height, screens)| {
            let size = (u16::from(*width) % 12 + 1, u16::from(*height) % 4 + 1);
            let (mut painter, mut terminal) = (Painter::new(size, true), Terminal::new(size));
            for screen in screens {
                let span = |(text, style): &(String, u8)| Span::styled(text.clone(), styles[usize::from(*style) % 3]);
                let lines: Vec<Line> =
                    screen.iter().map(|line| line.iter().map(span).collect::<Vec<_>>().into()).collect();
                terminal.read(&painter.paint(lines.clone()));
                let mut once = Terminal::new(size);
                once.read(&Painter::new(size, true).paint(lines));
                assert_eq!((terminal.text(), &terminal.rows), (once.text(), &once.rows));
            }
        });
    }
}
