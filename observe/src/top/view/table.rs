//! Tables that fit a width: first shorten names, then drop optional columns.

use super::super::text::{Line, Span};

use super::{fit, style};

/// Spaces between columns.
const GAP: usize = 2;
/// Minimum width of names before columns are dropped: a namespace and the start of a name. A longer heading keeps its width.
const NAME: usize = 20;
/// Width of a figure. Fixed, so that columns do not move when figures change.
const FIGURE: usize = 7;

#[derive(Clone, Debug)]
struct Column {
    heading: String,
    /// Whether the column holds numbers, which are right-aligned.
    is_figure: bool,
    /// Columns with a higher rank are dropped first, those with rank 0 never.
    rank: u8,
    /// Whether the rows are sorted by this column.
    is_order: bool,
}

/// A table with names in the first column.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Vec<Span>>>,
}

impl Table {
    pub(super) fn new(heading: impl Into<String>) -> Self {
        let names = Column { heading: heading.into(), is_figure: false, rank: 0, is_order: false };
        Self { columns: vec![names], rows: Vec::new() }
    }

    /// Adds a column of numbers.
    pub(super) fn figures(self, heading: &str, rank: u8) -> Self {
        self.column(heading, true, rank)
    }

    /// Adds a column of text.
    pub(super) fn words(self, heading: &str, rank: u8) -> Self {
        self.column(heading, false, rank)
    }

    fn column(mut self, heading: &str, is_figure: bool, rank: u8) -> Self {
        self.columns.push(Column { heading: heading.to_owned(), is_figure, rank, is_order: false });
        self
    }

    /// Marks the columns with these headings as the sort columns.
    pub(super) fn ordered_by(mut self, headings: &[&str]) -> Self {
        for column in &mut self.columns {
            column.is_order = headings.iter().any(|heading| column.heading.starts_with(heading));
        }
        self
    }

    /// Adds a row. A cell has several spans if it has several colours.
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = Vec<Span>>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Returns the heading and at most `rows` rows from `first` on.
    pub(super) fn lines(&self, width: usize, first: usize, rows: usize) -> Vec<Line> {
        let mut widths: Vec<Option<usize>> = (0..self.columns.len()).map(|at| Some(self.width(at))).collect();
        let name = self.width(0);
        let least = name.min(NAME).max(self.columns[0].heading.chars().count());
        let others = |widths: &[Option<usize>]| widths[1..].iter().flatten().map(|width| width + GAP).sum::<usize>();
        while others(&widths) + least > width {
            let shown = (1..widths.len()).filter(|&at| widths[at].is_some() && self.columns[at].rank > 0);
            let Some(first_to_go) = shown.max_by_key(|&at| self.columns[at].rank) else { break };
            widths[first_to_go] = None;
        }
        widths[0] = Some(name.min(width.saturating_sub(others(&widths)).max(1)));
        let heading = |column: &Column| {
            let style = if column.is_order { style::ORDER } else { style::HEADING };
            vec![Span::styled(column.heading.clone(), style)]
        };
        let heading = self.line(&self.columns.iter().map(heading).collect::<Vec<_>>(), &widths);
        let shown = self.rows.iter().skip(first).take(rows).map(|row| self.line(row, &widths));
        std::iter::once(heading).chain(shown).collect()
    }

    fn width(&self, at: usize) -> usize {
        let column = &self.columns[at];
        let cells = self.rows.iter().filter_map(|row| row.get(at)).map(|cell| fit::width(cell));
        let least = if column.is_figure { FIGURE } else { 0 };
        cells.chain([column.heading.chars().count(), least]).max().unwrap_or(0)
    }

    fn line(&self, cells: &[Vec<Span>], widths: &[Option<usize>]) -> Line {
        let mut spans = Vec::new();
        for ((cell, column), width) in cells.iter().zip(&self.columns).zip(widths) {
            let Some(width) = *width else { continue };
            let gap = if spans.is_empty() { 0 } else { GAP };
            let cell = fit::without_middle(cell, width);
            let pad = width.saturating_sub(fit::width(&cell));
            let (before, after) = if column.is_figure { (gap + pad, 0) } else { (gap, pad) };
            spans.push(Span::raw(" ".repeat(before)));
            spans.extend(cell);
            spans.push(Span::raw(" ".repeat(after)));
        }
        Line::from(spans)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(table: &Table, width: usize) -> Vec<String> {
        table.lines(width, 0, 9).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn names_give_way_first_then_columns_of_high_rank() {
        let mut table = Table::new("PORT").figures("A", 1).figures("B", 2).words("STATE", 3);
        let name = "shop/web-7d9f8c6b5-x2k4q-and-more";
        table.row([name, "1", "2", "open"].map(|cell| vec![Span::raw(cell)]));
        assert_eq!(told(&table, 200)[1], format!("{name}        1        2  open "));
        let narrow = told(&table, 50);
        assert!(
            narrow[1].starts_with("shop/web-7d")
                && narrow[1].contains('…')
                && narrow[1].ends_with("more        1        2  open ")
        );
        let shown = |width: usize| told(&table, width)[0].split_whitespace().map(str::to_owned).collect::<String>();
        assert_eq!([45, 40, 30, 20].map(shown), ["PORTABSTATE", "PORTAB", "PORTA", "PORT"]);
        for width in 0..60 {
            let widest = told(&table, width).iter().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= width.max(4), "{width}: {widest}");
        }
    }

    #[test]
    fn a_heading_that_says_which_rows_are_shown_is_longer_than_a_column_that_can_be_missed() {
        let mut table = Table::new("DROPPED, BY REASON (1 of 3)").figures("/S", 0).words("", 2);
        table.row(["no_route", "1", "Nothing is known of the way."].map(|cell| vec![Span::raw(cell)]));
        assert!(told(&table, 66)[1].ends_with("of the way."), "both fit");
        let narrow = told(&table, 60);
        assert!(narrow[0].starts_with("DROPPED, BY REASON (1 of 3) ") && narrow[1].ends_with(" 1"), "{narrow:#?}");
    }

    #[test]
    fn only_the_rows_that_are_asked_for_are_there_below_the_heading() {
        let mut table = Table::new("N");
        (0..9).for_each(|row| table.row([vec![Span::raw(row.to_string())]]));
        let lines: Vec<String> = table.lines(9, 4, 2).iter().map(|line| line.to_string().trim().to_owned()).collect();
        assert_eq!(lines, ["N", "4", "5"]);
    }

    #[test]
    fn a_row_with_wide_characters_has_its_figures_below_the_others() {
        let mut table = Table::new("PORT").figures("A", 0);
        for name in ["日本語/ポッド", "shop/web-and-more"] {
            table.row([name, "1"].map(|cell| vec![Span::raw(cell)]));
        }
        for width in [10, 20, 40] {
            let widths = table.lines(width, 0, 9).iter().map(|line| fit::width(&line.spans)).collect::<Vec<_>>();
            assert!(widths.iter().all(|&line| line == widths[0]), "{width}: {widths:?}");
        }
    }
}
