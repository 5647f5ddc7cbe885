//! Checks of a whole mesh: is it healthy, and if not, what is wrong and what to do.
//!
//! [`gather`] asks the API, the controller and the proxies and puts what they said into [`facts::Facts`]. Every check is a pure
//! function over these. What could not be read makes a check unknown, never good: see [`Unread`](facts::Unread).

mod answers;
pub mod docs;
pub mod facts;
pub mod gather;
mod names;
pub mod report;
pub mod run;
pub mod table;

use facts::{Facts, Unread};

/// How bad it is when a check does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The mesh does not work as it should: the exit status says so.
    Error,
    /// Something to look at.
    Warning,
}

/// One question about the mesh.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Its anchor in `docs/checks.md`. Several checks may share one.
    pub id: &'static str,
    /// What holds where it is good.
    pub says: &'static str,
    pub severity: Severity,
    /// Where it is bad, nothing after it can be meaningful.
    pub fatal: bool,
    /// It may become good by itself: it is asked again for as long as the user waits.
    pub retried: bool,
    pub ask: fn(&Facts) -> Reply,
    /// What it means when it does not hold, and what that comes from.
    pub means: &'static str,
    pub remedy: &'static str,
}

/// Checks that are shown together.
#[derive(Clone, Copy, Debug)]
pub struct Category {
    pub name: &'static str,
    pub checks: &'static [Check],
}

/// What a check finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Good,
    Bad(String),
    /// It cannot be known, for this reason.
    Unknown(String),
    /// There is nothing here that it could be about.
    Idle,
}

/// Facts that were not read end a check with `?`.
pub type Reply = Result<Answer, Unread>;

impl Check {
    const fn error(id: &'static str, says: &'static str, ask: fn(&Facts) -> Reply) -> Self {
        let (severity, fatal, retried) = (Severity::Error, false, false);
        Check { id, says, severity, fatal, retried, ask, means: "", remedy: "" }
    }

    const fn warning(id: &'static str, says: &'static str, ask: fn(&Facts) -> Reply) -> Self {
        Check { severity: Severity::Warning, ..Self::error(id, says, ask) }
    }

    const fn fatal(self) -> Self {
        Check { fatal: true, ..self }
    }

    const fn retried(self) -> Self {
        Check { retried: true, ..self }
    }

    const fn doc(self, means: &'static str, remedy: &'static str) -> Self {
        Check { means, remedy, ..self }
    }

    /// The answer to it.
    pub fn answer(&self, facts: &Facts) -> Answer {
        (self.ask)(facts).unwrap_or_else(|unread| Answer::Unknown(unread.to_string()))
    }
}

impl Answer {
    fn bad(text: impl Into<String>) -> Reply {
        Ok(Answer::Bad(text.into()))
    }

    /// Good if this holds.
    fn if_so(good: bool, otherwise: impl FnOnce() -> String) -> Reply {
        Ok(if good { Answer::Good } else { Answer::Bad(otherwise()) })
    }
}

/// What a check over many things found.
#[derive(Clone, Debug, Default)]
struct Findings {
    problems: Vec<String>,
    unknown: Vec<String>,
}

/// Lines of one answer.
const SHOWN: usize = 12;

impl Findings {
    fn problem(&mut self, text: impl Into<String>) {
        self.problems.push(text.into());
    }

    fn unknown(&mut self, text: impl Into<String>) {
        self.unknown.push(text.into());
    }

    /// `heading` introduces the problems.
    fn answer(self, heading: &str) -> Answer {
        match (self.problems.is_empty(), self.unknown.is_empty()) {
            (true, true) => Answer::Good,
            (true, false) => Answer::Unknown(list("not known:", &self.unknown)),
            (false, true) => Answer::Bad(list(heading, &self.problems)),
            (false, false) => {
                Answer::Bad(list(heading, &self.problems) + "\n" + &list("not known:", &self.unknown))
            }
        }
    }

    fn reply(self, heading: &str) -> Reply {
        Ok(self.answer(heading))
    }
}

impl FromIterator<String> for Findings {
    fn from_iter<I: IntoIterator<Item = String>>(problems: I) -> Self {
        Findings { problems: problems.into_iter().collect(), unknown: Vec::new() }
    }
}

/// A heading and its lines; of very many only some.
fn list(heading: &str, lines: &[String]) -> String {
    let more = lines.len().saturating_sub(SHOWN);
    let shown = lines.iter().take(SHOWN).map(|line| format!("\n* {}", line.replace('\n', "\n  ")));
    let rest = (more > 0).then(|| format!("\n* and {more} more"));
    std::iter::once(heading.to_owned()).chain(shown).chain(rest).collect()
}
