//! `io.linkerd.proxy.identity.Identity`: a ServiceAccount's token in, a certificate out.

use crate::{
    authority::{Authorities, COMPONENT},
    config::{ControllerConfig, IdentityConfig},
    events::{Event, Events},
};
use kube::Client;
use linkerd2_proxy_api::identity::{CertifyRequest, CertifyResponse, identity_server::Identity};
use serde::Deserialize;
use serde_json::json;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::Semaphore;
use tonic::{Code as Grpc, Request, Response, Status};
use weft_fault::{Code, Fault, Phase};
use weft_kube::api::{self, ApiError};
use weft_model::identity::Identity as Name;
use weft_tls::{
    authority::{Issued, Validity, when},
    certificate::sha256_hex,
    request::SigningRequest,
};

const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
/// Requests at work at the same time: a mesh that starts asks for all its certificates at once.
const AT_ONCE: usize = 64;
/// The longest token that is sent on to the API.
const TOKEN_LIMIT: usize = 16 * 1024;

pub struct IdentityService {
    config: ControllerConfig,
    client: Client,
    authorities: Authorities,
    events: Events,
    permits: Semaphore,
}

impl IdentityService {
    pub fn new(config: ControllerConfig, client: Client, authorities: Authorities, events: Events) -> Self {
        IdentityService { config, client, authorities, events, permits: Semaphore::new(AT_ONCE) }
    }

    async fn sign(&self, request: &CertifyRequest) -> Result<Issued, Fault> {
        // 1. What is asked for.
        let wanted = Name::parse(&request.identity)
            .map_err(|e| malformed("identity", &e.to_string()).about(&request.identity))?;
        let token = std::str::from_utf8(&request.token)
            .ok()
            .map(str::trim)
            .filter(|t| !t.is_empty() && t.len() <= TOKEN_LIMIT)
            .ok_or_else(|| malformed("token", "missing, too long or not text").about(&wanted))?;
        if request.certificate_signing_request.is_empty() {
            return Err(malformed("certificate-signing-request", "missing").about(&wanted));
        }
        let authority = self.authorities.current().ok_or_else(|| {
            Fault::new(Code::IssuerUnusable).in_phase(Phase::Certify).fact("issuer", "not loaded yet")
        })?;

        // 2. Who asks: the API says whose token it is.
        let account = self.review(token).await.map_err(|fault| fault.about(&wanted))?;
        let proved = account.identity(&self.config).ok_or_else(|| refused(&wanted, &account.text()))?;
        if proved != wanted {
            return Err(refused(&wanted, proved.as_str()));
        }

        // 3. A certificate for that and nothing else.
        let csr = SigningRequest::parse(&request.certificate_signing_request, &wanted)?;
        let now = SystemTime::now();
        let IdentityConfig { issuance_lifetime, clock_skew, .. } = self.config.identity;
        let issued = authority.ca.sign(&csr, Validity::with_skew(issuance_lifetime, clock_skew), now)?;
        tracing::info!(identity = %wanted, issuer = authority.ca.facts().sha256, "certificate issued");
        self.events.tell(account.issued(&wanted, &issued));
        Ok(issued)
    }

    async fn review(&self, token: &str) -> Result<ServiceAccount, Fault> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Review {
            status: ReviewStatus,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct ReviewStatus {
            authenticated: bool,
            user: User,
            audiences: Vec<String>,
            error: String,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct User {
            username: String,
            uid: String,
        }
        let audience = &self.config.identity.audience;
        let question = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "spec": {"token": token, "audiences": [audience]},
        });
        let answer = api::create(&self.client, TOKEN_REVIEWS, &question).await?;
        let review: Review = serde_json::from_value(answer).map_err(ApiError::Unreadable)?;
        let rejected = |why: &str| {
            Fault::new(Code::TokenRejected).in_phase(Phase::Certify).fact("token-review", why.to_owned())
        };
        let status = review.status;
        if !status.authenticated {
            return Err(rejected(if status.error.is_empty() { "not authenticated" } else { &status.error }));
        }
        // A server that knows no audiences names none, and then the token may be for anybody.
        if !status.audiences.contains(audience) {
            return Err(rejected("the token is for another audience"));
        }
        ServiceAccount::parse(&status.user.username)
            .map(|account| ServiceAccount { uid: status.user.uid, ..account })
            .ok_or_else(|| rejected(&format!("{:?} is no ServiceAccount", status.user.username)))
    }
}

struct ServiceAccount {
    namespace: String,
    name: String,
    uid: String,
}

impl ServiceAccount {
    fn parse(username: &str) -> Option<Self> {
        let (namespace, name) = username.strip_prefix("system:serviceaccount:")?.split_once(':')?;
        // A dot would move labels of the identity about: `a.b` in `c` reads like `a` in `b.c`.
        let label = |text: &str| !text.is_empty() && !text.contains(['.', ':']);
        (label(namespace) && label(name)).then(|| ServiceAccount {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: String::new(),
        })
    }

    fn identity(&self, config: &ControllerConfig) -> Option<Name> {
        config.identities().service_account(&self.namespace, &self.name)
    }

    fn issued(&self, identity: &Name, issued: &Issued) -> Event {
        Event {
            about: json!({"apiVersion": "v1", "kind": "ServiceAccount", "namespace": self.namespace,
                "name": self.name, "uid": self.uid}),
            warning: false,
            reason: "IssuedLeafCertificate".to_owned(),
            message: format!("issued certificate for {identity}"),
            detail: format!(" until {}: {}", when(issued.not_after), sha256_hex(&issued.leaf)),
            component: COMPONENT,
        }
    }

    fn text(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

fn malformed(field: &'static str, why: &str) -> Fault {
    Fault::new(Code::CertifyRefused).in_phase(Phase::Certify).fact(MALFORMED, format!("{field}: {why}"))
}

/// The evidence that a request could not even be read.
const MALFORMED: &str = "malformed";

fn refused(wanted: &Name, proved: &str) -> Fault {
    Fault::new(Code::CertifyRefused)
        .in_phase(Phase::Certify)
        .about(wanted)
        .fact("token-is-of", proved)
        .fact("asked-for", wanted)
        .fact(
            "why",
            match wanted.as_str().starts_with("spiffe://") {
                true => "a token proves a ServiceAccount; a SPIFFE ID is proved by a SPIRE agent",
                false => "a token proves its own ServiceAccount only",
            },
        )
}

fn status(fault: &Fault) -> Status {
    let code = match fault.code() {
        Code::CertifyRefused if fault.record().fact(MALFORMED).is_some() => Grpc::InvalidArgument,
        Code::CertifyRefused | Code::TokenRejected => Grpc::FailedPrecondition,
        Code::IssuerUnusable => Grpc::Unavailable,
        _ => Grpc::Internal,
    };
    Status::new(code, fault.to_string())
}

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn certify(&self, request: Request<CertifyRequest>) -> Result<Response<CertifyResponse>, Status> {
        let _permit = self
            .permits
            .acquire()
            .await
            .map_err(|_| Status::unavailable("the controller is shutting down"))?;
        let issued = self.sign(request.get_ref()).await.map_err(|fault| {
            tracing::warn!("{fault:?}");
            status(&fault)
        })?;
        let valid_until = issued.not_after.duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Response::new(CertifyResponse {
            leaf_certificate: issued.leaf.to_vec(),
            intermediate_certificates: issued.intermediates.iter().map(|c| c.to_vec()).collect(),
            valid_until: Some(prost_types::Timestamp {
                seconds: i64::try_from(valid_until.as_secs()).unwrap_or(i64::MAX),
                nanos: 0,
            }),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_accounts_have_identities() {
        let account = ServiceAccount::parse("system:serviceaccount:shop:store").unwrap();
        assert_eq!(account.text(), "shop/store");
        for bad in [
            "store",
            "system:serviceaccount:shop",
            "system:serviceaccount:shop:",
            "system:serviceaccount:shop:a.b",
            "system:serviceaccount:sh.op:a",
            "system:serviceaccount:shop:a:b",
            "system:node:n1",
        ] {
            assert!(ServiceAccount::parse(bad).is_none(), "{bad}");
        }
    }
}
