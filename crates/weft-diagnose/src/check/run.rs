//! Asks the checks, in order, over facts that were gathered.

use super::{Answer, Check, Severity, facts::Facts, table::Scope};

/// The outcomes of one category.
#[derive(Clone, Debug)]
pub struct Section {
    pub name: String,
    pub lines: Vec<Line>,
}

/// One line of the result: of our own checks, or of an extension's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub says: String,
    pub state: State,
    /// What is wrong, or why it is not known.
    pub why: String,
    /// Where more is said.
    pub hint: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Good,
    Warning,
    Error,
    /// It could not be asked; how bad that is depends on how bad it would be if it did not hold.
    Unknown(Severity),
}

/// The whole result.
#[derive(Clone, Debug, Default)]
pub struct Results {
    pub sections: Vec<Section>,
    /// A fatal check did not hold: what comes after it was not asked.
    pub stopped: bool,
    /// Something that may still become good is not.
    pub may_change: bool,
}

/// Asks every check of the scope, up to the first that is fatal and does not hold.
pub fn run(scope: Scope, facts: &Facts) -> Results {
    let mut results = Results::default();
    for category in scope.categories() {
        let mut lines = Vec::new();
        for check in category.checks {
            let answer = check.answer(facts);
            let good = matches!(answer, Answer::Good | Answer::Idle);
            results.may_change |= check.retried && !good;
            results.stopped = check.fatal && matches!(answer, Answer::Bad(_));
            lines.extend(line(check, answer));
            if results.stopped {
                break;
            }
        }
        if !lines.is_empty() {
            results.sections.push(Section { name: category.name.to_owned(), lines });
        }
        if results.stopped {
            break;
        }
    }
    results
}

/// `None` for a check that is about nothing here.
fn line(check: &Check, answer: Answer) -> Option<Line> {
    let (state, why) = match answer {
        Answer::Idle => return None,
        Answer::Good => (State::Good, String::new()),
        Answer::Bad(why) if check.severity == Severity::Error => (State::Error, why),
        Answer::Bad(why) => (State::Warning, why),
        Answer::Unknown(why) => (State::Unknown(check.severity), why),
    };
    let hint = if state == State::Good { String::new() } else { format!("docs/checks.md#{}", check.id) };
    Some(Line { says: check.says.to_owned(), state, why, hint })
}

impl State {
    /// Whether the exit status must tell of it.
    pub fn is_failure(self) -> bool {
        matches!(self, State::Error | State::Unknown(Severity::Error))
    }
}

impl Results {
    pub fn success(&self) -> bool {
        !self.sections.iter().flat_map(|section| &section.lines).any(|line| line.state.is_failure())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::facts::{Unread, healthy::healthy};

    fn states(results: &Results) -> Vec<(String, State)> {
        let lines = results.sections.iter().flat_map(|section| &section.lines);
        lines.filter(|line| line.state != State::Good).map(|line| (line.says.clone(), line.state)).collect()
    }

    #[test]
    fn a_healthy_mesh_is_good_but_for_what_is_newest() {
        for scope in [Scope::ControlPlane, Scope::Proxies] {
            let results = run(scope, &healthy());
            assert!(results.success() && !results.stopped && !results.may_change);
            for (says, state) in states(&results) {
                assert!(says.contains("latest version") || says.contains("up-to-date"), "{says}");
                assert_eq!(state, State::Unknown(Severity::Warning));
            }
        }
    }

    #[test]
    fn what_could_not_be_read_is_never_good() {
        let mut facts = healthy();
        let gone = || Unread::Silent("gone".into());
        facts.kubernetes = Err(gone());
        assert!(run(Scope::ControlPlane, &facts).stopped, "without an API there is nothing to ask");
        let mut facts = healthy();
        facts.pods = Err(gone());
        facts.namespaces = Err(gone());
        facts.services = Err(gone());
        facts.policies.servers = Err(gone());
        facts.plane.config = Err(gone());
        facts.plane.roots = Err(gone());
        facts.plane.issuer = Err(gone());
        facts.controller = Some(Err(gone()));
        facts.api_clock = Err(gone());
        for proxy in facts.proxies.values_mut() {
            *proxy = Err(gone());
        }
        let results = run(Scope::Proxies, &facts);
        assert!(!results.success());
        let good: Vec<&str> = results
            .sections
            .iter()
            .flat_map(|section| &section.lines)
            .filter(|line| line.state == State::Good)
            .map(|line| line.says.as_str())
            .collect();
        // What remains good was read: definitions, names, webhooks.
        for says in &good {
            let known = [
                "client",
                "query",
                "Kubernetes API version",
                "Gateway",
                "Webhook",
                "webhook",
                "cert is valid",
                "Definitions",
                "network policies can",
            ];
            assert!(known.iter().any(|word| says.contains(word)), "{says}");
        }
    }

    #[test]
    fn nothing_is_asked_after_a_fatal_one() {
        let mut facts = healthy();
        facts.plane.config = Ok(None);
        facts.namespaces = Ok(Vec::new());
        let results = run(Scope::ControlPlane, &facts);
        assert!(results.stopped && !results.success());
        assert_eq!(results.sections.last().unwrap().name, "linkerd-config");
        assert_eq!(results.sections.last().unwrap().lines.len(), 1);
    }

    #[test]
    fn what_may_become_good_is_worth_waiting_for() {
        let mut facts = healthy();
        facts.controller.as_mut().unwrap().as_mut().unwrap().waits = Some("a usable issuer".into());
        assert!(run(Scope::ControlPlane, &facts).may_change);
    }
}
