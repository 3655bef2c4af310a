//! Measures text in columns and shortens it.
//!
//! Uses the same widths as [`paint`](super::super::paint).

use super::super::text::{Grapheme, Span, Style};

/// The sign that replaces omitted text.
const SIGN: &str = "…";

pub(super) fn width(text: &[Span]) -> usize {
    graphemes(text).map(Grapheme::columns).sum()
}

/// Shortens text at its end. Trailing spaces need no room.
pub(super) fn without_end(text: Vec<Span>, room: usize) -> Vec<Span> {
    let all: Vec<_> = graphemes(&text).collect();
    let last = all.iter().rposition(|grapheme| !grapheme.is_whitespace()).map_or(0, |last| last + 1);
    if all[..last].iter().copied().map(Grapheme::columns).sum::<usize>() <= room {
        return text;
    }
    shortened(&all[..last], room, 0)
}

/// Shortens text in its middle. The end distinguishes pods of one owner.
pub(super) fn without_middle(text: &[Span], room: usize) -> Vec<Span> {
    if width(text) <= room {
        return text.to_vec();
    }
    let all: Vec<_> = graphemes(text).collect();
    shortened(&all, room, room.saturating_sub(1) / 2)
}

/// Shortens text to `room` columns, with `end` of them for its end.
fn shortened(all: &[Grapheme<'_>], room: usize, end: usize) -> Vec<Span> {
    let Some(begin) = room.checked_sub(1 + end) else { return Vec::new() };
    let first = fitting(all.iter(), begin);
    let mut last = fitting(all.iter().rev(), end);
    last.reverse();
    let style = all.get(first.len()).map_or(Style::new(), |left_out| left_out.style);
    let mut spans: Vec<Span> = Vec::new();
    for Grapheme { symbol, style } in first.into_iter().chain([Grapheme { symbol: SIGN, style }]).chain(last) {
        match spans.last_mut() {
            Some(span) if span.style == style => span.content.to_mut().push_str(symbol),
            _ => spans.push(Span::styled(symbol.to_owned(), style)),
        }
    }
    spans
}

/// Returns the first graphemes that fit.
fn fitting<'a>(all: impl Iterator<Item = &'a Grapheme<'a>>, room: usize) -> Vec<Grapheme<'a>> {
    let mut left = room;
    let fits = |grapheme: &Grapheme<'a>| {
        left = left.checked_sub(grapheme.columns())?;
        Some(*grapheme)
    };
    all.map_while(fits).collect()
}

fn graphemes<'a>(text: &'a [Span]) -> impl Iterator<Item = Grapheme<'a>> {
    text.iter().flat_map(Span::graphemes)
}

#[cfg(test)]
mod tests {
    use bolero::check;

    use super::*;

    fn told(text: &[Span]) -> String {
        text.iter().map(|span| &*span.content).collect()
    }

    #[test]
    fn text_that_is_too_wide_loses_its_end_or_its_middle_and_a_sign_says_so() {
        let text = vec![Span::raw("default/"), Span::styled("web-7d9f8c", Style::new().bold())];
        assert_eq!(told(&without_end(text.clone(), 18)), "default/web-7d9f8c");
        let cut = without_end(text.clone(), 12);
        assert_eq!(told(&cut), "default/web…");
        assert_eq!(cut.last().unwrap().style, Style::new().bold(), "{cut:?}");
        assert_eq!(told(&without_middle(&text, 11)), "defau…d9f8c");
        assert_eq!(told(&without_end(vec![Span::raw("93% cached  ")], 10)), "93% cached  ", "spaces need no room");
        assert_eq!((told(&without_end(text.clone(), 1)), told(&without_end(text, 0))), ("…".into(), String::new()));
    }

    #[test]
    fn a_wide_character_takes_two_columns_and_is_never_cut_in_two() {
        let text = [Span::raw("日本語/ポッド")];
        assert_eq!(width(&text), 13);
        assert_eq!(
            told(&without_middle(&text, 12)),
            "日本語…ッド",
            "half of a character has no place in the twelfth column"
        );
        assert_eq!(width(&[Span::raw("e\u{301}")]), 1);
    }

    #[test]
    fn whatever_the_text_it_fits() {
        check!().with_type::<(Vec<String>, u8)>().for_each(|(words, room)| {
            let words = words.iter().map(String::as_str).chain(["and no space"]);
            let text: Vec<Span> = words.map(|word| Span::raw(word.to_owned())).collect();
            let room = usize::from(*room);
            let middle = without_middle(&text, room);
            let end = without_end(text, room);
            assert!(width(&middle) <= room && width(&end) <= room, "{middle:?} {end:?}");
        });
    }
}
