//! The objects that a rotation reads and writes, and the proxies it asks.

use super::plan::{Fingerprint, ProxyRoots, State, Told};
use anyhow::{Context as _, Result, bail};
use futures_util::{StreamExt as _, stream};
use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Pod, Secret},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime},
};
use weft_control::authority::{ISSUER_SECRET, ROOTS_CONFIG_MAP, ROOTS_KEY};
use weft_diagnose::prom;
use weft_tls::{
    authority::Ca,
    bundle::{TrustBundle, foreign_domain, foreign_key},
    certificate::Facts,
};

/// An issuer that is to follow the one in use.
const NEXT_SECRET: &str = "weft-identity-issuer-next";
/// On the bundle: the roots that a rotation is to replace.
const LEAVING: &str = "weft.dev/roots-leaving";
const ASK: Duration = Duration::from_secs(2);
const ASKED_AT_ONCE: usize = 8;

pub(super) struct Cluster {
    client: Client,
    namespace: String,
}

/// What the cluster holds now.
pub(super) struct Identity {
    pub(super) roots: TrustBundle,
    pub(super) issuer: Option<Facts>,
    pub(super) next: Option<NewIssuer>,
    pub(super) state: State,
}

/// An issuer and the root above it, in PEM.
pub(super) struct NewIssuer {
    pub(super) root: String,
    pub(super) certificate: String,
    pub(super) key: String,
}

impl Cluster {
    pub(super) fn new(client: Client, namespace: &str) -> Self {
        Cluster { client, namespace: namespace.to_owned() }
    }

    pub(super) async fn read(&self) -> Result<Identity> {
        let map = self.maps().get(ROOTS_CONFIG_MAP).await.context("reading the trust roots")?;
        let roots = roots_of(&map)?;
        let leaving = map.annotations().get(LEAVING).map_or("", String::as_str);
        let leaving = leaving.split(',').filter(|part| !part.is_empty()).map(str::to_owned).collect();

        let secret = self.secrets().get(ISSUER_SECRET).await.context("reading the issuer")?;
        let issuer = Ca::from_pem(
            &any_of(&secret, &["crt.pem", "tls.crt"]).unwrap_or_default(),
            &any_of(&secret, &["key.pem", "tls.key"]).unwrap_or_default(),
        )
        .ok();
        let next = match self.secrets().get_opt(NEXT_SECRET).await? {
            Some(secret) => Some(NewIssuer::of(&secret).with_context(|| format!("Secret {NEXT_SECRET}"))?),
            None => None,
        };
        let next_root = next.as_ref().map(|next| TrustBundle::parse(&next.root)).transpose()?;
        let state = State {
            roots: roots.facts().map(|anchor| anchor.sha256).collect(),
            issuer: issuer.as_ref().and_then(|issuer| root_of(issuer, &roots)),
            next: next_root.and_then(|root| root.facts().next()).map(|root| root.sha256),
            leaving,
            proxies: self.proxies().await?,
        };
        Ok(Identity { roots, issuer: issuer.map(|issuer| issuer.facts().clone()), next, state })
    }

    /// Keeps an issuer for later. The root that signs now is to leave.
    pub(super) async fn keep(&self, next: &NewIssuer, leaving: &BTreeSet<Fingerprint>) -> Result<()> {
        let object = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "linkerd.io/tls",
            "metadata": {"name": NEXT_SECRET, "namespace": self.namespace,
                "labels": {"linkerd.io/control-plane-ns": self.namespace}},
            "stringData": {"crt.pem": next.certificate, "key.pem": next.key, "ca.crt": next.root},
        });
        let secret: Secret = serde_json::from_value(object)?;
        self.secrets().create(&Default::default(), &secret).await.context("keeping the new issuer")?;
        let leaving: Vec<&str> = leaving.iter().map(String::as_str).collect();
        self.patch_map(&json!({"metadata": {"annotations": {LEAVING: leaving.join(",")}}})).await
    }

    pub(super) async fn trust(&self, roots: &TrustBundle) -> Result<()> {
        self.patch_map(&json!({"data": {ROOTS_KEY: roots.to_pem()}})).await
    }

    /// Sets or removes the roots of another trust domain.
    pub(super) async fn trust_foreign(&self, domain: &str, roots: Option<&TrustBundle>) -> Result<()> {
        let map = self.maps().get(ROOTS_CONFIG_MAP).await.context("reading the trust roots")?;
        let own = roots_of(&map)?;
        if let Some(roots) = roots {
            own.with_foreign(domain, roots.clone()).context("the trust domain")?;
        }
        let text = roots.map(TrustBundle::to_pem);
        self.patch_map(&json!({"data": {foreign_key(&domain.to_ascii_lowercase()): text}})).await
    }

    /// The last step: nothing is under way any more.
    pub(super) async fn finish(&self, roots: &TrustBundle) -> Result<()> {
        let annotations = json!({"annotations": {LEAVING: Value::Null}});
        self.patch_map(&json!({"metadata": annotations, "data": {ROOTS_KEY: roots.to_pem()}})).await
    }

    /// From now on this issuer signs.
    pub(super) async fn sign_with(&self, next: &NewIssuer) -> Result<()> {
        let secret = self.secrets().get(ISSUER_SECRET).await?;
        let data = match secret.type_.as_deref() {
            Some("kubernetes.io/tls") => {
                json!({"tls.crt": next.certificate, "tls.key": next.key, "ca.crt": next.root})
            }
            _ => json!({"crt.pem": next.certificate, "key.pem": next.key}),
        };
        let patch = Patch::Merge(json!({"stringData": data}));
        self.secrets()
            .patch(ISSUER_SECRET, &PatchParams::default(), &patch)
            .await
            .context("replacing the issuer")?;
        self.secrets().delete(NEXT_SECRET, &DeleteParams::default()).await?;
        Ok(())
    }

    async fn patch_map(&self, patch: &Value) -> Result<()> {
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        self.maps().patch(ROOTS_CONFIG_MAP, &params, &patch).await.context("writing the trust roots")?;
        Ok(())
    }

    /// What every meshed pod's proxy trusts and holds.
    async fn proxies(&self) -> Result<Vec<ProxyRoots>> {
        let selector = format!("linkerd.io/control-plane-ns={}", self.namespace);
        let pods =
            Api::<Pod>::all(self.client.clone()).list(&ListParams::default().labels(&selector)).await?;
        let runs = |pod: &Pod| {
            pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
                && pod.metadata.deletion_timestamp.is_none()
        };
        let mut proxies: Vec<ProxyRoots> = stream::iter(pods.items.into_iter().filter(runs))
            .map(|pod| async move {
                let name = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
                ProxyRoots { told: self.ask(&pod).await, pod: name }
            })
            .buffer_unordered(ASKED_AT_ONCE)
            .collect()
            .await;
        proxies.sort_by(|a, b| a.pod.cmp(&b.pod));
        Ok(proxies)
    }

    async fn ask(&self, pod: &Pod) -> Told {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}:4191/proxy/metrics");
        let Ok(request) = http::Request::get(path).body(Vec::new()) else {
            return Told::Silent("a name that makes no path".into());
        };
        match tokio::time::timeout(ASK, self.client.request_text(request)).await {
            Ok(Ok(text)) => told(&text),
            Ok(Err(error)) => Told::Silent(error.to_string()),
            Err(_) => Told::Silent(format!("no answer within {} s", ASK.as_secs())),
        }
    }

    fn maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }
}

fn roots_of(map: &ConfigMap) -> Result<TrustBundle> {
    let none = BTreeMap::new();
    let data = map.data.as_ref().unwrap_or(&none);
    let parse = |key: &str, text: &str| {
        TrustBundle::parse(text).with_context(|| format!("ConfigMap {ROOTS_CONFIG_MAP}, {key}"))
    };
    let mut roots = parse(ROOTS_KEY, data.get(ROOTS_KEY).map_or("", String::as_str))?;
    for (key, text) in data {
        if let Some(domain) = foreign_domain(key) {
            roots = roots.with_foreign(domain, parse(key, text)?)?;
        }
    }
    Ok(roots)
}

/// Reads a proxy's metrics.
fn told(metrics: &str) -> Told {
    const TRUSTED: &str = "weft_identity_trust_anchor_expiration_timestamp_seconds";
    const CERTIFICATE: &str = "weft_identity_cert_anchor";
    let samples = prom::parse(metrics, |name| name == TRUSTED || name == CERTIFICATE);
    let of = |family: &str| -> Vec<&str> {
        let standing = samples.iter().filter(|sample| sample.name == family && sample.value != 0.0);
        standing.map(|sample| sample.label("sha256")).collect()
    };
    let trusts: BTreeSet<String> = of(TRUSTED).into_iter().map(str::to_owned).collect();
    if trusts.is_empty() {
        return Told::Nothing;
    }
    let certificate = of(CERTIFICATE).first().filter(|sha256| **sha256 != "none").map(ToString::to_string);
    Told::Roots { trusts, certificate }
}

/// The root of the bundle that proves this issuer.
fn root_of(issuer: &Ca, roots: &TrustBundle) -> Option<Fingerprint> {
    let proves = |root: &Facts| {
        let alone = roots.only(|other| other.sha256 == root.sha256);
        alone.is_ok_and(|alone| issuer.check(&alone, SystemTime::now()).is_ok())
    };
    roots.facts().find(proves).map(|root| root.sha256)
}

fn any_of(secret: &Secret, keys: &[&str]) -> Option<String> {
    let none = BTreeMap::<String, ByteString>::new();
    let data = secret.data.as_ref().unwrap_or(&none);
    let bytes = keys.iter().find_map(|key| data.get(*key))?;
    String::from_utf8(bytes.0.clone()).ok()
}

impl NewIssuer {
    fn of(secret: &Secret) -> Result<Self> {
        let field =
            |key: &str| any_of(secret, &[key]).with_context(|| format!("{key} is missing or no text"));
        let next =
            NewIssuer { root: field("ca.crt")?, certificate: field("crt.pem")?, key: field("key.pem")? };
        next.check()?;
        Ok(next)
    }

    /// The issuer must be proved by the root, or every proxy would refuse what it signs.
    pub(super) fn check(&self) -> Result<()> {
        let roots = TrustBundle::parse(&self.root).context("the new root")?;
        if roots.anchors().len() != 1 {
            bail!("the new root: {} certificates, and one is needed", roots.anchors().len());
        }
        let issuer = Ca::from_pem(&self.certificate, &self.key).context("the new issuer")?;
        issuer.check(&roots, SystemTime::now()).context("the new issuer is not proved by the new root")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxys_metrics_tell_what_it_trusts() {
        let text = "weft_identity_trust_anchor_expiration_timestamp_seconds{sha256=\"aa\",subject=\"CN=a\"} 1900000000\n\
            weft_identity_trust_anchor_expiration_timestamp_seconds{sha256=\"bb\",subject=\"CN=b\"} 0\n\
            weft_identity_cert_anchor{sha256=\"aa\",subject=\"CN=a\"} 1\n";
        let trusts = BTreeSet::from(["aa".to_owned()]);
        assert_eq!(told(text), Told::Roots { trusts: trusts.clone(), certificate: Some("aa".into()) });
        let lost = text.replace("cert_anchor{sha256=\"aa\"", "cert_anchor{sha256=\"none\"");
        assert_eq!(told(&lost), Told::Roots { trusts, certificate: None });
        assert_eq!(told("response_total 3\n"), Told::Nothing);
    }
}
