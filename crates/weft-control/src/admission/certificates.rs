//! Certificates of the webhooks: made by the controller, kept in Secrets that all replicas share, renewed long before they
//! end, and told to the API server by the CA in the webhooks' configurations.
//!
//! A new certificate has a new CA. The Secret holds the old CA beside it, and a replica serves what it found in the Secret
//! only when the configuration vouches for it, so that at no moment the API server meets a certificate it does not know.

use crate::{
    authority::Authorities,
    config::ControllerConfig,
    install::webhooks::{CONFIGURATIONS, SECRETS, SERVICES},
    serve::certificates::Certificates,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use http::Method;
use kube::Client;
use serde_json::{Value, json};
use std::time::{Duration, SystemTime};
use tokio::sync::watch;
use weft_fault::{Code, Fault};
use weft_kube::{
    api::{self, ApiError},
    core::node::Secret,
    kind::Kind,
};
use weft_tls::{authority::Ca, bundle, certificate::Facts, keys::Key, named::Names};

/// As long as Linkerd's.
const LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);
/// What must be left of a certificate that stays in use.
const RENEW_BEFORE: Duration = Duration::from_secs(60 * 24 * 3600);
/// How often Secrets and configurations are looked at.
const REREAD: Duration = Duration::from_secs(15);
/// And while something is missing: soon at first, as at start everything comes at once.
const RETRY: Duration = Duration::from_millis(300);
const RETRY_LATER: Duration = Duration::from_secs(5);
const SOON: u32 = 30;

/// What a Secret holds.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pair {
    certificate: String,
    key: String,
    /// One or more CAs, in PEM; empty if the Secret's keeper did not say.
    ca: String,
}

/// Keeps the certificates of all webhooks in use and told. `ready` becomes true when the API server can call them.
pub async fn keep(
    client: Client,
    config: ControllerConfig,
    mut authorities: Authorities,
    serving: Certificates,
    ready: watch::Sender<bool>,
) {
    let mut served: [Option<Pair>; 3] = [None, None, None];
    let mut last_fault = String::new();
    let mut tries = 0_u32;
    loop {
        let mut missing = false;
        for (at, slot) in served.iter_mut().enumerate() {
            match look_after(&client, &config, at).await {
                Ok((pair, told)) => {
                    missing |= !told;
                    if slot.as_ref() != Some(&pair) {
                        *slot = Some(pair);
                        last_fault.clear();
                    }
                }
                Err(fault) => {
                    missing = true;
                    let text = format!("{fault:?}");
                    if last_fault != text {
                        tracing::warn!(webhook = SERVICES[at], "its certificate is not in order: {text}");
                        last_fault = text;
                    }
                }
            }
        }
        // Client certificates are not asked for here, but a server needs roots to be built.
        if let Some(authority) = authorities.current() {
            match server(&served, &config, &authority.roots) {
                Ok(server) => serving.replace(server),
                Err(fault) => tracing::error!("the webhooks' certificates cannot be used: {fault:?}"),
            }
        } else {
            missing = true;
        }
        ready.send_replace(served.iter().all(Option::is_some) && authorities.current().is_some());
        tries = if missing { tries.saturating_add(1) } else { 0 };
        let pause = match tries {
            0 => REREAD,
            1..=SOON => RETRY,
            _ => RETRY_LATER,
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = authorities.changed() => {}
        }
    }
}

fn server(
    served: &[Option<Pair>; 3],
    config: &ControllerConfig,
    roots: &bundle::TrustBundle,
) -> Result<weft_tls::named::NamedServer, Fault> {
    let mut names = Names::default();
    for (pair, service) in served.iter().zip(SERVICES) {
        let Some(pair) = pair else { continue };
        let own = dns_names(config, service);
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        names.add_pem(&own, &pair.certificate, &pair.key)?;
    }
    names.server(roots, &[b"h2", b"http/1.1"])
}

/// The names by which the API server calls a webhook.
fn dns_names(config: &ControllerConfig, service: &str) -> [String; 2] {
    let short = format!("{service}.{}.svc", config.control_namespace);
    let long = format!("{short}.{}", config.cluster_domain);
    [short, long]
}

/// Reads one webhook's Secret, makes or renews what it holds, and tells the API server. False: there is nobody to tell yet.
async fn look_after(client: &Client, config: &ControllerConfig, at: usize) -> Result<(Pair, bool), Fault> {
    let names = dns_names(config, SERVICES[at]);
    let collection = Secret::path(Some(&config.control_namespace));
    let path = format!("{collection}/{}", SECRETS[at]);
    let found = match api::get::<Value>(client, &path).await {
        Ok(secret) => Some(secret),
        Err(error) if error.code() == Some(404) => None,
        Err(error) => return Err(Fault::from(error).about(SECRETS[at])),
    };
    let pair = found.as_ref().and_then(pair_of);
    let pair = match (pair, config.external_webhook_secrets[at]) {
        (Some(pair), true) => pair,
        (None, true) => {
            return Err(Fault::new(Code::NoCertificateYet)
                .about(SECRETS[at])
                .fact("kept-by", "somebody else"));
        }
        (Some(pair), false) if !due(&pair, &names[0], SystemTime::now()) => pair,
        (old, false) => {
            let new = renewed(old.as_ref(), &names)?;
            match write(client, &collection, &path, config, at, found.as_ref(), &new).await {
                Ok(()) => tracing::info!(secret = SECRETS[at], "made a certificate for a webhook"),
                // Another replica was faster: its certificate is read next.
                Err(error) if matches!(error.code(), Some(404 | 409)) => {
                    return Err(Fault::from(error).about(SECRETS[at]));
                }
                Err(error) => return Err(Fault::from(error).about(SECRETS[at])),
            }
            new
        }
    };
    let told = config.external_webhook_cas[at] || tell(client, at, &pair).await?;
    Ok((pair, told))
}

fn pair_of(secret: &Value) -> Option<Pair> {
    let field = |name: &str| {
        let bytes = STANDARD.decode(secret["data"][name].as_str()?).ok()?;
        String::from_utf8(bytes).ok()
    };
    // Linkerd before 2.9 wrote the names of its issuer's keys.
    let certificate = field("tls.crt").or_else(|| field("crt.pem"))?;
    let key = field("tls.key").or_else(|| field("key.pem"))?;
    Some(Pair { certificate, key, ca: field("ca.crt").unwrap_or_default() })
}

/// Whether a certificate of our own must be made anew: it ends soon, is for another name, or nobody knows its CA.
fn due(pair: &Pair, name: &str, now: SystemTime) -> bool {
    let Some(facts) = facts(&pair.certificate) else { return true };
    facts.not_after < now + RENEW_BEFORE || !facts.names.iter().any(|n| n == name) || pair.ca.is_empty()
}

fn facts(pem: &str) -> Option<Facts> {
    Facts::of(&bundle::certificates(pem).next()?.ok()?).ok()
}

/// A new CA that signs one certificate, and the CA before it.
fn renewed(old: Option<&Pair>, names: &[String; 2]) -> Result<Pair, Fault> {
    let ca = Ca::root(&names[0], LIFETIME)?;
    let key = Key::generate().map_err(|e| Fault::new(Code::Invariant).because(e.to_string()))?;
    let issued = ca.issue(&key, &[&names[0], &names[1]], LIFETIME, SystemTime::now())?;
    let before = old.map(|old| old.ca.as_str()).filter(|ca| !ca.is_empty());
    // Of all CAs before, the newest: it stands first.
    let before = before.and_then(|ca| bundle::certificates(ca).next()?.ok());
    let before = before.map(|der| weft_tls::certificate::to_pem("CERTIFICATE", &der)).unwrap_or_default();
    Ok(Pair {
        certificate: weft_tls::certificate::to_pem("CERTIFICATE", &issued.leaf),
        key: key.to_pem(),
        ca: ca.certificate_pem() + &before,
    })
}

async fn write(
    client: &Client,
    collection: &str,
    path: &str,
    config: &ControllerConfig,
    at: usize,
    found: Option<&Value>,
    pair: &Pair,
) -> Result<(), ApiError> {
    let mut secret = found.cloned().unwrap_or_else(|| {
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {
            "name": SECRETS[at], "namespace": config.control_namespace,
            "labels": {"linkerd.io/control-plane-ns": config.control_namespace, "app.kubernetes.io/part-of": "weft"},
        }, "type": "kubernetes.io/tls"})
    });
    secret["data"] = json!({
        "tls.crt": STANDARD.encode(&pair.certificate),
        "tls.key": STANDARD.encode(&pair.key),
        "ca.crt": STANDARD.encode(&pair.ca),
    });
    match found {
        None => api::create(client, collection, &secret).await.map(drop),
        // With the version that was read: a write in between is not undone.
        Some(_) => api::json::<Value>(client, Method::PUT, path, "application/json", &secret).await.map(drop),
    }
}

/// Puts the CA into the webhook's configuration where it is not there. False: there is no configuration.
async fn tell(client: &Client, at: usize, pair: &Pair) -> Result<bool, Fault> {
    if pair.ca.is_empty() {
        // An external certificate whose keeper tells the API server as well.
        return Ok(true);
    }
    let kind = if at == 0 { "mutatingwebhookconfigurations" } else { "validatingwebhookconfigurations" };
    let path = format!("/apis/admissionregistration.k8s.io/v1/{kind}/{}", CONFIGURATIONS[at]);
    let configuration = match api::get::<Value>(client, &path).await {
        Ok(configuration) => configuration,
        Err(error) if error.code() == Some(404) => return Ok(false),
        Err(error) => return Err(Fault::from(error).about(CONFIGURATIONS[at])),
    };
    let Some(patch) = patch(&configuration, &STANDARD.encode(&pair.ca)) else { return Ok(true) };
    let patched =
        api::json::<Value>(client, Method::PATCH, &path, "application/json-patch+json", &patch).await;
    patched.map(|_| true).map_err(|error| Fault::from(error).about(CONFIGURATIONS[at]))
}

/// A JSON patch that makes every entry know the CA; `None` if all do.
fn patch(configuration: &Value, ca: &str) -> Option<Value> {
    let hooks = configuration["webhooks"].as_array()?;
    let mut steps = vec![json!({"op": "test", "path": "/metadata/resourceVersion",
        "value": configuration["metadata"]["resourceVersion"]})];
    for (at, hook) in hooks.iter().enumerate() {
        if hook["clientConfig"]["caBundle"] != ca {
            steps.push(
                json!({"op": "add", "path": format!("/webhooks/{at}/clientConfig/caBundle"), "value": ca}),
            );
        }
    }
    (steps.len() > 1).then_some(Value::Array(steps))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn names() -> [String; 2] {
        ["a.mesh.svc".to_owned(), "a.mesh.svc.cluster.local".to_owned()]
    }

    #[test]
    fn certificates_are_renewed_in_time_and_for_their_name() {
        let pair = renewed(None, &names()).unwrap();
        let now = SystemTime::now();
        assert!(!due(&pair, "a.mesh.svc", now));
        assert!(!due(&pair, "a.mesh.svc", now + DAY * 300));
        assert!(due(&pair, "a.mesh.svc", now + DAY * 310));
        assert!(due(&pair, "b.mesh.svc", now));
        assert!(due(&Pair { ca: String::new(), ..pair.clone() }, "a.mesh.svc", now));
        assert!(due(&Pair { certificate: "x".to_owned(), ..pair }, "a.mesh.svc", now));
    }

    #[test]
    fn a_renewal_keeps_one_ca_before() {
        let first = renewed(None, &names()).unwrap();
        let second = renewed(Some(&first), &names()).unwrap();
        let third = renewed(Some(&second), &names()).unwrap();
        assert!(second.ca.ends_with(&first.ca));
        assert!(third.ca.contains(second.ca.strip_suffix(first.ca.as_str()).unwrap()));
        assert!(!third.ca.contains(&first.ca));
    }

    #[test]
    fn only_entries_that_do_not_know_the_ca_are_patched() {
        let configuration = json!({"metadata": {"resourceVersion": "7"}, "webhooks": [
            {"clientConfig": {"caBundle": "Y2E="}}, {"clientConfig": {}}]});
        let steps = patch(&configuration, "Y2E=").unwrap();
        assert_eq!(steps[1]["path"], "/webhooks/1/clientConfig/caBundle");
        assert_eq!(steps.as_array().unwrap().len(), 2);
        let all = json!({"metadata": {}, "webhooks": [{"clientConfig": {"caBundle": "Y2E="}}]});
        assert_eq!(patch(&all, "Y2E="), None);
    }

    #[test]
    fn secrets_of_either_form_are_read() {
        let data = |a: &str, b: &str| json!({"data": {a: "Yw==", b: "aw=="}});
        for secret in [data("tls.crt", "tls.key"), data("crt.pem", "key.pem")] {
            let pair = pair_of(&secret).unwrap();
            assert_eq!((pair.certificate.as_str(), pair.key.as_str(), pair.ca.as_str()), ("c", "k", ""));
        }
        assert_eq!(pair_of(&json!({"data": {"tls.crt": "Yw=="}})), None);
    }
}
