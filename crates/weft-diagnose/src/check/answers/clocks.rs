//! Do the clocks agree? Certificates are valid by the clock of whoever looks at them.

use super::{
    super::{
        Answer, Category, Check, Findings, Reply,
        facts::{Facts, Skew},
    },
    proxies,
};

/// Certificates are made to be valid 20 s and more before they are signed; journals of several machines are read together.
const MOST_MS: u64 = 15_000;

const MEANS: &str = "Certificates that one side has just signed are not valid yet for the other, or have ended there already; timelines of several machines show causes after their effects.";
const REMEDY: &str =
    "Set the clocks of all nodes by NTP, and look whether the time service runs (`timedatectl`).";

pub(in super::super) const CLOCK: Category = Category {
    name: "weft-clock",
    checks: &[
        Check::warning("weft-clock-api", "the clocks of this machine and the API server agree", api).doc(
            "This machine's clock or the API server's is wrong: ages and expiries in these answers are, too.",
            REMEDY,
        ),
        Check::error(
            "weft-clock-controller",
            "the clocks of the controller and the API server agree",
            controller,
        )
        .doc(MEANS, REMEDY),
        Check::error("weft-clock-proxies", "the clocks of the proxies and the API server agree", of_proxies)
            .doc(MEANS, REMEDY),
    ],
};

/// How far this clock is from the other, if that is too far for certain: what is uncertain speaks for it.
fn apart(one: Skew, other: Skew) -> Option<String> {
    let ahead = one.ahead_ms.saturating_sub(other.ahead_ms);
    let within = one.within_ms.saturating_add(other.within_ms);
    let certain = ahead.unsigned_abs().saturating_sub(within);
    let (seconds, side) = (ahead.unsigned_abs() / 1000, if ahead > 0 { "ahead" } else { "behind" });
    (certain > MOST_MS).then(|| format!("{seconds} s {side}"))
}

const OWN: Skew = Skew { ahead_ms: 0, within_ms: 0 };

/// Also asked about before an installation.
pub(super) fn api(facts: &Facts) -> Reply {
    match apart(*facts.api_clock.as_ref()?, OWN) {
        None => Ok(Answer::Good),
        Some(how) => Answer::bad(format!("the API server's clock is {how} of this machine's")),
    }
}

fn controller(facts: &Facts) -> Reply {
    let Some(controller) = &facts.controller else { return Ok(Answer::Idle) };
    let Some(clock) = controller.as_ref()?.clock else {
        return Ok(Answer::Unknown("the controller did not say what time it is".into()));
    };
    match apart(clock, *facts.api_clock.as_ref()?) {
        None => Ok(Answer::Good),
        Some(how) => Answer::bad(format!("the controller's clock is {how} of the API server's")),
    }
}

fn of_proxies(facts: &Facts) -> Reply {
    if facts.proxies.is_empty() {
        return Ok(Answer::Idle);
    }
    let api = *facts.api_clock.as_ref()?;
    let mut found = Findings::default();
    for (pod, read) in &facts.proxies {
        match read.as_ref().map(|proxy| proxy.clock) {
            Ok(Some(clock)) => found.problems.extend(apart(clock, api).map(|how| format!("{pod}: {how}"))),
            Ok(None) => found.unknown(format!("{pod}: it did not say what time it is")),
            Err(_) => {}
        }
    }
    proxies::unknown(facts, &mut found);
    found.reply("clocks that differ from the API server's:")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::facts::healthy::healthy;

    #[test]
    fn what_is_uncertain_speaks_for_a_clock() {
        let of = |ahead_ms, within_ms| apart(Skew { ahead_ms, within_ms }, OWN);
        assert_eq!(of(15_000, 0), None);
        assert_eq!(of(15_400, 500), None);
        assert_eq!(of(-16_000, 500), Some("16 s behind".into()));
        assert_eq!(of(600_000, 2_000), Some("600 s ahead".into()));
        assert_eq!(
            apart(Skew { ahead_ms: 600_000, within_ms: 1 }, Skew { ahead_ms: 599_000, within_ms: 1 }),
            None
        );
        assert_eq!(of(i64::MIN, u64::MAX), None);
    }

    #[test]
    fn each_clock_is_compared_with_the_api_servers() {
        let mut facts = healthy();
        for check in CLOCK.checks {
            assert_eq!(check.answer(&facts), Answer::Good, "{}", check.id);
        }
        let wrong = Skew { ahead_ms: -60_000, within_ms: 500 };
        facts.proxies.values_mut().next().unwrap().as_mut().unwrap().clock = Some(wrong);
        assert!(matches!(of_proxies(&facts), Ok(Answer::Bad(why)) if why.contains("60 s behind")));
        facts.api_clock = Ok(wrong);
        assert!(matches!(api(&facts), Ok(Answer::Bad(_))));
        assert!(matches!(controller(&facts), Ok(Answer::Bad(why)) if why.contains("60 s ahead")));
    }
}
