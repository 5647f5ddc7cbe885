//! The controller inside `weft up`: what it is given from outside, and how it begins.

use crate::{
    apply::{Applier, Refused, api_message},
    files::read_text,
};
use anyhow::{Result, bail};
use ipnet::IpNet;
use kube::Client;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{net::IpAddr, path::Path, time::Duration};
use tokio::time::{Instant, sleep};
use weft_control::{
    bootstrap::{IdentityFiles, bootstrap_objects},
    config::{ControllerConfig, Ports},
    install::objects::COMPONENT,
};
use weft_fault::{Code, Fault, Phase};
use weft_kube::api;
use weft_local::{api::kubelet::MIRROR, controller::Seat, node::NODE_NAME};

/// The API serves a new kind a moment after its definition was applied.
const KIND_DEADLINE: Duration = Duration::from_secs(5);

/// What `weft up` was given for the controller, on its way through the supervisor.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// Trust anchors and issuer in PEM; made anew without them.
    identity: Option<Pem>,
    proxy_log_level: String,
}

#[derive(Serialize, Deserialize)]
struct Pem {
    trust_anchors: String,
    issuer_certificate: String,
    issuer_key: String,
}

/// Holds a key: never print it.
impl std::fmt::Debug for Pem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pem")
    }
}

impl Settings {
    /// Reads the files early, so that a wrong path or a missing key is told before anything starts.
    pub(crate) fn read(
        trust_anchor: Option<&Path>,
        issuer: Option<&Path>,
        proxy_log_level: &str,
    ) -> Result<Self> {
        let identity = match (trust_anchor, issuer) {
            (Some(anchor), Some(issuer)) => Some(Pem::read(anchor, issuer)?),
            _ => None,
        };
        Ok(Settings { identity, proxy_log_level: proxy_log_level.to_string() })
    }
}

impl Pem {
    fn read(anchor: &Path, issuer: &Path) -> Result<Self> {
        let (trust_anchors, both) = (read_text(anchor)?, read_text(issuer)?);
        if !trust_anchors.contains("BEGIN CERTIFICATE") {
            bail!("{}: holds no certificate in PEM", anchor.display());
        }
        let (certificates, keys): (Vec<_>, Vec<_>) =
            pem_blocks(&both).into_iter().partition(|block| block.contains("BEGIN CERTIFICATE"));
        let keys: Vec<_> = keys.into_iter().filter(|block| block.contains("PRIVATE KEY")).collect();
        match (certificates.is_empty(), keys.len()) {
            (false, 1) => {}
            (true, _) => bail!("{}: holds no certificate in PEM", issuer.display()),
            (_, n) => bail!("{}: holds {n} private keys, and one is needed", issuer.display()),
        }
        Ok(Pem { trust_anchors, issuer_certificate: certificates.concat(), issuer_key: keys.concat() })
    }
}

/// Each block from its BEGIN line to its END line, with a line end.
fn pem_blocks(text: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut block: Option<String> = None;
    for line in text.lines().map(str::trim_end) {
        if line.starts_with("-----BEGIN ") {
            block = Some(String::new());
        }
        if let Some(block) = &mut block {
            block.push_str(line);
            block.push('\n');
        }
        if line.starts_with("-----END ") {
            blocks.extend(block.take());
        }
    }
    blocks
}

/// The pod that stands for this controller.
const STAND_IN: &str = "weft-controller";

/// A pod that stands for this controller, as static pods' mirrors do: whoever looks for the control plane finds it, and
/// port-forwarding leads to its ports.
async fn stand_in(client: &Client, node_ip: IpAddr) -> Result<Value, Fault> {
    const PODS: &str = "/api/v1/namespaces/linkerd/pods";
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": STAND_IN, "namespace": "linkerd", "annotations": {(MIRROR): "weft-up"},
            "labels": {(COMPONENT): "controller"}},
        "spec": {"nodeName": NODE_NAME, "hostNetwork": true, "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "controller", "image": "weft"}]}});
    match api::create(client, PODS, &pod).await {
        // Of a mesh that was killed.
        Err(error) if error.code() == Some(409) => {}
        other => drop(other?),
    }
    let ip = node_ip.to_string();
    let since = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let container = json!({"name": "controller", "image": "weft", "imageID": "", "ready": true, "started": true, "restartCount": 0,
        "state": {"running": {"startedAt": since}}});
    let status = json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "hostIP": ip,
        "startTime": since, "containerStatuses": [container], "conditions": [
            {"type": "Ready", "status": "True"}, {"type": "ContainersReady", "status": "True"}]}});
    Ok(api::merge(client, &format!("{PODS}/{STAND_IN}/status"), &status).await?)
}

/// An API server that is not the mesh's own reaches for pods and nothing else when it is asked to lead to a Service (`weft
/// explain` asks the controller that way), and only finds them in Endpoints.
async fn endpoints_of(client: &Client, pod: &Value, node_ip: IpAddr) -> Result<(), Fault> {
    let ip = node_ip.to_string();
    let endpoints = json!({"apiVersion": "v1", "kind": "Endpoints",
        "metadata": {"name": "linkerd-dst", "namespace": "linkerd",
            // Its EndpointSlices are there already.
            "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": [{"ports": [{"name": "admin-http", "port": Ports::default().admin}],
            "addresses": [{"ip": ip, "nodeName": NODE_NAME, "targetRef": {
                "kind": "Pod", "namespace": "linkerd", "name": STAND_IN, "uid": pod["metadata"]["uid"]}}]}]});
    let path = "/api/v1/namespaces/linkerd/endpoints/linkerd-dst";
    api::apply(client, path, "weft-controller", &endpoints).await?;
    Ok(())
}

/// Serves until the mesh ends. The first controller of a mesh brings the control plane's own objects into the API.
pub(crate) async fn serve(seat: Seat) -> Result<(), Fault> {
    let Seat { client, network, options, mut stop, external, furnished, has_furnished, .. } = seat;
    let settings: Settings = serde_json::from_value(options)
        .map_err(|error| Fault::new(Code::Invariant).about("the controller's settings").because(error))?;
    let node_ip = IpAddr::from(network.node_ip());
    let mut config = ControllerConfig::new(node_ip, vec![network.pods.into(), network.services.into()]);
    config.probe_networks = vec![IpNet::from(node_ip)];
    if !settings.proxy_log_level.is_empty() {
        config.injection.log_level = settings.proxy_log_level;
    }
    if let Ok(own) = std::env::current_exe() {
        // There are no images here: hooks run this program.
        config.injection.await_command = vec![own.display().to_string(), "await".to_owned()];
    }
    if !furnished {
        furnish(&client, &config, settings.identity).await?;
    }
    let pod = stand_in(&client, node_ip).await?;
    if external {
        endpoints_of(&client, &pod, node_ip).await?;
    }
    has_furnished();
    let stopped = async move {
        // The sender goes with the supervisor: an end as well.
        let _ = stop.wait_for(Option::is_some).await;
    };
    weft_control::controller::run(config, client, stopped).await
}

/// Brings the control plane's own objects into the API.
async fn furnish(client: &Client, config: &ControllerConfig, identity: Option<Pem>) -> Result<(), Fault> {
    let identity = match identity {
        Some(pem) => IdentityFiles {
            trust_roots: pem.trust_anchors,
            issuer_certificate: pem.issuer_certificate,
            issuer_key: pem.issuer_key,
        },
        None => IdentityFiles::generate(config)?,
    };
    let mut applier = Applier::new(client.clone(), "weft-controller");
    let deadline = Instant::now() + KIND_DEADLINE;
    for object in bootstrap_objects(config, &identity) {
        loop {
            match applier.apply(&object).await {
                Ok(()) => break,
                Err(Refused::Kind(_)) if Instant::now() < deadline => sleep(Duration::from_millis(20)).await,
                Err(Refused::Kind(error) | Refused::Object(error)) => {
                    return Err(Fault::new(Code::StartFailed)
                        .in_phase(Phase::Start)
                        .about(format!("{} {}", object["kind"], object["metadata"]["name"]))
                        .fact("answer", api_message(&error)));
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(anchor: &str, issuer: &str) -> Result<Pem, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let (a, i) = (folder.path().join("ca.pem"), folder.path().join("issuer.pem"));
        std::fs::write(&a, anchor).expect("write");
        std::fs::write(&i, issuer).expect("write");
        Pem::read(&a, &i).map_err(|e| e.to_string())
    }

    const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\r\nAAAA\r\n-----END CERTIFICATE-----\r\n";
    const KEY: &str = "-----BEGIN PRIVATE KEY-----\nBBBB\n-----END PRIVATE KEY-----";

    #[test]
    fn certificate_and_key_are_told_apart_in_any_order() {
        let pem = read(CERTIFICATE, &format!("# ours\n{KEY}\n\n{CERTIFICATE}")).unwrap();
        assert_eq!(pem.issuer_key.lines().count(), 3);
        assert!(pem.issuer_certificate.contains("AAAA") && !pem.issuer_certificate.contains("BBBB"));
    }

    #[test]
    fn what_is_missing_is_named() {
        assert!(read("", KEY).unwrap_err().contains("ca.pem"));
        assert!(read(CERTIFICATE, CERTIFICATE).unwrap_err().contains("0 private keys"));
        assert!(read(CERTIFICATE, KEY).unwrap_err().contains("no certificate"));
    }

    #[test]
    fn keys_are_not_printed() {
        let settings = Settings {
            identity: Some(read(CERTIFICATE, &format!("{CERTIFICATE}{KEY}")).unwrap()),
            ..Settings::default()
        };
        assert!(!format!("{settings:?}").contains("BBBB"));
    }
}
