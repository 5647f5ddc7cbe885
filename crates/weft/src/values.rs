//! The flags of `install` and `upgrade` that set values.

use crate::files::read_text;
use anyhow::Result;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use weft_control::install::{
    values::{
        merge,
        set::{Typing, assign},
    },
    yaml,
};
use weft_fault::{Code, Fault};

/// Values of an installation (docs/values.md). The later ones win: files, then --set, then the flags that stand for a value.
#[derive(clap::Args, Debug, Default)]
pub(crate) struct ValueFlags {
    /// YAML file of values; may be repeated.
    #[arg(short = 'f', long = "values", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Values as KEY=VALUE[,KEY=VALUE …], in helm's syntax: a.b=c, a={x,y}, a[0].b=c, \\, for a comma.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The same, with every value taken as text.
    #[arg(long, value_name = "KEY=VALUE")]
    set_string: Vec<String>,
    /// Values whose text is in a file: KEY=FILE.
    #[arg(long, value_name = "KEY=FILE")]
    set_file: Vec<String>,
    /// Three replicas apart from each other, a disruption budget, and resources.
    #[arg(long)]
    pub(crate) ha: bool,
    /// Replicas of the controller (controllerReplicas).
    #[arg(long, value_name = "N")]
    controller_replicas: Option<u32>,
    /// Log filter of the controller (controllerLogLevel).
    #[arg(long, value_name = "FILTER")]
    controller_log_level: Option<String>,
    /// Trust domain of identities (identityTrustDomain).
    #[arg(long, value_name = "DOMAIN")]
    identity_trust_domain: Option<String>,
    /// How long proxies' certificates are valid (identity.issuer.issuanceLifetime).
    #[arg(long, value_name = "DURATION")]
    identity_issuance_lifetime: Option<String>,
    /// How far clocks may be apart (identity.issuer.clockSkewAllowance).
    #[arg(long, value_name = "DURATION")]
    identity_clock_skew_allowance: Option<String>,
    /// Somebody else keeps the issuer's Secret, of type kubernetes.io/tls.
    #[arg(long)]
    identity_external_issuer: bool,
    /// Somebody else keeps the ConfigMap of trust anchors (identity.externalCA).
    #[arg(long)]
    identity_external_ca: bool,
    /// Trust anchors, in PEM.
    #[arg(long, value_name = "FILE")]
    identity_trust_anchors_file: Option<PathBuf>,
    /// Issuer's certificate, in PEM.
    #[arg(long, value_name = "FILE", requires = "identity_issuer_key_file")]
    identity_issuer_certificate_file: Option<PathBuf>,
    /// Issuer's key, in PEM (ECDSA P-256).
    #[arg(long, value_name = "FILE", requires = "identity_issuer_certificate_file")]
    identity_issuer_key_file: Option<PathBuf>,
    /// Pods are redirected by a CNI plugin (cniEnabled).
    #[arg(long)]
    linkerd_cni_enabled: bool,
    /// Tag of all images (linkerdVersion).
    #[arg(long, value_name = "TAG")]
    control_plane_version: Option<String>,
    /// Pull policy of all images (imagePullPolicy).
    #[arg(long, value_name = "POLICY")]
    image_pull_policy: Option<String>,
    /// Who may call where nothing says so (proxy.defaultInboundPolicy).
    #[arg(long, value_name = "POLICY")]
    default_inbound_policy: Option<String>,
    /// Image of proxies (proxy.image.name).
    #[arg(long, value_name = "IMAGE")]
    proxy_image: Option<String>,
    /// Its tag (proxy.image.version).
    #[arg(long, value_name = "TAG")]
    proxy_version: Option<String>,
    /// Log filter of proxies (proxy.logLevel).
    #[arg(long, value_name = "FILTER")]
    proxy_log_level: Option<String>,
    /// CPU that a proxy requests (proxy.resources.cpu.request).
    #[arg(long, value_name = "AMOUNT")]
    proxy_cpu_request: Option<String>,
    /// Its limit of CPU (proxy.resources.cpu.limit).
    #[arg(long, value_name = "AMOUNT")]
    proxy_cpu_limit: Option<String>,
    /// Memory that a proxy requests (proxy.resources.memory.request).
    #[arg(long, value_name = "AMOUNT")]
    proxy_memory_request: Option<String>,
    /// Its limit of memory (proxy.resources.memory.limit).
    #[arg(long, value_name = "AMOUNT")]
    proxy_memory_limit: Option<String>,
    /// Ports that reach applications without the proxy (proxyInit.ignoreInboundPorts).
    #[arg(long, value_name = "PORTS")]
    skip_inbound_ports: Option<String>,
    /// Ports that applications reach without the proxy (proxyInit.ignoreOutboundPorts).
    #[arg(long, value_name = "PORTS")]
    skip_outbound_ports: Option<String>,
}

impl ValueFlags {
    /// Everything that was asked for, on top of `before`.
    pub(crate) fn overrides(&self, before: Value) -> Result<Value> {
        let mut all = if before.is_null() { json!({}) } else { before };
        for path in &self.files {
            merge(&mut all, &file(path)?);
        }
        let wrong = |flag: &str, why: String| Fault::new(Code::BadFlag).about(flag).fact("problem", why);
        for text in &self.set {
            assign(&mut all, text, Typing::Guess).map_err(|why| wrong("--set", why))?;
        }
        for text in &self.set_string {
            assign(&mut all, text, Typing::Text).map_err(|why| wrong("--set-string", why))?;
        }
        for text in &self.set_file {
            let Some((key, path)) = text.split_once('=') else {
                return Err(wrong("--set-file", format!("{text:?}: KEY=FILE is expected")).into());
            };
            let mut place = json!({});
            assign(&mut place, &format!("{key}="), Typing::Text).map_err(|why| wrong("--set-file", why))?;
            put_text(&mut place, &read_text(Path::new(path))?);
            merge(&mut all, &place);
        }
        for (path, value) in self.flags()? {
            let mut place = value;
            for key in path.rsplit('.') {
                place = json!({ key: place });
            }
            merge(&mut all, &place);
        }
        Ok(all)
    }

    /// Whether the issuer is given, in whatever way.
    pub(crate) fn new_issuer(&self, overrides: &Value) -> bool {
        self.identity_issuer_certificate_file.is_some()
            || overrides["identity"]["issuer"]["tls"]["crtPEM"].as_str().is_some_and(|pem| !pem.is_empty())
    }

    /// The flags that stand for one value each.
    fn flags(&self) -> Result<Vec<(&'static str, Value)>> {
        let mut all: Vec<(&'static str, Value)> = Vec::new();
        for (path, text) in [
            ("controllerLogLevel", &self.controller_log_level),
            ("identityTrustDomain", &self.identity_trust_domain),
            ("identity.issuer.issuanceLifetime", &self.identity_issuance_lifetime),
            ("identity.issuer.clockSkewAllowance", &self.identity_clock_skew_allowance),
            ("linkerdVersion", &self.control_plane_version),
            ("imagePullPolicy", &self.image_pull_policy),
            ("proxy.defaultInboundPolicy", &self.default_inbound_policy),
            ("proxy.image.name", &self.proxy_image),
            ("proxy.image.version", &self.proxy_version),
            ("proxy.logLevel", &self.proxy_log_level),
            ("proxy.resources.cpu.request", &self.proxy_cpu_request),
            ("proxy.resources.cpu.limit", &self.proxy_cpu_limit),
            ("proxy.resources.memory.request", &self.proxy_memory_request),
            ("proxy.resources.memory.limit", &self.proxy_memory_limit),
            ("proxyInit.ignoreInboundPorts", &self.skip_inbound_ports),
            ("proxyInit.ignoreOutboundPorts", &self.skip_outbound_ports),
        ] {
            all.extend(text.as_ref().map(|text| (path, json!(text))));
        }
        all.extend(self.controller_replicas.map(|n| ("controllerReplicas", json!(n))));
        for (path, set, value) in [
            ("identity.issuer.scheme", self.identity_external_issuer, json!("kubernetes.io/tls")),
            ("identity.externalCA", self.identity_external_ca, json!(true)),
            ("cniEnabled", self.linkerd_cni_enabled, json!(true)),
        ] {
            all.extend(set.then_some((path, value)));
        }
        for (path, file) in [
            ("identityTrustAnchorsPEM", &self.identity_trust_anchors_file),
            ("identity.issuer.tls.crtPEM", &self.identity_issuer_certificate_file),
            ("identity.issuer.tls.keyPEM", &self.identity_issuer_key_file),
        ] {
            if let Some(file) = file {
                all.push((path, json!(read_text(file)?)));
            }
        }
        Ok(all)
    }
}

/// Puts a text where the only leaf is.
fn put_text(tree: &mut Value, text: &str) {
    match tree {
        Value::Object(map) => map.values_mut().for_each(|inner| put_text(inner, text)),
        Value::Array(items) => items.iter_mut().for_each(|inner| put_text(inner, text)),
        leaf => *leaf = json!(text),
    }
}

fn file(path: &Path) -> Result<Value> {
    let text = read_text(path)?;
    let tree = yaml::parse(&text)
        .map_err(|why| Fault::new(Code::BadManifest).about(path.display()).fact("problem", why))?;
    match tree {
        Value::Null => Ok(json!({})),
        Value::Object(_) => Ok(tree),
        _ => {
            Err(Fault::new(Code::BadManifest).about(path.display()).fact("problem", "it holds no map").into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_later_one_wins() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("written");
            path
        };
        let flags = ValueFlags {
            files: vec![
                at("a.yaml", "controllerReplicas: 2\nproxy:\n  logLevel: a\n  uid: 7\n"),
                at("empty.yaml", ""),
            ],
            set: vec!["controllerReplicas=4,proxy.logLevel=b".into()],
            set_file: vec![format!("identityTrustAnchorsPEM={}", at("ca", "PEM").display())],
            controller_replicas: Some(5),
            ..ValueFlags::default()
        };
        assert_eq!(
            flags.overrides(json!({"cniEnabled": true})).unwrap(),
            json!({"cniEnabled": true, "controllerReplicas": 5, "proxy": {"logLevel": "b", "uid": 7},
                "identityTrustAnchorsPEM": "PEM"})
        );
    }

    #[test]
    fn wrong_files_and_flags_are_named() {
        let said = |flags: ValueFlags| format!("{:#}", flags.overrides(Value::Null).unwrap_err());
        assert!(
            said(ValueFlags { files: vec!["absent.yaml".into()], ..Default::default() })
                .contains("absent.yaml")
        );
        assert!(
            format!(
                "{:?}",
                ValueFlags { set: vec!["x".into()], ..Default::default() }
                    .overrides(Value::Null)
                    .unwrap_err()
            )
            .contains("CFG-005")
        );
    }
}
