//! Did anything stand still?

use super::{
    super::{Answer, Category, Check, Findings, Reply, facts::Facts},
    faults::{ago, journal},
    proxies,
};
use std::time::Duration;
use weft_fault::Code;

pub(in super::super) const STALLS: Category = Category {
    name: "weft-stalls",
    checks: &[
        Check::error("weft-controller-follows", "the controller hears of changes", follows).doc(
            "The controller has not heard of the Kubernetes API for a while: what proxies are told is as old as that.",
            "See whether the API server is overloaded or not reached from the controller's pod; its log says since when.",
        ),
        Check::warning("weft-stalls", "no proxy stood still in the last minutes", stood_still).doc(
            "The watchdog of a proxy saw that the process or a worker did not run for a second or longer. Requests waited, and peers may have given up: what they log names the victim, not the cause.",
            "The message says what the kernel knows: a CPU quota that was used up wants a higher limit; other processes, memory or disk want room on the node.",
        ),
        Check::warning("weft-throttled", "no proxy is held back by its CPU quota", throttled).doc(
            "A proxy was out of its CPU quota for more than a twentieth of its life: requests wait for the next period, 100 ms at a time.",
            "Raise or remove its CPU limit: `config.linkerd.io/proxy-cpu-limit`.",
        ),
    ],
};

/// Shorter ones are the business of whoever looks for latency.
const WORTH_TELLING_MS: u64 = 1_000;
/// Watches are told something every minute, be it that nothing happened.
const SILENCE_SECONDS: f64 = 100.0;
/// Of a proxy's life.
const THROTTLED: f64 = 0.05;

fn follows(facts: &Facts) -> Reply {
    let Some(controller) = &facts.controller else { return Ok(Answer::Idle) };
    let samples = &controller.as_ref()?.samples;
    let silence = samples.iter().find(|sample| sample.name == "weft_api_silence_seconds").map(|s| s.value);
    match silence {
        None => Ok(Answer::Unknown("the controller does not tell".into())),
        Some(seconds) => Answer::if_so(seconds < SILENCE_SECONDS, || {
            format!("the API has not answered the controller for {seconds:.0} s")
        }),
    }
}

fn stood_still(facts: &Facts) -> Reply {
    let Some(journal) = journal(facts)? else { return Ok(Answer::Idle) };
    let mut found = Findings::default();
    for entry in journal {
        let Some(fault) = entry.fault.as_ref().filter(|fault| fault.code == Code::Stalled.id()) else {
            continue;
        };
        let length =
            fault.fact("length_ms").and_then(|ms| ms.parse::<u64>().ok()).unwrap_or(WORTH_TELLING_MS);
        if length >= WORTH_TELLING_MS && facts.is_asked_name(&entry.source) {
            let (subject, why) = (
                fault.subject.as_deref().unwrap_or("it"),
                fault.fact("why").unwrap_or("for a reason not known"),
            );
            let ago = ago(facts, entry.at_unix_ms);
            found.problem(format!("{}: {subject} did not run for {length} ms, {ago}: {why}", entry.source));
        }
    }
    found.reply("stood still:")
}

fn throttled(facts: &Facts) -> Reply {
    if facts.proxies.is_empty() {
        return Ok(Answer::Idle);
    }
    let now = Duration::from_millis(facts.now_unix_ms).as_secs_f64();
    let mut found = Findings::default();
    for (pod, read) in &facts.proxies {
        let Ok(proxy) = read else { continue };
        let life = proxy.value("process_start_time_seconds").map(|start| now - start);
        let (Some(held), Some(life)) = (proxy.value("weft_cgroup_throttled_seconds_total"), life) else {
            continue;
        };
        if life > 0.0 && held / life > THROTTLED {
            found.problem(format!("{pod}: {:.0} % of the time", held / life * 100.0));
        }
    }
    proxies::unknown(facts, &mut found);
    found.reply("out of quota:")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        check::facts::healthy::{fault, healthy},
        prom,
    };
    use weft_kube::meta::ObjectName;

    #[test]
    fn a_stall_is_told_with_its_cause() {
        let mut facts = healthy();
        assert_eq!(stood_still(&facts), Ok(Answer::Good));
        let short = fault(&facts, 90, "shop/web-1", Code::Stalled, &[("length_ms", "700")]);
        let long = fault(
            &facts,
            30,
            "shop/web-1",
            Code::Stalled,
            &[("length_ms", "52000"), ("why", "the CPU quota was used up")],
        );
        let controller = facts.controller.as_mut().unwrap().as_mut().unwrap();
        controller.journal = Ok(vec![short, long]);
        let Ok(Answer::Bad(said)) = stood_still(&facts) else { panic!() };
        assert!(said.contains("did not run for 52000 ms, 30 s ago: the CPU quota was used up"), "{said}");
        assert!(!said.contains("700"), "{said}");
        facts.asked.namespace = Some("other".into());
        assert_eq!(stood_still(&facts), Ok(Answer::Good));
    }

    #[test]
    fn a_controller_that_hears_nothing_and_a_proxy_out_of_quota() {
        let mut facts = healthy();
        assert_eq!((follows(&facts), throttled(&facts)), (Ok(Answer::Good), Ok(Answer::Good)));
        facts.controller.as_mut().unwrap().as_mut().unwrap().samples =
            prom::parse("weft_api_silence_seconds 400\n", |_| true);
        assert!(matches!(follows(&facts), Ok(Answer::Bad(why)) if why.contains("400 s")));
        let start = facts.now_unix_ms / 1000 - 1000;
        let web = facts.proxies.get_mut(&ObjectName::new("shop", "web-1")).unwrap().as_mut().unwrap();
        web.samples = prom::parse(
            &format!("process_start_time_seconds {start}\nweft_cgroup_throttled_seconds_total 200\n"),
            |_| true,
        );
        assert!(matches!(throttled(&facts), Ok(Answer::Bad(why)) if why.contains("shop/web-1: 20 %")));
    }
}
