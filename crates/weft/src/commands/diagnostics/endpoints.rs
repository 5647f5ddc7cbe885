//! `weft diagnostics endpoints`: who stands behind a name, according to each replica of the controller.

use super::{
    Asked, authority,
    rows::{Answer, Found, table},
    views,
};
use crate::{
    reach::title,
    replicas::{ControlPlane, PATIENCE, Replica},
};
use anyhow::{Result, bail};
use futures_util::{StreamExt as _, future::join_all, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::ListParams};
use linkerd2_proxy_api::destination::Update;
use owo_colors::OwoColorize as _;
use std::{
    collections::{BTreeSet, HashMap},
    io::Write as _,
    net::IpAddr,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};
use tokio::time::timeout;
use tonic::Streaming;
use weft_model::outbound::{Endpoint, Endpoints as Answered};
use weft_wire::destination::EndpointSet;

/// Updates that belong together come together.
const QUIET: Duration = Duration::from_millis(300);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    #[default]
    Table,
    /// The table with whole identities.
    Wide,
    Json,
}

/// Show the endpoints that proxies are told of for a name.
///
/// Each replica of the controller is asked, and each of weft's proxies whether it holds another view. HINTS: the protocol that the endpoint's proxy takes, and the port of the proxy
/// that is dialled in its stead. AGE: for how long the pod has run.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft diagnostics endpoints store.shop:7000
  weft diagnostics endpoints store.shop.svc.cluster.local:7000 web.shop:80 -o json
  weft diagnostics endpoints store.shop:7000 --watch
  weft diagnostics endpoints store.shop:7000 --token '{\"ns\":\"shop\",\"nodeName\":\"node-1\"}'

Exit codes: 0 everybody agrees, 1 somebody holds another view or did not answer, 2 nobody could be asked.")]
pub(super) struct Endpoints {
    #[command(flatten)]
    asked: Asked,
    /// Names and ports as proxies ask for them, NAME.NAMESPACE[.svc.DOMAIN][:PORT]; port 80 without one.
    #[arg(required = true, value_name = "AUTHORITY")]
    authorities: Vec<String>,
    /// Context token to ask with, as a proxy of a certain namespace and node would.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TOKEN")]
    token: String,
    /// Go on, and show the endpoints whenever they change.
    #[arg(short, long)]
    watch: bool,
    /// A table for people, the same with whole identities, or JSON (one document a line with --watch).
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

impl Endpoints {
    pub(super) async fn run(self) -> Result<ExitCode> {
        for text in &self.authorities {
            let host = text.rsplit_once(':').map_or(text.as_str(), |(host, _)| host);
            if host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() {
                bail!(
                    "{text}: an address has no endpoints; `weft diagnostics profile {text}` asks what it is"
                );
            }
        }
        let (client, plane) = self.asked.plane().await?;
        let authorities: Vec<String> =
            self.authorities.iter().map(|text| authority(text, &plane.cluster_domain)).collect();
        if self.watch {
            return self.follow(&client, &plane, &authorities).await;
        }
        let namespace = &self.asked.target.linkerd_namespace;
        let mut unanswered = BTreeSet::new();
        let mut unasked = 0;
        let mut all = Vec::new();
        for authority in authorities {
            let (plane, asked, token) = (&plane, &authority, &self.token);
            let answers = join_all(
                plane
                    .replicas
                    .iter()
                    .map(|replica| async move { (replica, once(replica, plane, asked, token).await) }),
            )
            .await;
            let mut answered = Vec::new();
            let mut last = None;
            for (replica, answer) in answers {
                match answer {
                    Ok(endpoints) => answered.push(Answer { replica: replica.title(), endpoints }),
                    Err(error) => {
                        unanswered.insert(format!("{}: {error:#}", replica.title()));
                        last = Some(error);
                    }
                }
            }
            if let (true, Some(error)) = (answered.is_empty(), last) {
                return Err(error);
            }
            let ages = ages(&client, &answered).await;
            let said = answered.first().map(|answer| answer.endpoints.clone()).unwrap_or_default();
            let views = views::of_proxies(&client, plane, namespace, &with_port(&authority), &said).await;
            unasked += views.unasked;
            all.push(Found { authority, answers: answered, others: views.others, ages });
        }
        let differ = self.show(&all, false)?;
        for gap in &unanswered {
            anstream::eprintln!("{} not asked: {gap}", "‼".yellow());
        }
        if unasked > 0 && self.output != Output::Json {
            anstream::eprintln!("({unasked} proxies do not tell what they hold: stock ones, or not reached)");
        }
        Ok(if differ || !unanswered.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    /// Says whether there is anything to be told beside the endpoints.
    fn show(&self, all: &[Found], in_a_line: bool) -> Result<bool> {
        let mut out = anstream::stdout().lock();
        let mut differences: Vec<String> = all.iter().flat_map(Found::disagreements).collect();
        let others = all.iter().flat_map(|found| &found.others);
        differences.extend(others.map(|other| format!("{} {}", other.proxy, other.holds)));
        if self.output == Output::Json {
            let rows: Vec<_> = all.iter().flat_map(Found::json).collect();
            match in_a_line {
                true => writeln!(out, "{}", serde_json::to_string(&rows)?)?,
                false => writeln!(out, "{}", serde_json::to_string_pretty(&rows)?)?,
            }
        } else if all.iter().all(|found| found.answers.iter().all(|answer| answer.endpoints.is_empty())) {
            writeln!(out, "No endpoints found.")?;
        } else {
            write!(out, "{}", table(all, self.output == Output::Wide))?;
        }
        out.flush()?;
        for difference in &differences {
            anstream::eprintln!("{} {difference}", "‼".yellow());
        }
        Ok(!differences.is_empty())
    }

    async fn follow(
        &self,
        client: &Client,
        plane: &ControlPlane,
        authorities: &[String],
    ) -> Result<ExitCode> {
        let mut states = Vec::new();
        let mut streams = Vec::new();
        for authority in authorities {
            for replica in &plane.replicas {
                let at = states.len();
                let updates = replica.endpoints(plane, authority, &self.token).await?;
                streams.push(updates.map(move |update| (at, update)).boxed());
                states.push((authority.clone(), replica, EndpointSet::default(), Vec::new()));
            }
        }
        let mut updates = stream::select_all(streams);
        let mut shown: Option<Vec<Vec<Vec<String>>>> = None;
        loop {
            // 1. All that comes together.
            let mut next = timeout(PATIENCE, updates.next()).await.ok();
            while let Some(update) = next {
                let Some((at, update)) = update else { bail!("the controller closed the stream") };
                let (_, replica, set, endpoints) = &mut states[at];
                *endpoints = take(set, update.map_err(|status| replica.refused(status))?)?;
                next = timeout(QUIET, updates.next()).await.ok();
            }
            // 2. What is different is shown.
            let mut all = Vec::new();
            for authority in authorities {
                let of_it = states.iter().filter(|(name, ..)| name == authority);
                let answers: Vec<Answer> = of_it
                    .map(|(_, replica, _, endpoints)| Answer {
                        replica: replica.title(),
                        endpoints: endpoints.clone(),
                    })
                    .collect();
                let authority = authority.clone();
                all.push(Found { authority, answers, others: Vec::new(), ages: HashMap::new() });
            }
            let rows = all.iter().map(|found| found.rows(true)).collect();
            if shown.as_ref() == Some(&rows) {
                continue;
            }
            shown = Some(rows);
            for found in &mut all {
                found.ages = ages(client, &found.answers).await;
            }
            if self.output != Output::Json {
                let mut out = anstream::stdout().lock();
                writeln!(out, "{}", jiff::Zoned::now().strftime("%H:%M:%S"))?;
            }
            self.show(&all, true)?;
        }
    }
}

/// As proxies name it: they always say the port.
fn with_port(authority: &str) -> String {
    if authority.contains(':') { authority.to_owned() } else { format!("{authority}:80") }
}

/// What a replica says first. A stock one says nothing at all of a service without endpoints.
pub(super) async fn once(
    replica: &Replica,
    plane: &ControlPlane,
    authority: &str,
    token: &str,
) -> Result<Vec<Arc<Endpoint>>> {
    let mut updates: Streaming<Update> = replica.endpoints(plane, authority, token).await?;
    let mut set = EndpointSet::default();
    let mut endpoints = Vec::new();
    let mut patience = PATIENCE;
    while let Ok(update) = timeout(patience, updates.message()).await {
        let Some(update) = update.map_err(|status| replica.refused(status))? else { break };
        endpoints = take(&mut set, update)?;
        patience = QUIET;
    }
    Ok(endpoints)
}

fn take(set: &mut EndpointSet, update: Update) -> Result<Vec<Arc<Endpoint>>> {
    let (endpoints, unreadable) = set.apply(update).map_err(weft_fault::Fault::from)?;
    for invalid in unreadable {
        anstream::eprintln!("{} an endpoint cannot be read: {invalid}", "‼".yellow());
    }
    Ok(match endpoints {
        Answered::Known(endpoints) => endpoints.to_vec(),
        Answered::NoSuchService => Vec::new(),
    })
}

/// For how long the pods behind endpoints have run. Whoever may not read pods does without.
async fn ages(client: &Client, answers: &[Answer]) -> HashMap<String, u64> {
    let endpoints = answers.iter().flat_map(|answer| &answer.endpoints);
    let namespaces: BTreeSet<&String> = endpoints.filter_map(|e| e.labels.get("namespace")).collect();
    let mut ages = HashMap::new();
    let now = jiff::Timestamp::now();
    for namespace in namespaces {
        let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let params = ListParams::default();
        let Ok(Ok(pods)) = timeout(PATIENCE, api.list(&params)).await else { continue };
        for pod in &pods {
            let started = pod.status.as_ref().and_then(|status| status.start_time.as_ref());
            if let Some(started) = started {
                let seconds = now.duration_since(started.0).as_secs();
                ages.insert(title(pod), u64::try_from(seconds).unwrap_or(0));
            }
        }
    }
    ages
}
