//! `weft identity`: the trust roots, the issuer, and every proxy's certificate; and how roots are rotated.

mod cluster;
mod plan;

use crate::{files::read_text, mesh::Target};
use anyhow::{Context as _, Result, bail};
use cluster::{Cluster, Identity, NewIssuer};
use owo_colors::OwoColorize as _;
use plan::{Missing, Step, Told};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write as _,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, SystemTime},
};
use tokio::time::Instant;
use weft_control::{bootstrap::IdentityFiles, config::ControllerConfig};
use weft_tls::bundle::TrustBundle;

const LOOK: Duration = Duration::from_secs(1);
/// Roots that expire sooner deserve a word.
const SOON: Duration = Duration::from_secs(60 * 24 * 3600);

/// Show trust roots, issuer and proxies' certificates, or rotate the root.
#[derive(clap::Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  weft identity                   which roots are trusted, which signs, which proxies depend on which
  weft identity -o json
  weft identity rotate            a new root and issuer, step by step, with a check at each step
  weft identity trust east.example roots.pem      another cluster's roots, for its own identities only

Exit codes: 0 as it should be, 1 something is missing or expires within 60 days, 2 the question could not be asked."
)]
pub(crate) struct IdentityCommand {
    #[command(subcommand)]
    sub: Option<Sub>,
    #[command(flatten)]
    target: Target,
    /// A table for people, or JSON.
    #[arg(short, long, value_enum, default_value_t)]
    output: super::stat::Output,
}

#[derive(clap::Subcommand, Debug)]
enum Sub {
    Rotate(Rotate),
    Trust(Trust),
}

/// Replace the trust root and the issuer without restarting a proxy.
///
/// Three steps: the new root is trusted beside the old one; the new issuer signs; the old root is no longer trusted. Before each of the last
/// two every proxy is asked whether it is ready. Whoever is interrupted calls the command again: it goes on where it was.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft identity rotate                                  a new root is made, and its key forgotten
  weft identity rotate --trust-anchor ca.crt --issuer-certificate issuer.crt --issuer-key issuer.key
  weft identity rotate --timeout 30s                    go as far as possible, then say who is missing
  weft identity rotate --recover                        the root has expired: do not wait for proxies that cannot answer

Exit codes: 0 done, 1 some proxies are missing (they are listed), 2 it could not be begun.")]
struct Rotate {
    #[command(flatten)]
    target: Target,
    /// The new root, in PEM; made anew without.
    #[arg(long, value_name = "FILE", requires_all = ["issuer_certificate", "issuer_key"])]
    trust_anchor: Option<PathBuf>,
    /// The new issuer's certificate, in PEM, with those between it and the root.
    #[arg(long, value_name = "FILE", requires = "trust_anchor")]
    issuer_certificate: Option<PathBuf>,
    /// The new issuer's key, in PEM.
    #[arg(long, value_name = "FILE", requires = "trust_anchor")]
    issuer_key: Option<PathBuf>,
    /// How long each step waits for the proxies.
    #[arg(long, default_value = "10m", value_parser = crate::time::duration, value_name = "DURATION")]
    timeout: Duration,
    /// Go on although proxies are missing: they are cut off until they renew.
    #[arg(long)]
    force: bool,
    /// The old root or issuer has expired: trust the new one and sign with it at once, then wait.
    #[arg(long)]
    recover: bool,
}

/// Trust another trust domain's roots, for its own identities only; or no longer.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft identity trust east.example roots.pem      workloads of the other cluster can prove who they are
  weft identity trust east.example --remove

Exit codes: 0 done, 2 it could not be done.")]
struct Trust {
    #[command(flatten)]
    target: Target,
    /// The trust domain: what follows the control plane's namespace in its identities.
    domain: String,
    /// Its roots, in PEM.
    #[arg(value_name = "FILE", required_unless_present = "remove", conflicts_with = "remove")]
    roots: Option<PathBuf>,
    /// Trust it no longer.
    #[arg(long)]
    remove: bool,
}

impl Trust {
    async fn run(self) -> Result<ExitCode> {
        let cluster = Cluster::new(self.target.client().await?, &self.target.linkerd_namespace);
        let bundle = match &self.roots {
            Some(path) => {
                let text = read_text(path)?;
                Some(TrustBundle::parse(&text).with_context(|| path.display().to_string())?)
            }
            None => None,
        };
        cluster.trust_foreign(&self.domain, bundle.as_ref()).await?;
        match bundle {
            Some(bundle) => say(&format!(
                "{} roots of {} are trusted for its own identities; proxies follow within a minute or two",
                bundle.anchors().len(),
                self.domain
            )),
            None => say(&format!("{} is no longer trusted", self.domain)),
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl IdentityCommand {
    pub(crate) async fn run(self) -> Result<ExitCode> {
        match self.sub {
            Some(Sub::Rotate(rotate)) => return rotate.run().await,
            Some(Sub::Trust(trust)) => return trust.run().await,
            None => {}
        }
        let cluster = Cluster::new(self.target.client().await?, &self.target.linkerd_namespace);
        let found = cluster.read().await?;
        let problems = problems(&found);
        let mut out = anstream::stdout().lock();
        match self.output {
            super::stat::Output::Json => {
                writeln!(out, "{}", serde_json::to_string_pretty(&as_json(&found, &problems))?)?
            }
            super::stat::Output::Table => show(&mut out, &found, &problems)?,
        }
        Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

impl Rotate {
    async fn run(self) -> Result<ExitCode> {
        let cluster = Cluster::new(self.target.client().await?, &self.target.linkerd_namespace);
        let mut begun = false;
        loop {
            let found = cluster.read().await?;
            match found.state.step() {
                Step::Begin if begun => {
                    say("done: one root signs and is trusted, and no proxy depends on another");
                    return Ok(ExitCode::SUCCESS);
                }
                Step::Begin => {
                    let next = self.new_issuer()?;
                    let leaving = self.leaving(&found)?;
                    cluster.keep(&next, &leaving).await?;
                    say("a new root and an issuer below it are ready");
                }
                Step::Trust(root) => {
                    let next = found.next.as_ref().context("the new issuer is gone")?;
                    cluster.trust(&found.roots.joined(&TrustBundle::parse(&next.root)?)?).await?;
                    say(&format!("step 1 of 3: the root {} is trusted, too", short(&root)));
                }
                Step::Sign { root, .. } => {
                    if !self.ready(&cluster, self.recover).await? {
                        return Ok(ExitCode::FAILURE);
                    }
                    let next = found.next.as_ref().context("the new issuer is gone")?;
                    cluster.sign_with(next).await?;
                    // First in the bundle: proxies renew soon when they see it change.
                    let first = found.roots.only(|anchor| anchor.sha256 == root)?;
                    cluster.trust(&first.joined(&found.roots)?).await?;
                    say(&format!("step 2 of 3: the issuer below {} signs", short(&root)));
                }
                Step::Remove { roots, .. } => {
                    if !self.ready(&cluster, false).await? {
                        return Ok(ExitCode::FAILURE);
                    }
                    cluster.finish(&found.roots.only(|anchor| !roots.contains(&anchor.sha256))?).await?;
                    let names: Vec<&str> = roots.iter().map(|root| short(root)).collect();
                    say(&format!("step 3 of 3: {} is no longer trusted", names.join(", ")));
                }
            }
            begun = true;
        }
    }

    /// Waits until no proxy is missing for the step that comes next. Says who is, if it was in vain.
    async fn ready(&self, cluster: &Cluster, at_once: bool) -> Result<bool> {
        let until = Instant::now() + self.timeout;
        let mut said = None;
        loop {
            let step = cluster.read().await?.state.step();
            let (Step::Sign { missing, .. } | Step::Remove { missing, .. }) = &step else {
                bail!("somebody else changed the roots meanwhile: {step}");
            };
            if missing.is_empty() || at_once {
                return Ok(true);
            }
            if Instant::now() >= until {
                list(missing);
                if self.force {
                    say("going on without them: they are cut off until they renew");
                }
                return Ok(self.force);
            }
            if said != Some(missing.len()) {
                say(&format!("  {step}: {} missing", missing.len()));
                said = Some(missing.len());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn new_issuer(&self) -> Result<NewIssuer> {
        let next = match (&self.trust_anchor, &self.issuer_certificate, &self.issuer_key) {
            (Some(root), Some(certificate), Some(key)) => NewIssuer {
                root: read_text(root)?,
                certificate: read_text(certificate)?,
                key: read_text(key)?,
            },
            _ => {
                let mut config = ControllerConfig::new([0, 0, 0, 0].into(), Vec::new());
                config.control_namespace.clone_from(&self.target.linkerd_namespace);
                let made = IdentityFiles::generate(&config)?;
                NewIssuer {
                    root: made.trust_roots,
                    certificate: made.issuer_certificate,
                    key: made.issuer_key,
                }
            }
        };
        next.check()?;
        Ok(next)
    }

    /// The roots that the new one replaces: the one that signs now, or, where none does, all that have expired.
    fn leaving(&self, found: &Identity) -> Result<BTreeSet<String>> {
        if let Some(root) = &found.state.issuer {
            return Ok(BTreeSet::from([root.clone()]));
        }
        if !self.recover {
            bail!(
                "the issuer in use leads to no valid root of the bundle; `weft identity` shows both. \
                 `--recover` replaces root and issuer at once"
            );
        }
        let now = SystemTime::now();
        Ok(found.roots.facts().filter(|root| root.not_after < now).map(|root| root.sha256).collect())
    }
}

fn list(missing: &Missing) {
    let mut err = anstream::stderr().lock();
    // Whoever closed standard error does not want to know.
    let _ = writeln!(err, "{} of the proxies are not ready for the next step:", missing.len());
    for (pod, why) in missing {
        let _ = writeln!(err, "  {} {pod}: {why}", "×".red());
    }
    let _ = writeln!(
        err,
        "call `weft identity rotate` again when they are, or with --force to go on without them"
    );
}

fn say(text: &str) {
    let mut out = anstream::stdout().lock();
    // A reader that went away stops nothing half way.
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// As much of a fingerprint as tells it from others.
fn short(fingerprint: &str) -> &str {
    fingerprint.get(..12).unwrap_or(fingerprint)
}

/// What an operator should look at.
fn problems(found: &Identity) -> Vec<String> {
    let mut problems = Vec::new();
    let now = SystemTime::now();
    for root in found.roots.facts() {
        let (name, left) =
            (format!("root {} ({})", short(&root.sha256), root.subject), root.not_after.duration_since(now));
        match left {
            Err(_) => problems.push(format!("{name} has expired: `weft identity rotate --recover`")),
            Ok(left) if left < SOON => {
                problems.push(format!("{name} expires in {}: `weft identity rotate`", days(left)))
            }
            Ok(_) => {}
        }
    }
    match &found.issuer {
        None => problems.push("the issuer cannot be read".into()),
        Some(issuer) if issuer.not_after < now => {
            problems.push(format!("the issuer ({}) has expired", issuer.subject))
        }
        Some(_) if found.state.issuer.is_none() => {
            problems.push("the issuer leads to no trusted root".into())
        }
        Some(_) => {}
    }
    let step = found.state.step();
    if step != Step::Begin {
        problems.push(format!("a rotation is under way, {step}: `weft identity rotate` goes on"));
    }
    for proxy in &found.state.proxies {
        match &proxy.told {
            Told::Roots { certificate: None, .. } => {
                problems.push(format!("{} has a certificate of no trusted root", proxy.pod));
            }
            Told::Silent(why) => problems.push(format!("{} does not answer: {why}", proxy.pod)),
            Told::Roots { .. } | Told::Nothing => {}
        }
    }
    problems
}

fn days(left: Duration) -> String {
    match left.as_secs() / 86_400 {
        0 => format!("{} h", left.as_secs() / 3_600),
        1 => "1 day".into(),
        days => format!("{days} days"),
    }
}

/// How many proxies' certificates lead to each root; the rest by what they say.
fn dependents(found: &Identity) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for proxy in &found.state.proxies {
        let key = match &proxy.told {
            Told::Roots { certificate: Some(root), .. } => root.as_str(),
            Told::Roots { certificate: None, .. } => "none",
            Told::Nothing => "not told",
            Told::Silent(_) => "no answer",
        };
        *counts.entry(key).or_default() += 1;
    }
    counts
}

fn show(out: &mut impl std::io::Write, found: &Identity, problems: &[String]) -> Result<()> {
    let (now, counts) = (SystemTime::now(), dependents(found));
    writeln!(out, "{:<14} {:<40} {:<12} {:>8}  SIGNS", "ROOT", "SUBJECT", "EXPIRES IN", "PROXIES")?;
    for root in found.roots.facts() {
        let left = root.not_after.duration_since(now).map_or_else(|_| "expired".to_owned(), days);
        let signs = if found.state.issuer.as_ref() == Some(&root.sha256) { "yes" } else { "" };
        let proxies = counts.get(root.sha256.as_str()).copied().unwrap_or(0);
        writeln!(out, "{:<14} {:<40} {left:<12} {proxies:>8}  {signs}", short(&root.sha256), root.subject)?;
    }
    for (domain, bundle) in found.roots.foreign() {
        for root in bundle.facts() {
            let left = root.not_after.duration_since(now).map_or_else(|_| "expired".to_owned(), days);
            let subject = format!("{} (for {domain})", root.subject);
            writeln!(out, "{:<14} {subject:<40} {left:<12}", short(&root.sha256))?;
        }
    }
    for (key, what) in [
        ("none", "have a certificate of no trusted root"),
        ("not told", "do not tell their roots (they read them at the start only)"),
        ("no answer", "do not answer"),
    ] {
        if let Some(count) = counts.get(key) {
            writeln!(out, "{count} of the proxies {what}")?;
        }
    }
    if let Some(issuer) = &found.issuer {
        let left = issuer
            .not_after
            .duration_since(now)
            .map_or_else(|_| "has expired".to_owned(), |left| format!("expires in {}", days(left)));
        writeln!(out, "issuer {} {left}", issuer.subject)?;
    }
    for problem in problems {
        writeln!(out, "{} {problem}", "‼".yellow())?;
    }
    Ok(())
}

fn as_json(found: &Identity, problems: &[String]) -> serde_json::Value {
    let counts = dependents(found);
    let seconds = |at: SystemTime| at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let roots: Vec<_> = found
        .roots
        .facts()
        .map(|root| {
            json!({"sha256": root.sha256, "subject": root.subject, "notAfter": seconds(root.not_after),
                "signs": found.state.issuer.as_ref() == Some(&root.sha256),
                "proxies": counts.get(root.sha256.as_str()).copied().unwrap_or(0)})
        })
        .collect();
    let proxies: Vec<_> = found
        .state
        .proxies
        .iter()
        .map(|proxy| match &proxy.told {
            Told::Roots { trusts, certificate } => {
                json!({"pod": proxy.pod, "trusts": trusts, "certificate": certificate})
            }
            Told::Nothing => json!({"pod": proxy.pod}),
            Told::Silent(why) => json!({"pod": proxy.pod, "error": why}),
        })
        .collect();
    let issuer = found.issuer.as_ref().map(|issuer| {
        json!({"sha256": issuer.sha256, "subject": issuer.subject, "notAfter": seconds(issuer.not_after)})
    });
    let foreign: BTreeMap<&str, Vec<String>> = found
        .roots
        .foreign()
        .map(|(domain, bundle)| (domain, bundle.facts().map(|root| root.sha256).collect()))
        .collect();
    json!({"roots": roots, "foreign": foreign, "issuer": issuer, "proxies": proxies, "problems": problems})
}
