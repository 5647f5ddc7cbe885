//! The controller's own server certificates: made from the issuer it signs with, renewed long before they end.

use crate::{authority::Authorities, config::ControllerConfig};
use arc_swap::ArcSwapOption;
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};
use weft_fault::{Code, Fault};
use weft_tls::{
    keys::Key,
    named::{NamedServer, Names},
};

const LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// After a failure.
const RETRY: Duration = Duration::from_secs(5);

/// The certificates in use.
#[derive(Clone, Debug, Default)]
pub struct Certificates(Arc<ArcSwapOption<NamedServer>>);

impl Certificates {
    pub fn current(&self) -> Option<Arc<NamedServer>> {
        self.0.load_full()
    }

    pub fn replace(&self, server: NamedServer) {
        self.0.store(Some(Arc::new(server)));
    }
}

/// Every name under which proxies call the control plane.
pub fn names(config: &ControllerConfig) -> Vec<String> {
    let ns = &config.control_namespace;
    let identities = ["linkerd-destination", "linkerd-identity", "linkerd-policy"];
    identities
        .iter()
        .filter_map(|account| config.identities().service_account(ns, account))
        .map(|id| id.to_string())
        .collect()
}

/// Makes certificates whenever the issuer changes and at 70 % of their life. Runs until dropped.
pub async fn renew(config: ControllerConfig, mut authorities: Authorities, certificates: Certificates) {
    loop {
        let next = match make(&config, &authorities) {
            Ok(None) => None,
            Ok(Some((server, until))) => {
                certificates.replace(server);
                let life = until.duration_since(SystemTime::now()).unwrap_or_default();
                Some(life.mul_f64(0.7).max(RETRY))
            }
            Err(fault) => {
                tracing::error!("the control plane's own certificate could not be made: {fault:?}");
                Some(RETRY)
            }
        };
        tokio::select! {
            () = authorities.changed() => {}
            () = tokio::time::sleep(next.unwrap_or(Duration::MAX)) => {}
        }
    }
}

fn make(
    config: &ControllerConfig,
    authorities: &Authorities,
) -> Result<Option<(NamedServer, SystemTime)>, Fault> {
    let Some(authority) = authorities.current() else { return Ok(None) };
    let mut served = Names::default();
    let mut until = SystemTime::now() + LIFETIME;
    for name in names(config) {
        let key = Key::generate().map_err(|e| Fault::new(Code::IssuerUnusable).because(e.to_string()))?;
        let issued = authority.ca.issue(&key, &[&name], LIFETIME, SystemTime::now())?;
        until = until.min(issued.not_after);
        served.add(&name, &key, &issued)?;
    }
    // Proxies ask for nothing and speak HTTP/2.
    Ok(Some((served.server(&authority.roots, &[b"h2", b"http/1.1"])?, until)))
}
