//! How it looks. Narrow terminals lose columns, those that matter least first; without colours, weight tells apart.

use super::state::{Sheet, State, TABS, Tab, ms, percent};
use ratatui::{
    Frame,
    layout::{Alignment, Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Block, Cell, Clear, Paragraph, Row, Table, Wrap},
};

/// Below this success is told in yellow, and far below in red.
const WELL: f64 = 0.99;
const BAD: f64 = 0.9;
/// Between columns.
const GAP: u16 = 2;

pub(super) fn screen(frame: &mut Frame<'_>, state: &mut State) {
    let [top, middle, bottom] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)])
            .areas(frame.area());
    let paint = Paint { colours: state.colours };
    frame.render_widget(head(state, paint), top);
    table(frame, middle, state, paint);
    let keys = if state.sheet.is_some() {
        " ↑↓ scroll  Esc back  Ctrl-C end the mesh"
    } else {
        " ↑↓ choose  Enter details  e explain  Tab next  ? keys  q end the mesh"
    };
    frame.render_widget(Paragraph::new(keys).style(paint.dim()), bottom);
    if let Some(sheet) = &mut state.sheet {
        over(frame, middle, sheet, paint);
    }
}

#[derive(Clone, Copy)]
struct Paint {
    colours: bool,
}

impl Paint {
    fn with(self, colour: Color) -> Style {
        if self.colours { Style::new().fg(colour) } else { Style::new() }
    }
    fn dim(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }
    fn bold(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }
    fn success(self, share: Option<f64>) -> Style {
        match share {
            Some(share) if share < BAD => self.with(Color::Red).add_modifier(Modifier::BOLD),
            Some(share) if share < WELL => self.with(Color::Yellow).add_modifier(Modifier::BOLD),
            Some(_) => self.with(Color::Green),
            None => self.dim(),
        }
    }
}

fn head(state: &State, paint: Paint) -> Line<'_> {
    let mut spans = vec![Span::styled(format!(" weft {} ", state.mesh), paint.bold()), Span::raw(" ")];
    for (n, tab) in TABS.into_iter().enumerate() {
        let text = format!("{} {} {}", n + 1, tab.title(), state.rows(tab));
        let mut style =
            if tab == state.tab { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        if tab == Tab::Faults && state.rows(tab) > 0 {
            style = style.patch(paint.with(Color::Red)).add_modifier(Modifier::BOLD);
        }
        spans.extend([Span::styled(text, style), Span::raw("  ")]);
    }
    if state.silent {
        spans.push(Span::styled("the API does not answer", paint.with(Color::Red)));
    }
    Line::from(spans)
}

/// A column: its title, its least width, how soon it goes where there is no room (0: never), and whether it is a number.
struct Column {
    title: &'static str,
    least: u16,
    goes: u8,
    number: bool,
}

const fn text(title: &'static str, least: u16, goes: u8) -> Column {
    Column { title, least, goes, number: false }
}
const fn number(title: &'static str, least: u16, goes: u8) -> Column {
    Column { title, least, goes, number: true }
}

const SERVICES: [Column; 6] = [
    text("SERVICE", 24, 0),
    number("CALLERS", 7, 3),
    number("RPS", 8, 0),
    number("SUCCESS", 7, 0),
    number("P99", 7, 2),
    text("MTLS", 5, 1),
];
const EDGES: [Column; 9] = [
    text("FROM", 16, 0),
    text("TO", 18, 0),
    text("IDENTITY", 16, 3),
    number("RPS", 7, 0),
    number("SUCCESS", 7, 0),
    number("P50", 6, 4),
    number("P95", 6, 2),
    number("P99", 7, 1),
    number("CONNS", 5, 5),
];
const FAULTS: [Column; 5] = [
    number("TIMES", 5, 0),
    text("CODE", 8, 0),
    text("TOLD BY", 20, 2),
    text("ABOUT", 22, 1),
    text("SAYS", 30, 3),
];

/// Which columns there is room for.
fn fitting(columns: &[Column], width: u16) -> Vec<usize> {
    let mut shown: Vec<usize> = (0..columns.len()).collect();
    loop {
        let needed: u16 = shown.iter().map(|n| columns[*n].least + GAP).sum();
        let least = shown.iter().filter(|n| columns[**n].goes > 0).max_by_key(|n| columns[**n].goes).copied();
        match least {
            Some(least) if needed > width + GAP => shown.retain(|n| *n != least),
            _ => return shown,
        }
    }
}

/// The text of a cell, and how it is painted.
type Painted = (String, Style);

fn table(frame: &mut Frame<'_>, area: Rect, state: &mut State, paint: Paint) {
    let number = state.number();
    let (columns, cells): (&[Column], Vec<Vec<Painted>>) = match state.tab {
        Tab::Services => (&SERVICES, service_cells(state, paint)),
        Tab::Edges => (&EDGES, edge_cells(state, paint)),
        Tab::Faults => (&FAULTS, fault_cells(state, paint)),
    };
    if cells.is_empty() {
        let nothing = match state.tab {
            Tab::Faults => "no faults in the last minute",
            _ if state.counted => "no traffic between meshed pods",
            _ => "counting …",
        };
        frame.render_widget(Paragraph::new(format!("\n  {nothing}")).style(paint.dim()), area);
        return;
    }
    let shown = fitting(columns, area.width);
    let cell = |n: usize, text: &str, style: Style| {
        let align = if columns[n].number { Alignment::Right } else { Alignment::Left };
        Cell::from(Line::from(Span::styled(text.to_owned(), style)).alignment(align))
    };
    let header = Row::new(shown.iter().map(|n| cell(*n, columns[*n].title, paint.bold())));
    let rows = cells
        .iter()
        .map(|cells| Row::new(shown.iter().map(|n| cell(*n, &cells[*n].0, cells[*n].1)).collect::<Vec<_>>()));
    let widths = shown.iter().map(|n| match columns[*n].number {
        true => Constraint::Length(columns[*n].least),
        false => Constraint::Fill(columns[*n].least),
    });
    let table = Table::new(rows, widths)
        .header(header)
        .column_spacing(GAP)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    frame.render_stateful_widget(table, area, &mut state.selected[number]);
}

fn service_cells(state: &State, paint: Paint) -> Vec<Vec<Painted>> {
    let cells = state.services.iter().map(|s| {
        let (mtls, style) =
            if s.plaintext { ("no", paint.with(Color::Yellow)) } else { ("yes", Style::new()) };
        vec![
            (s.name.clone(), Style::new()),
            (s.callers.len().to_string(), Style::new()),
            (format!("{:.1}", s.requests_per_second), Style::new()),
            (percent(s.success), paint.success(s.success)),
            (ms(s.p99_ms), Style::new()),
            (mtls.to_owned(), style),
        ]
    });
    cells.collect()
}

fn edge_cells(state: &State, paint: Paint) -> Vec<Vec<Painted>> {
    let cells = state.edges.iter().map(|e| {
        let identity = match &e.identity {
            Some(identity) => (identity.clone(), Style::new()),
            None => ("(plaintext)".to_owned(), paint.with(Color::Yellow)),
        };
        vec![
            (e.from.clone(), Style::new()),
            (e.to.clone(), Style::new()),
            identity,
            (format!("{:.1}", e.requests_per_second), Style::new()),
            (percent(e.success), paint.success(e.success)),
            (ms(e.p50_ms), Style::new()),
            (ms(e.p95_ms), Style::new()),
            (ms(e.p99_ms), Style::new()),
            (format!("{:.0}", e.open_connections), Style::new()),
        ]
    });
    cells.collect()
}

fn fault_cells(state: &State, paint: Paint) -> Vec<Vec<Painted>> {
    let cells = state.faults.iter().map(|row| {
        vec![
            (format!("{}×", row.count), Style::new()),
            (row.fault.code.clone(), paint.with(Color::Red).add_modifier(Modifier::BOLD)),
            (row.source.clone(), Style::new()),
            (row.subject.clone(), Style::new()),
            (row.fault.says.clone(), Style::new()),
        ]
    });
    cells.collect()
}

/// A sheet over the table. It scrolls no further than to its last line.
fn over(frame: &mut Frame<'_>, area: Rect, sheet: &mut Sheet, paint: Paint) {
    let block = Block::bordered().title(Line::from(format!(" {} ", sheet.title)).style(paint.bold()));
    let inner = block.inner(area);
    let width = usize::from(inner.width.max(1));
    let lines: usize = sheet.text.lines().map(|line| Line::from(line).width().div_ceil(width).max(1)).sum();
    let furthest = u16::try_from(lines).unwrap_or(u16::MAX).saturating_sub(inner.height);
    sheet.scroll = sheet.scroll.min(furthest);
    let text =
        Paragraph::new(sheet.text.as_str()).wrap(Wrap { trim: false }).scroll((sheet.scroll, 0)).block(block);
    frame.render_widget(Clear, area);
    frame.render_widget(text, area);
}

#[cfg(test)]
mod tests;
