//! Styled text and its width on a terminal.
//!
//! A line is a list of spans, a span is text in one style. Text is measured and drawn by grapheme clusters (Unicode Standard Annex 29): an
//! East Asian character takes two columns, a combining character none.

use std::borrow::Cow;
use std::fmt::{self, Display, Formatter};

use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

/// A colour of the terminal's theme. The value is its number in the 256-colour palette.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Color {
    Black = 0,
    Red = 1,
    Green = 2,
    Yellow = 3,
    Cyan = 6,
    DarkGray = 8,
}

/// A text style. Colours are `None` for the terminal's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Style {
    pub(super) fg: Option<Color>,
    pub(super) bg: Option<Color>,
    pub(super) is_bold: bool,
    pub(super) is_underlined: bool,
}

impl Style {
    pub(super) const fn new() -> Self {
        Self { fg: None, bg: None, is_bold: false, is_underlined: false }
    }

    pub(super) const fn fg(self, colour: Color) -> Self {
        Self { fg: Some(colour), ..self }
    }

    pub(super) const fn bg(self, colour: Color) -> Self {
        Self { bg: Some(colour), ..self }
    }

    pub(super) const fn bold(self) -> Self {
        Self { is_bold: true, ..self }
    }

    pub(super) const fn underlined(self) -> Self {
        Self { is_underlined: true, ..self }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) content: Cow<'static, str>,
    pub(super) style: Style,
}

impl Span {
    pub(super) fn raw(content: impl Into<Cow<'static, str>>) -> Self {
        Self::styled(content, Style::new())
    }

    pub(super) fn styled(content: impl Into<Cow<'static, str>>, style: Style) -> Self {
        Self { content: content.into(), style }
    }

    /// Returns the grapheme clusters without control characters, which the terminal would execute.
    pub(super) fn graphemes(&self) -> impl Iterator<Item = Grapheme<'_>> {
        let symbols = self.content.graphemes(true).filter(|symbol| !symbol.contains(char::is_control));
        symbols.map(|symbol| Grapheme { symbol, style: self.style })
    }
}

/// A grapheme cluster with its style.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grapheme<'a> {
    pub(super) symbol: &'a str,
    pub(super) style: Style,
}

impl Grapheme<'_> {
    /// Returns the width in columns: 0 to 2, more for some emoji sequences.
    pub(super) fn columns(self) -> usize {
        self.symbol.width()
    }

    /// Whether the grapheme is invisible.
    pub(super) fn is_whitespace(self) -> bool {
        self.symbol.chars().all(|char| (char.is_whitespace() && char != '\u{a0}') || char == '\u{200b}')
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) spans: Vec<Span>,
}

impl Line {
    pub(super) fn raw(content: impl Into<Cow<'static, str>>) -> Self {
        Self::from(vec![Span::raw(content)])
    }

    pub(super) fn styled(content: impl Into<Cow<'static, str>>, style: Style) -> Self {
        Self::from(vec![Span::styled(content, style)])
    }

    /// Returns the graphemes that fit in `width` columns.
    pub(super) fn visible(&self, width: usize) -> impl Iterator<Item = Grapheme<'_>> {
        let mut left = width;
        let seen = self.spans.iter().flat_map(Span::graphemes).filter(|grapheme| grapheme.columns() > 0);
        seen.map_while(move |grapheme| {
            left = left.checked_sub(grapheme.columns())?;
            Some(grapheme)
        })
    }
}

impl From<Vec<Span>> for Line {
    fn from(spans: Vec<Span>) -> Self {
        Self { spans }
    }
}

/// Writes the text without styles.
impl Display for Line {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        self.spans.iter().try_for_each(|span| formatter.write_str(&span.content))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grapheme_takes_the_columns_that_terminals_give_it() {
        for (text, columns) in [
            ("a", vec![1]),
            ("日本", vec![2, 2]),
            ("e\u{301}x", vec![1, 1]),
            // Half-width katakana with sound marks, which take separate columns.
            ("\u{ff76}\u{ff9e}\u{ff8a}\u{ff9f}", vec![2, 2]),
            ("\u{1f469}\u{200d}\u{1f680}", vec![2]),
            ("\u{200b}", vec![0]),
        ] {
            let span = Span::raw(text);
            assert_eq!(span.graphemes().map(Grapheme::columns).collect::<Vec<_>>(), columns, "{text:?}");
        }
    }

    #[test]
    fn of_a_line_a_terminal_shows_what_fits_and_no_control_character() {
        let line = Line::from(vec![Span::raw("a\u{1b}[2J\r\n"), Span::styled("日\u{200b}本", Style::new().bold())]);
        let shown = |width| line.visible(width).map(|grapheme| grapheme.symbol).collect::<String>();
        assert_eq!([0, 5, 6, 7, 8, 80].map(shown), ["", "a[2J", "a[2J日", "a[2J日", "a[2J日本", "a[2J日本"]);
        assert_eq!(line.to_string(), "a\u{1b}[2J\r\n日\u{200b}本");
    }
}
