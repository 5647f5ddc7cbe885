//! The issuer and the trust roots, as the cluster holds them now.
//!
//! Events are a hint only: both objects are read again on a timer and compared, so that a lost event cannot let an
//! issuer expire unnoticed.

use crate::{
    config::ControllerConfig,
    events::{Event, Events},
    index::store::Store,
    install::objects::CONTROLLER,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use kube::Client;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};
use weft_fault::{Code, Fault, Phase};
use weft_kube::{
    api,
    core::node::{ConfigMap, Secret},
    kind::Kind,
    watch::{Pulse, Scope, Watch},
};
use weft_tls::{
    authority::Ca,
    bundle::{TrustBundle, foreign_domain},
};

pub const ISSUER_SECRET: &str = "linkerd-identity-issuer";
pub const ROOTS_CONFIG_MAP: &str = "linkerd-identity-trust-roots";
pub const ROOTS_KEY: &str = "ca-bundle.crt";
/// Who says so, in events.
pub const COMPONENT: &str = "linkerd-identity";
/// How often both are read again whatever the events say.
const REREAD: Duration = Duration::from_secs(15);
/// And while there is none yet.
const RETRY: Duration = Duration::from_millis(500);

/// An issuer that was proved to be usable, and the roots that proved it.
#[derive(Debug)]
pub struct Authority {
    pub ca: Ca,
    pub roots: TrustBundle,
}

/// The authority in use.
#[derive(Clone, Debug)]
pub struct Authorities(watch::Receiver<Option<Arc<Authority>>>);

impl Authorities {
    pub fn current(&self) -> Option<Arc<Authority>> {
        self.0.borrow().clone()
    }

    /// Waits until it is another one.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Starts to follow the two objects.
pub fn follow(
    client: &Client,
    store: &Arc<Store>,
    events: &Events,
    pulse: &Pulse,
    tasks: &mut JoinSet<()>,
) -> Authorities {
    let (authority, receiver) = watch::channel(None);
    let (hint, hints) = mpsc::channel(1);
    let scope = |name: &str| Scope {
        namespace: Some(store.config.control_namespace.clone()),
        field_selector: Some(format!("metadata.name={name}")),
        label_selector: None,
    };
    let secret = Watch::new::<Secret>(client.clone(), scope(ISSUER_SECRET), pulse.clone());
    let roots = Watch::new::<ConfigMap>(client.clone(), scope(ROOTS_CONFIG_MAP), pulse.clone());
    tasks.spawn(secret.run::<Secret, ()>(hint.clone(), |_| ()));
    tasks.spawn(roots.run::<ConfigMap, ()>(hint, |_| ()));
    tasks.spawn(reread(client.clone(), store.clone(), events.clone(), authority, hints));
    Authorities(receiver)
}

/// The texts of both objects.
#[derive(PartialEq)]
struct Texts {
    certificate: String,
    key: String,
    roots: String,
    /// Of other trust domains, by domain.
    foreign: BTreeMap<String, String>,
}

async fn reread(
    client: Client,
    store: Arc<Store>,
    events: Events,
    authority: watch::Sender<Option<Arc<Authority>>>,
    mut hints: mpsc::Receiver<()>,
) {
    let mut last: Option<Texts> = None;
    let mut missing_said = false;
    loop {
        match read(&client, &store.config).await {
            Ok(texts) if last.as_ref() != Some(&texts) => {
                missing_said = false;
                match usable(&texts) {
                    Ok(new) => {
                        let facts = new.ca.facts();
                        tracing::info!(subject = facts.subject, sha256 = facts.sha256, "issuer loaded");
                        store.journal.lasts(
                            format!("Secret {}/{ISSUER_SECRET}", store.config.control_namespace),
                            format!("issuer {} loaded, sha256 {}", facts.subject, facts.sha256),
                        );
                        let (subject, sha256) = (facts.subject.clone(), facts.sha256.clone());
                        // The first one is not news.
                        if authority.send_replace(Some(Arc::new(new))).is_some() {
                            let message = "Updated identity issuer".to_owned();
                            let detail = format!(": {subject}, sha256 {sha256}");
                            tell(&client, &store.config, &events, Said::Updated, message, detail).await;
                        }
                    }
                    Err((said, fault)) => {
                        tracing::error!("the new issuer is not used: {fault:?}");
                        store.journal.lasts(
                            format!("Secret {}/{ISSUER_SECRET}", store.config.control_namespace),
                            format!("the new issuer is not used: {fault:?}"),
                        );
                        let message = format!("The issuer is not used: {fault:?}");
                        tell(&client, &store.config, &events, said, message, String::new()).await;
                    }
                }
                last = Some(texts);
            }
            Ok(_) => {}
            Err(fault) => {
                if !std::mem::replace(&mut missing_said, true) {
                    tracing::warn!("the issuer cannot be read, what was read before stays in use: {fault:?}");
                }
            }
        }
        let pause = if last.is_some() { REREAD } else { RETRY };
        tokio::select! {
            Some(()) = hints.recv() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

async fn read(client: &Client, config: &ControllerConfig) -> Result<Texts, Fault> {
    let namespace = Some(config.control_namespace.as_str());
    let secret: Secret = api::get(client, &format!("{}/{ISSUER_SECRET}", Secret::path(namespace))).await?;
    let roots: ConfigMap =
        api::get(client, &format!("{}/{ROOTS_CONFIG_MAP}", ConfigMap::path(namespace))).await?;
    let (certificate, key) = match secret.kind.as_str() {
        "kubernetes.io/tls" => ("tls.crt", "tls.key"),
        _ => ("crt.pem", "key.pem"),
    };
    let field = |name: &'static str| -> Result<String, Fault> {
        let text = secret.data.get(name).ok_or_else(|| missing(ISSUER_SECRET, name))?;
        let bytes = STANDARD.decode(text).map_err(|e| missing(ISSUER_SECRET, name).because(e))?;
        String::from_utf8(bytes).map_err(|e| missing(ISSUER_SECRET, name).because(e))
    };
    Ok(Texts {
        certificate: field(certificate)?,
        key: field(key)?,
        foreign: roots
            .data
            .iter()
            .filter_map(|(key, text)| Some((foreign_domain(key)?.to_owned(), text.clone())))
            .collect(),
        roots: roots.data.get(ROOTS_KEY).cloned().ok_or_else(|| missing(ROOTS_CONFIG_MAP, ROOTS_KEY))?,
    })
}

fn missing(object: &str, key: &'static str) -> Fault {
    Fault::new(Code::IssuerUnusable).in_phase(Phase::Certify).about(object).fact("missing-or-unreadable", key)
}

/// The authority that they make, or which event says why they make none.
fn usable(texts: &Texts) -> Result<Authority, (Said, Fault)> {
    let roots = TrustBundle::parse(&texts.roots)
        .map_err(|e| missing(ROOTS_CONFIG_MAP, ROOTS_KEY).because(e.to_string()))
        .map_err(|fault| (Said::Skipped, fault))?;
    let mut roots = roots;
    for (domain, text) in &texts.foreign {
        // One that cannot be read must not take the mesh's own away.
        match TrustBundle::parse(text).and_then(|bundle| roots.clone().with_foreign(domain, bundle)) {
            Ok(with) => roots = with,
            Err(error) => tracing::error!(domain, %error, "the roots of a foreign trust domain are left out"),
        }
    }
    for warning in roots.warnings() {
        tracing::warn!("trust roots: {warning}");
    }
    let ca = Ca::from_pem(&texts.certificate, &texts.key).map_err(|fault| (Said::Skipped, fault))?;
    ca.check(&roots, SystemTime::now()).map_err(|fault| (Said::Invalid, fault))?;
    Ok(Authority { ca, roots })
}

/// What happened to the issuer, in Linkerd's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Updated,
    /// It cannot be read.
    Skipped,
    /// It can, and nobody would accept what it signs.
    Invalid,
}

impl Said {
    const fn reason(self) -> &'static str {
        match self {
            Said::Updated => "IssuerUpdated",
            Said::Skipped => "IssuerUpdateSkipped",
            Said::Invalid => "IssuerValidationFailed",
        }
    }
}

/// An event about the controller's Deployment; where there is none, as in `weft up`, about the Secret.
async fn tell(
    client: &Client,
    config: &ControllerConfig,
    events: &Events,
    said: Said,
    message: String,
    detail: String,
) {
    let namespace = &config.control_namespace;
    let kinds = [
        ("apps/v1", "Deployment", format!("/apis/apps/v1/namespaces/{namespace}/deployments"), CONTROLLER),
        ("v1", "Secret", Secret::path(Some(namespace)), ISSUER_SECRET),
    ];
    for (version, kind, collection, name) in kinds {
        let Ok(object) = api::get::<Value>(client, &format!("{collection}/{name}")).await else { continue };
        events.tell(Event {
            about: json!({"apiVersion": version, "kind": kind, "namespace": namespace, "name": name,
                "uid": object["metadata"]["uid"]}),
            warning: said != Said::Updated,
            reason: said.reason().to_owned(),
            message,
            detail,
            component: COMPONENT,
        });
        return;
    }
}

/// A timer that does not catch up on what it missed.
pub(crate) fn every(period: Duration) -> tokio::time::Interval {
    let mut timer = interval(period);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    timer
}
