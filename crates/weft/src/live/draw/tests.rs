//! The whole screen as people see it, and what keys make of it.

use super::super::state::{Ask, State};
use super::*;
use crate::traffic::Edge;
use ratatui::{
    Terminal,
    backend::TestBackend,
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
};
use weft_fault::{Code, Fault};
use weft_wire::record::{EntryKind, JournalEntry};

fn edge(from: &str, to: &str, identity: Option<&str>, rps: f64, success: f64) -> Edge {
    Edge {
        from: from.into(),
        to: to.into(),
        identity: identity.map(Into::into),
        requests_per_second: rps,
        success: Some(success),
        p50_ms: Some(1.0),
        p95_ms: Some(4.0),
        p99_ms: Some(9.0),
        open_connections: 2.0,
    }
}

fn fault(code: Code, source: &str, subject: &str) -> JournalEntry {
    JournalEntry {
        at_unix_ms: 1,
        source: source.into(),
        subject: subject.into(),
        kind: EntryKind::Fault,
        text: String::new(),
        fault: Some(Fault::new(code).about(subject).fact("port", 80).record()),
    }
}

fn shop() -> State {
    let mut state = State::new("weft", false);
    state.take(
        Some(vec![
            edge("shop/web", "shop/catalogue", Some("catalogue.shop"), 20.0, 1.0),
            edge("shop/load", "shop/web", Some("web.shop"), 40.0, 0.95),
            edge("shop/batch", "shop/catalogue", None, 1.0, 0.5),
        ]),
        vec![
            fault(Code::NoRuleAllows, "shop/web-1", "10.77.0.9:8080"),
            fault(Code::ConnectRefused, "shop/web-1", "shop/catalogue:80"),
            fault(Code::ConnectRefused, "shop/web-1", "shop/catalogue:80"),
        ],
    );
    state
}

fn press(state: &mut State, code: KeyCode) -> Ask {
    state.on_key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn drawn(state: &mut State, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen(frame, state)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let cells = buffer.content.chunks(usize::from(width));
    cells.map(|row| row.iter().map(|c| c.symbol()).collect::<String>().trim_end().to_owned()).collect()
}

#[test]
fn eighty_columns_show_what_matters() {
    let lines = drawn(&mut shop(), 80, 8);
    assert_eq!(
        lines,
        [
            " weft weft  1 services 2  2 edges 3  3 faults 2",
            "FROM                  TO                           RPS  SUCCESS     P95      P99",
            "shop/web              shop/catalogue              20.0   100.0%     4ms      9ms",
            "shop/load             shop/web                    40.0    95.0%     4ms      9ms",
            "shop/batch            shop/catalogue               1.0    50.0%     4ms      9ms",
            "",
            "",
            " ↑↓ choose  Enter details  e explain  Tab next  ? keys  q end the mesh",
        ]
    );
    let wide = drawn(&mut shop(), 140, 8);
    assert!(wide[1].contains("IDENTITY") && wide[1].contains("CONNS"), "{wide:?}");
    assert!(wide[4].contains("(plaintext)"), "{wide:?}");
}

/// A window may be of any size, also while it is being dragged.
#[test]
fn no_size_is_too_small() {
    for (width, height) in [(1, 1), (3, 2), (10, 3), (20, 40), (300, 1), (79, 23)] {
        let mut state = shop();
        for code in ['1', '2', '3', '?'] {
            press(&mut state, KeyCode::Char(code));
            assert_eq!(drawn(&mut state, width, height).len(), usize::from(height));
        }
    }
}

#[test]
fn services_add_up_their_callers() {
    let mut state = shop();
    press(&mut state, KeyCode::Char('1'));
    let lines = drawn(&mut state, 80, 6);
    assert!(lines[1].starts_with("SERVICE"), "{lines:?}");
    // The busiest first; 20 of 20 and half of 1 are 97.6 %.
    assert!(lines[2].starts_with("shop/web ") && lines[2].contains("40.0"), "{lines:?}");
    assert!(lines[3].contains("21.0") && lines[3].contains("97.6%") && lines[3].contains("no"), "{lines:?}");
}

#[test]
fn a_fault_has_its_evidence_and_remedy_one_key_away() {
    let mut state = shop();
    press(&mut state, KeyCode::Char('3'));
    let lines = drawn(&mut state, 100, 8);
    assert!(lines[2].contains("2×") && lines[2].contains(Code::ConnectRefused.id()), "{lines:?}");
    press(&mut state, KeyCode::Enter);
    let text = drawn(&mut state, 100, 20).join("\n");
    for part in [Code::ConnectRefused.name(), "shop/web-1", "port=80", "remedy"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    press(&mut state, KeyCode::Esc);
    assert!(state.sheet.is_none());
}

#[test]
fn explain_asks_for_the_row_and_shows_what_comes() {
    let mut state = shop();
    press(&mut state, KeyCode::Down);
    let asked = press(&mut state, KeyCode::Char('e'));
    assert_eq!(asked, Ask::Path { from: "shop/load".into(), to: "shop/web".into() });
    let waiting = drawn(&mut state, 80, 10).join("\n");
    assert!(waiting.contains("explain shop/load shop/web") && waiting.contains("asking"), "{waiting}");
    state.explained("✓ works\nline two");
    let text = drawn(&mut state, 80, 10).join("\n");
    assert!(text.contains("works") && text.contains("line two"), "{text}");
    // Whoever went back is not called.
    press(&mut state, KeyCode::Esc);
    state.explained("too late");
    assert!(state.sheet.is_none());
}

/// Rows come and go; what was chosen stays chosen.
#[test]
fn a_selection_stays_with_its_row() {
    let mut state = shop();
    press(&mut state, KeyCode::Down);
    state.take(
        Some(vec![
            edge("shop/a", "shop/b", None, 1.0, 1.0),
            edge("shop/web", "shop/catalogue", Some("catalogue.shop"), 20.0, 1.0),
            edge("shop/load", "shop/web", Some("web.shop"), 40.0, 0.95),
        ]),
        Vec::new(),
    );
    assert_eq!(state.selected[1].selected(), Some(2));
    state.take(Some(Vec::new()), Vec::new());
    assert_eq!(state.selected[1].selected(), None);
    assert_eq!(press(&mut state, KeyCode::Char('e')), Ask::Nothing);
    assert_eq!(press(&mut state, KeyCode::Enter), Ask::Nothing);
    let lines = drawn(&mut state, 80, 6);
    assert!(lines.join("\n").contains("no traffic"), "{lines:?}");
}

#[test]
fn a_long_sheet_scrolls_to_its_end_and_no_further() {
    let mut state = shop();
    press(&mut state, KeyCode::Char('e'));
    let text: Vec<String> = (0..40).map(|n| format!("line {n}")).collect();
    state.explained(&text.join("\n"));
    for _ in 0..100 {
        press(&mut state, KeyCode::PageDown);
    }
    let lines = drawn(&mut state, 80, 12).join("\n");
    assert!(lines.contains("line 39") && lines.contains("line 32") && !lines.contains("line 31"), "{lines}");
    press(&mut state, KeyCode::Home);
    assert!(drawn(&mut state, 80, 12).join("\n").contains("line 0 "), "back at the beginning");
}

#[test]
fn without_colours_there_are_none() {
    let mut state = shop();
    let mut terminal = Terminal::new(TestBackend::new(120, 10)).unwrap();
    let colours = |terminal: &Terminal<TestBackend>| {
        let buffer = terminal.backend().buffer();
        buffer.content.iter().filter(|c| c.fg != Color::Reset || c.bg != Color::Reset).count()
    };
    terminal.draw(|frame| screen(frame, &mut state)).unwrap();
    assert_eq!(colours(&terminal), 0);
    state.colours = true;
    terminal.draw(|frame| screen(frame, &mut state)).unwrap();
    assert!(colours(&terminal) > 0);
}

#[test]
fn ctrl_c_ends_from_everywhere_and_q_goes_back_first() {
    let mut state = shop();
    press(&mut state, KeyCode::Char('?'));
    assert_eq!(press(&mut state, KeyCode::Char('q')), Ask::Nothing);
    assert_eq!(press(&mut state, KeyCode::Char('q')), Ask::Quit);
    press(&mut state, KeyCode::Enter);
    let end = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(state.on_key(end), Ask::Quit);
}
