//! The picture in `docs/`: what is drawn, as SVG.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

use super::tests::{busy, drawn};
use super::{Choices, Scene};
use crate::args::PortOrder;

/// Of a cell, in pixels: a monospaced font of 14 pixels.
const CELL: (f64, f64) = (8.4, 18.0);
/// Around the screen.
const MARGIN: f64 = 14.0;

/// The colours of a dark theme, of which terminals have sixteen.
fn colour(colour: Color, other: &'static str) -> &'static str {
    match colour {
        Color::Black => "#1d2021",
        Color::Red => "#fb4934",
        Color::Green => "#8ec07c",
        Color::Yellow => "#fabd2f",
        Color::Cyan => "#83a598",
        Color::DarkGray => "#928374",
        _ => other,
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Cells beside each other that look alike, with their first column.
fn runs(buffer: &Buffer, y: u16) -> Vec<(u16, Cell, String)> {
    let mut runs: Vec<(u16, Cell, String)> = Vec::new();
    for x in 0..buffer.area.width {
        let cell = &buffer[(x, y)];
        match runs.last_mut() {
            Some((_, last, text)) if (last.fg, last.bg, last.modifier) == (cell.fg, cell.bg, cell.modifier) => {
                text.push_str(cell.symbol());
            }
            _ => runs.push((x, cell.clone(), cell.symbol().to_owned())),
        }
    }
    runs
}

fn svg(buffer: &Buffer) -> String {
    let (width, height) = (f64::from(buffer.area.width) * CELL.0, f64::from(buffer.area.height) * CELL.1);
    let (all_width, all_height) = (width + 2.0 * MARGIN, height + 2.0 * MARGIN);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {all_width:.1} {all_height:.1}\" \
         font-family=\"'DejaVu Sans Mono', 'Liberation Mono', Menlo, Consolas, monospace\" font-size=\"14\">\n\
         <title>bulkhead top</title>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#282828\"/>\n"
    );
    for y in 0..buffer.area.height {
        for (x, cell, text) in runs(buffer, y) {
            let (left, top) = (MARGIN + f64::from(x) * CELL.0, MARGIN + f64::from(y) * CELL.1);
            let length = text.chars().count() as f64 * CELL.0;
            if cell.bg != Color::Reset {
                let fill = colour(cell.bg, "#282828");
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
            let weight = if cell.modifier.contains(Modifier::BOLD) { " font-weight=\"bold\"" } else { "" };
            let line = if cell.modifier.contains(Modifier::UNDERLINED) { " text-decoration=\"underline\"" } else { "" };
            let fill = colour(cell.fg, "#ebdbb2");
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
    let made = svg(&drawn(scene, 124, 31));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/top.svg");
    if std::env::var_os("BULKHEAD_BLESS").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == made, "docs/top.svg is not what is drawn; `cargo xtask reference` writes it");
}
