//! What is shown, and what keys do to it.

use crate::traffic::Edge;
use ratatui::{
    crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
    widgets::TableState,
};
use std::collections::BTreeMap;
use weft_fault::{Code, FaultRecord};
use weft_wire::record::JournalEntry;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tab {
    Services,
    Edges,
    Faults,
}

pub(super) const TABS: [Tab; 3] = [Tab::Services, Tab::Edges, Tab::Faults];

impl Tab {
    pub(super) fn title(self) -> &'static str {
        match self {
            Tab::Services => "services",
            Tab::Edges => "edges",
            Tab::Faults => "faults",
        }
    }
}

/// What a key asks of others.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ask {
    Nothing,
    Quit,
    /// Why one reaches the other, or does not.
    Path {
        from: String,
        to: String,
    },
}

/// What is called, by everybody together.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Service {
    pub(super) name: String,
    pub(super) callers: Vec<String>,
    pub(super) requests_per_second: f64,
    pub(super) success: Option<f64>,
    /// Of the slowest caller.
    pub(super) p99_ms: Option<f64>,
    /// Some caller has no mutual TLS with it.
    pub(super) plaintext: bool,
}

/// Equal faults of the last minute.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FaultRow {
    pub(super) source: String,
    pub(super) subject: String,
    pub(super) count: usize,
    pub(super) last_unix_ms: u64,
    pub(super) fault: FaultRecord,
}

/// Text over the table.
#[derive(Clone, Debug, Default)]
pub(super) struct Sheet {
    pub(super) title: String,
    pub(super) text: String,
    pub(super) scroll: u16,
    /// Still being asked for.
    pub(super) waits: bool,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) mesh: String,
    pub(super) colours: bool,
    pub(super) tab: Tab,
    pub(super) services: Vec<Service>,
    pub(super) edges: Vec<Edge>,
    pub(super) faults: Vec<FaultRow>,
    /// Of each tab, in their order. The table keeps its own position when it is drawn.
    pub(super) selected: [TableState; 3],
    pub(super) sheet: Option<Sheet>,
    /// Two looks are needed for a rate.
    pub(super) counted: bool,
    /// The cluster did not answer the last time.
    pub(super) silent: bool,
}

const HELP: &str = "\
 1 2 3, Tab       services, edges, faults
 ↑ ↓, j k         choose a row; PgUp, PgDn, Home, End
 Enter            details of the row
 e                explain: why it works or does not, from both ends
 Esc, q           back; q here ends the mesh
 Ctrl-C           end the mesh

Rates are those of the last second, faults those of the last minute.
The same from another terminal: weft stat, weft explain FROM TO.";

impl State {
    pub(super) fn new(mesh: &str, colours: bool) -> Self {
        State {
            mesh: mesh.to_owned(),
            colours,
            tab: Tab::Edges,
            services: Vec::new(),
            edges: Vec::new(),
            faults: Vec::new(),
            selected: [TableState::new(), TableState::new(), TableState::new()],
            sheet: None,
            counted: false,
            silent: false,
        }
    }

    /// What was seen. A selection stays with what it was on, wherever that stands now.
    pub(super) fn take(&mut self, edges: Option<Vec<Edge>>, faults: Vec<JournalEntry>) {
        let on = TABS.map(|tab| self.key_of(tab));
        self.silent = false;
        if let Some(edges) = edges {
            self.counted = true;
            self.services = services(&edges);
            self.edges = edges;
        }
        self.faults = folded(faults);
        for (n, (tab, on)) in TABS.into_iter().zip(on).enumerate() {
            let keys: Vec<String> = (0..self.rows(tab)).map(|row| self.key(tab, row)).collect();
            let at = on.and_then(|on| keys.iter().position(|key| *key == on));
            let kept = self.selected[n].selected().map(|row| row.min(keys.len().saturating_sub(1)));
            self.selected[n].select(if keys.is_empty() { None } else { at.or(kept).or(Some(0)) });
        }
    }

    pub(super) fn silent(&mut self) {
        self.silent = true;
    }

    /// An explanation has come. Whoever has closed its sheet does not want it any more.
    pub(super) fn explained(&mut self, text: &str) {
        if let Some(sheet) = self.sheet.as_mut().filter(|sheet| sheet.waits) {
            sheet.waits = false;
            text.clone_into(&mut sheet.text);
            // The verdict is at the end, below what it rests on.
            sheet.scroll = u16::MAX;
        }
    }

    pub(super) fn on_key(&mut self, key: KeyEvent) -> Ask {
        if key.kind == KeyEventKind::Release {
            return Ask::Nothing;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Ask::Quit } else { Ask::Nothing };
        }
        if let Some(sheet) = &mut self.sheet {
            match key.code {
                KeyCode::Esc | KeyCode::Char('q') | KeyCode::Enter | KeyCode::Backspace => self.sheet = None,
                KeyCode::Down | KeyCode::Char('j') => sheet.scroll = sheet.scroll.saturating_add(1),
                KeyCode::Up | KeyCode::Char('k') => sheet.scroll = sheet.scroll.saturating_sub(1),
                KeyCode::PageDown | KeyCode::Char(' ') => sheet.scroll = sheet.scroll.saturating_add(10),
                KeyCode::PageUp => sheet.scroll = sheet.scroll.saturating_sub(10),
                KeyCode::Home => sheet.scroll = 0,
                _ => {}
            }
            return Ask::Nothing;
        }
        let rows = self.rows(self.tab);
        let row = self.row();
        let choose = |row: usize| (rows > 0).then(|| row.min(rows - 1));
        match key.code {
            KeyCode::Char('q') => return Ask::Quit,
            KeyCode::Char('1') => self.tab = Tab::Services,
            KeyCode::Char('2') => self.tab = Tab::Edges,
            KeyCode::Char('3') => self.tab = Tab::Faults,
            KeyCode::Tab | KeyCode::Right => self.tab = TABS[(self.number() + 1) % TABS.len()],
            KeyCode::BackTab | KeyCode::Left => {
                self.tab = TABS[(self.number() + TABS.len() - 1) % TABS.len()]
            }
            KeyCode::Down | KeyCode::Char('j') => self.choose(choose(row.map_or(0, |row| row + 1))),
            KeyCode::Up | KeyCode::Char('k') => {
                self.choose(choose(row.map_or(0, |row| row.saturating_sub(1))))
            }
            KeyCode::PageDown => self.choose(choose(row.map_or(0, |row| row + 10))),
            KeyCode::PageUp => self.choose(choose(row.map_or(0, |row| row.saturating_sub(10)))),
            KeyCode::Home => self.choose(choose(0)),
            KeyCode::End => self.choose(choose(usize::MAX)),
            KeyCode::Char('?' | 'h') => {
                self.sheet = Some(Sheet { title: "keys".into(), text: HELP.into(), ..Sheet::default() });
            }
            KeyCode::Enter => self.sheet = self.details(),
            KeyCode::Char('e') => {
                if let Some((from, to)) = self.path() {
                    let title = format!("explain {from} {to}");
                    let text = "asking both proxies, the controller and the journal …".to_owned();
                    self.sheet = Some(Sheet { title, text, scroll: 0, waits: true });
                    return Ask::Path { from, to };
                }
                self.sheet = self.details();
            }
            _ => {}
        }
        Ask::Nothing
    }

    pub(super) fn number(&self) -> usize {
        TABS.iter().position(|tab| *tab == self.tab).expect("one of the tabs")
    }

    pub(super) fn rows(&self, tab: Tab) -> usize {
        match tab {
            Tab::Services => self.services.len(),
            Tab::Edges => self.edges.len(),
            Tab::Faults => self.faults.len(),
        }
    }

    fn row(&self) -> Option<usize> {
        self.selected[self.number()].selected().filter(|row| *row < self.rows(self.tab))
    }

    fn choose(&mut self, row: Option<usize>) {
        let number = self.number();
        self.selected[number].select(row);
    }

    fn key_of(&self, tab: Tab) -> Option<String> {
        let number = TABS.iter().position(|t| *t == tab)?;
        let row = self.selected[number].selected().filter(|row| *row < self.rows(tab))?;
        Some(self.key(tab, row))
    }

    fn key(&self, tab: Tab, row: usize) -> String {
        match tab {
            Tab::Services => self.services[row].name.clone(),
            Tab::Edges => {
                let edge = &self.edges[row];
                format!("{} {} {}", edge.from, edge.to, edge.identity.as_deref().unwrap_or_default())
            }
            Tab::Faults => {
                let row = &self.faults[row];
                format!("{} {} {}", row.fault.code, row.source, row.subject)
            }
        }
    }

    /// Both ends of what the row is about.
    fn path(&self) -> Option<(String, String)> {
        let row = self.row()?;
        match self.tab {
            Tab::Services => {
                let service = &self.services[row];
                Some((service.callers.first()?.clone(), service.name.clone()))
            }
            Tab::Edges => Some((self.edges[row].from.clone(), self.edges[row].to.clone())),
            Tab::Faults => {
                let row = &self.faults[row];
                let to = row.fault.peer.as_ref().or(row.fault.subject.as_ref()).unwrap_or(&row.subject);
                // A pod that says so of something that can be asked about: `shop/web-1` of `store.shop.svc…:80`.
                (row.source.contains('/') && !to.is_empty()).then(|| (row.source.clone(), to.clone()))
            }
        }
    }

    fn details(&self) -> Option<Sheet> {
        let row = self.row()?;
        let (title, text) = match self.tab {
            Tab::Services => {
                let s = &self.services[row];
                let text = format!(
                    "called by   {}\nrequests    {:.1} a second\nsuccess     {}\np99         {} (of the slowest caller)\nmutual TLS  {}",
                    s.callers.join("\n            "),
                    s.requests_per_second,
                    percent(s.success),
                    ms(s.p99_ms),
                    if s.plaintext { "not with every caller" } else { "with every caller" },
                );
                (s.name.clone(), text)
            }
            Tab::Edges => {
                let e = &self.edges[row];
                let text = format!(
                    "from         {}\nto           {}\nidentity     {}\nrequests     {:.1} a second\nsuccess      {}\nlatency      p50 {}, p95 {}, p99 {}\nconnections  {:.0} open",
                    e.from,
                    e.to,
                    e.identity.as_deref().unwrap_or("none: plaintext"),
                    e.requests_per_second,
                    percent(e.success),
                    ms(e.p50_ms),
                    ms(e.p95_ms),
                    ms(e.p99_ms),
                    e.open_connections,
                );
                (format!("{} → {}", e.from, e.to), text)
            }
            Tab::Faults => {
                let row = &self.faults[row];
                (row.fault.code.clone(), fault_details(row))
            }
        };
        Some(Sheet { title, text, ..Sheet::default() })
    }
}

fn fault_details(row: &FaultRow) -> String {
    let fault = &row.fault;
    let name = Code::find(&fault.code).map_or("", Code::name);
    let mut lines = vec![format!("{} {name}: {}", fault.code, fault.says), String::new()];
    let mut put = |what: &str, value: &str| {
        if !value.is_empty() {
            lines.push(format!("{what:<10}{value}"));
        }
    };
    put("times", &format!("{} in the last minute", row.count));
    put("told by", &row.source);
    put("about", fault.subject.as_deref().unwrap_or(&row.subject));
    put("peer", fault.peer.as_deref().unwrap_or_default());
    for (what, value) in &fault.facts {
        put("evidence", &format!("{what}={value}"));
    }
    for cause in &fault.causes {
        put("because", cause);
    }
    put("blame", &fault.blame);
    put("retry", &fault.retry);
    put("remedy", &fault.remedy);
    lines.join("\n")
}

pub(super) fn percent(share: Option<f64>) -> String {
    share.map_or("-".into(), |share| format!("{:.1}%", share * 100.0))
}

pub(super) fn ms(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{value:.0}ms"))
}

/// By what is called, the busiest first.
fn services(edges: &[Edge]) -> Vec<Service> {
    let mut by_name: BTreeMap<&str, Vec<&Edge>> = BTreeMap::new();
    for edge in edges {
        by_name.entry(&edge.to).or_default().push(edge);
    }
    let mut services: Vec<Service> = by_name
        .into_iter()
        .map(|(name, edges)| {
            let requests: f64 = edges.iter().map(|e| e.requests_per_second).sum();
            let weighed = edges.iter().filter_map(|e| Some(e.success? * e.requests_per_second)).sum::<f64>();
            let mut callers: Vec<String> = edges.iter().map(|e| e.from.clone()).collect();
            callers.dedup();
            Service {
                name: name.to_owned(),
                callers,
                requests_per_second: requests,
                success: (requests > 0.0).then(|| weighed / requests),
                p99_ms: edges.iter().filter_map(|e| e.p99_ms).reduce(f64::max),
                plaintext: edges.iter().any(|e| e.identity.is_none()),
            }
        })
        .collect();
    services
        .sort_by(|a, b| b.requests_per_second.total_cmp(&a.requests_per_second).then(a.name.cmp(&b.name)));
    services
}

/// Equal ones once, the most frequent first.
fn folded(entries: Vec<JournalEntry>) -> Vec<FaultRow> {
    let mut rows: BTreeMap<(String, String, String), FaultRow> = BTreeMap::new();
    for entry in entries {
        let Some(fault) = entry.fault else { continue };
        let key = (fault.code.clone(), entry.source.clone(), entry.subject.clone());
        let row = rows.entry(key).or_insert_with(|| FaultRow {
            source: entry.source,
            subject: entry.subject,
            count: 0,
            last_unix_ms: 0,
            fault: fault.clone(),
        });
        row.count += 1;
        if entry.at_unix_ms >= row.last_unix_ms {
            row.last_unix_ms = entry.at_unix_ms;
            row.fault = fault;
        }
    }
    let mut rows: Vec<FaultRow> = rows.into_values().collect();
    rows.sort_by(|a, b| b.count.cmp(&a.count).then(b.last_unix_ms.cmp(&a.last_unix_ms)));
    rows
}
