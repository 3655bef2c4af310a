//! Draws a screen as SVG, for `docs/`.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use super::super::text::{Color, Grapheme, Line, Style};
use super::tests::{busy, drawn};
use super::{Choices, Scene};
use crate::args::PortOrder;

/// Size of the screen in columns and rows.
const SIZE: (u16, u16) = (124, 31);
/// Width and height of a character in pixels, for a monospaced font of 14 pixels.
const CELL: (f64, f64) = (8.4, 18.0);
/// Margin around the screen in pixels.
const MARGIN: f64 = 14.0;

/// Colours of a dark theme.
const fn colour(colour: Color) -> &'static str {
    match colour {
        Color::Black => "#1d2021",
        Color::Red => "#fb4934",
        Color::Green => "#8ec07c",
        Color::Yellow => "#fabd2f",
        Color::Cyan => "#83a598",
        Color::DarkGray => "#928374",
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Splits a line into runs of equal style, with their first column. Assumes characters of one column.
fn runs(line: &Line) -> Vec<(usize, Style, String)> {
    let mut runs: Vec<(usize, Style, String)> = Vec::new();
    let blank = Grapheme { symbol: " ", style: Style::new() };
    let row = line.visible(SIZE.0.into()).chain(std::iter::repeat(blank)).take(SIZE.0.into());
    for (column, grapheme) in row.enumerate() {
        assert_eq!(grapheme.columns(), 1);
        match runs.last_mut() {
            Some((_, style, text)) if *style == grapheme.style => text.push_str(grapheme.symbol),
            _ => runs.push((column, grapheme.style, grapheme.symbol.to_owned())),
        }
    }
    runs
}

fn svg(lines: &[Line]) -> String {
    let (width, height) = (f64::from(SIZE.0) * CELL.0, f64::from(SIZE.1) * CELL.1);
    let (all_width, all_height) = (width + 2.0 * MARGIN, height + 2.0 * MARGIN);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {all_width:.1} {all_height:.1}\" \
         font-family=\"'DejaVu Sans Mono', 'Liberation Mono', Menlo, Consolas, monospace\" font-size=\"14\">\n\
         <title>bulkhead top</title>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#282828\"/>\n"
    );
    for (row, line) in lines.iter().enumerate() {
        for (column, style, text) in runs(line) {
            let (left, top) = (MARGIN + column as f64 * CELL.0, MARGIN + row as f64 * CELL.1);
            let length = text.chars().count() as f64 * CELL.0;
            if let Some(fill) = style.bg.map(colour) {
                writeln!(
                    out,
                    "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{length:.1}\" height=\"{}\" fill=\"{fill}\"/>",
                    CELL.1
                )
                .unwrap();
            }
            if text.trim().is_empty() {
                continue;
            }
            let weight = if style.is_bold { " font-weight=\"bold\"" } else { "" };
            let line = if style.is_underlined { " text-decoration=\"underline\"" } else { "" };
            let fill = style.fg.map_or("#ebdbb2", colour);
            writeln!(
                out,
                "<text x=\"{left:.1}\" y=\"{:.1}\" textLength=\"{length:.1}\" xml:space=\"preserve\" fill=\"{fill}\"{weight}{line}>{}</text>",
                top + 13.5,
                escaped(&text)
            )
            .unwrap();
        }
    }
    out.push_str("</svg>\n");
    out
}

#[test]
fn the_picture_of_top_in_the_documents_is_what_is_drawn() {
    let (picture, choices) = (busy(), Choices::new(PortOrder::Packets, ""));
    let scene = Scene { picture: &picture, choices: &choices, interval: Duration::from_secs(1), away: None };
    let made = svg(&drawn(scene, SIZE.0, SIZE.1));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/top.svg");
    if std::env::var_os("BULKHEAD_BLESS").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == made, "docs/top.svg is not what is drawn; `cargo xtask reference` writes it");
}
