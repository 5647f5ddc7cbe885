//! What `weft up` shows on a terminal: services, edges and faults, kept current; a row's details, and why it is so.
//!
//! [`state`] holds what is shown and what keys do to it, [`draw`] how it looks; both know neither terminal nor cluster. Here
//! they meet: keys come from a thread, traffic and faults from the cluster, and whatever leaves this function, the terminal
//! is as it was.

mod draw;
mod state;

use crate::{commands::explain, screen, traffic};
use anyhow::Result;
use kube::Client;
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event},
};
use state::{Ask, State};
use std::{process::ExitCode, time::Duration};
use tokio::{sync::mpsc, task::JoinSet};

const REFRESH: Duration = Duration::from_secs(1);
/// How soon the thread that reads keys sees that nobody listens any more.
const KEY_WAIT: Duration = Duration::from_millis(100);
/// An explanation asks a dozen places, each with a deadline of its own.
const EXPLAIN_DEADLINE: Duration = Duration::from_secs(20);

/// Puts the terminal back, however it ends.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Shows the mesh until `q` or Ctrl-C.
pub(crate) async fn run(client: Client, mesh: &str) -> Result<ExitCode> {
    let mut terminal = ratatui::try_init()?;
    let _restore = Restore;
    terminal.clear()?;
    let mut keys = keys();
    let mut state = State::new(mesh, colours());
    let mut gathering = JoinSet::new();
    let mut explaining = JoinSet::new();
    let mut before = None;
    let mut tick = tokio::time::interval(REFRESH);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        show(&mut terminal, &mut state)?;
        tokio::select! {
            event = keys.recv() => match event {
                Some(Event::Key(key)) => match state.on_key(key) {
                    Ask::Nothing => {}
                    Ask::Quit => return Ok(ExitCode::SUCCESS),
                    Ask::Path { from, to } => {
                        explaining.abort_all();
                        let client = client.clone();
                        explaining.spawn(async move { explained(&client, &from, &to).await });
                    }
                },
                // Whatever else happened, a new size among it, is seen by drawing again.
                Some(_) => {}
                // The terminal cannot be read any more: it was closed.
                None => return Ok(ExitCode::SUCCESS),
            },
            // One at a time: a cluster that answers late is asked less often.
            _ = tick.tick(), if gathering.is_empty() => {
                let client = client.clone();
                gathering.spawn(async move { (traffic::scrape(&client, None, traffic::GLANCE).await, screen::faults(&client).await) });
            },
            Some(gathered) = gathering.join_next() => {
                let (snapshot, faults) = gathered?;
                if let Ok(now) = snapshot {
                    let edges = before.as_ref().map(|before| traffic::edges(before, &now));
                    state.take(edges, faults);
                    before = Some(now);
                } else {
                    state.silent();
                }
            },
            Some(text) = explaining.join_next() => if let Ok(text) = text {
                state.explained(&text);
            },
        }
    }
}

fn show(terminal: &mut DefaultTerminal, state: &mut State) -> Result<()> {
    terminal.draw(|frame| draw::screen(frame, state))?;
    Ok(())
}

async fn explained(client: &Client, from: &str, to: &str) -> String {
    match tokio::time::timeout(EXPLAIN_DEADLINE, explain::as_text(client, from, to)).await {
        Ok(Ok(text)) => text,
        Ok(Err(error)) => format!("{error:#}"),
        Err(_) => format!("no answer within {} s", EXPLAIN_DEADLINE.as_secs()),
    }
}

/// Keys and changes of size, read by a thread, since a terminal can only be waited for by blocking.
fn keys() -> mpsc::Receiver<Event> {
    let (out, keys) = mpsc::channel(16);
    std::thread::spawn(move || {
        while !out.is_closed() {
            let event = match event::poll(KEY_WAIT) {
                Ok(false) => continue,
                Ok(true) => event::read(),
                Err(_) => return,
            };
            let Ok(event) = event else { return };
            if out.blocking_send(event).is_err() {
                return;
            }
        }
    });
    keys
}

/// <https://no-color.org>: set and not empty means none.
fn colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
