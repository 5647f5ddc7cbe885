//! Resources that are questions: TokenRequest, TokenReview, and the reviews of access.

use serde_json::{Value, json};

use super::auth::{self, Action, User};
use super::error::{ApiError, FieldError};
use super::request::Address;
use super::{Api, meta, tokens};

/// A kind that is only ever created, and not kept.
pub(super) struct Review {
    pub group: &'static str,
    pub plural: &'static str,
    pub kind: &'static str,
    pub namespaced: bool,
}

const AUTHENTICATION: &str = "authentication.k8s.io";
const AUTHORIZATION: &str = "authorization.k8s.io";

pub(super) const REVIEWS: &[Review] = &[
    Review {
        group: AUTHENTICATION,
        plural: "selfsubjectreviews",
        kind: "SelfSubjectReview",
        namespaced: false,
    },
    Review { group: AUTHENTICATION, plural: "tokenreviews", kind: "TokenReview", namespaced: false },
    Review {
        group: AUTHORIZATION,
        plural: "localsubjectaccessreviews",
        kind: "LocalSubjectAccessReview",
        namespaced: true,
    },
    Review {
        group: AUTHORIZATION,
        plural: "selfsubjectaccessreviews",
        kind: "SelfSubjectAccessReview",
        namespaced: false,
    },
    Review {
        group: AUTHORIZATION,
        plural: "selfsubjectrulesreviews",
        kind: "SelfSubjectRulesReview",
        namespaced: false,
    },
    Review {
        group: AUTHORIZATION,
        plural: "subjectaccessreviews",
        kind: "SubjectAccessReview",
        namespaced: false,
    },
];

pub(super) fn is_review(address: &Address) -> bool {
    address.version == "v1"
        && address.name.is_empty()
        && REVIEWS.iter().any(|review| review.group == address.group && review.plural == address.plural)
}

/// The kind of review that a path asks for.
pub(super) fn kind_of(address: &Address) -> &'static str {
    let found =
        REVIEWS.iter().find(|review| review.group == address.group && review.plural == address.plural);
    found.map_or("", |review| review.kind)
}

/// Answers a review; the question is repeated in the answer.
pub(super) fn review(api: &Api, user: &User, address: &Address, body: Value) -> Result<Value, ApiError> {
    let review = REVIEWS
        .iter()
        .find(|review| review.group == address.group && review.plural == address.plural)
        .ok_or_else(ApiError::no_such_resource)?;
    let mut answer = json!({
        "kind": review.kind,
        "apiVersion": format!("{}/v1", review.group),
        "metadata": {},
    });
    if let Some(spec) = body.get("spec") {
        answer["spec"] = spec.clone();
    }
    answer["status"] = match review.plural {
        "selfsubjectreviews" => {
            answer["metadata"]["creationTimestamp"] = json!(meta::now());
            json!({ "userInfo": user.to_info() })
        }
        "tokenreviews" => review_token(api, &body["spec"])?,
        "selfsubjectaccessreviews" => access(api, user, &body["spec"])?,
        "selfsubjectrulesreviews" => match meta::text(&body, "/spec/namespace") {
            "" => return Err(ApiError::bad_request("no namespace on request")),
            namespace => auth::rules(&api.store, user, namespace),
        },
        _ => {
            let spec = &body["spec"];
            let groups = meta::items(spec, "/groups").iter().filter_map(Value::as_str).map(str::to_owned);
            let asked = User {
                name: meta::text(spec, "/user").to_owned(),
                groups: groups.collect(),
                ..User::default()
            };
            if asked.name.is_empty() && asked.groups.is_empty() {
                let error =
                    FieldError::invalid("spec.user", "", "at least one of user or group must be specified");
                return Err(ApiError::invalid(&format!(".{AUTHORIZATION}"), "", &[error]));
            }
            access(api, &asked, spec)?
        }
    };
    Ok(answer)
}

fn access(api: &Api, user: &User, spec: &Value) -> Result<Value, ApiError> {
    let resource = &spec["resourceAttributes"];
    if resource.is_object() == spec["nonResourceAttributes"].is_object() {
        let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        let error = FieldError::invalid("spec.resourceAttributes", resource.clone(), why);
        return Err(ApiError::invalid(&format!(".{AUTHORIZATION}"), "", &[error]));
    }
    let path = spec["nonResourceAttributes"]["path"].as_str();
    let action = match path {
        Some(path) => Action {
            verb: meta::text(spec, "/nonResourceAttributes/verb"),
            path: Some(path),
            ..Action::default()
        },
        None => Action {
            verb: meta::text(resource, "/verb"),
            group: meta::text(resource, "/group"),
            resource: meta::text(resource, "/resource"),
            subresource: meta::text(resource, "/subresource"),
            namespace: meta::text(resource, "/namespace"),
            name: meta::text(resource, "/name"),
            path: None,
        },
    };
    Ok(match auth::permission(&api.store, user, &action) {
        None => json!({ "allowed": false }),
        Some(reason) if reason.is_empty() => json!({ "allowed": true }),
        Some(reason) => json!({ "allowed": true, "reason": reason }),
    })
}

fn review_token(api: &Api, spec: &Value) -> Result<Value, ApiError> {
    let token = meta::text(spec, "/token");
    if token.is_empty() {
        return Err(ApiError::bad_request("token is required for TokenReview in authentication"));
    }
    let audiences: Vec<String> =
        meta::items(spec, "/audiences").iter().filter_map(Value::as_str).map(str::to_owned).collect();
    Ok(match auth::service_account(&api.tokens, &api.store, token, &audiences) {
        Ok((user, audiences)) => {
            json!({ "authenticated": true, "user": user.to_info(), "audiences": audiences })
        }
        Err(why) => json!({ "user": {}, "error": why.0 }),
    })
}

/// `…/serviceaccounts/NAME/token`.
pub(super) fn issue_token(api: &Api, address: &Address, body: &Value) -> Result<Value, ApiError> {
    let (namespace, name) = (address.namespace.as_str(), address.name.as_str());
    let account = api
        .store
        .get("serviceaccounts", namespace, name)
        .ok_or_else(|| ApiError::not_found("serviceaccounts", name))?;
    let spec = &body["spec"];
    let seconds = meta::int(spec, "/expirationSeconds").unwrap_or(3600);
    let mut errors = Vec::new();
    if seconds < 600 {
        let why = "may not specify a duration less than 10 minutes";
        errors.push(FieldError::invalid("spec.expirationSeconds", seconds, why));
    } else if seconds > 1 << 32 {
        let why = "may not specify a duration larger than 2^32 seconds";
        errors.push(FieldError::invalid("spec.expirationSeconds", seconds, why));
    }
    if !errors.is_empty() {
        return Err(ApiError::invalid("TokenRequest.authentication.k8s.io", "", &errors));
    }
    let audiences = match meta::items(spec, "/audiences") {
        [] => json!([tokens::ISSUER]),
        given => json!(given),
    };
    let mut about = json!({
        "namespace": namespace, "serviceaccount": { "name": name, "uid": meta::uid(&account) },
    });
    let bound = &spec["boundObjectRef"];
    if bound.is_object() {
        bind(api, namespace, name, bound, &mut about)?;
    }
    let now = jiff::Timestamp::now().as_second();
    let claims = json!({
        "aud": audiences,
        "exp": now + seconds,
        "iat": now,
        "iss": tokens::ISSUER,
        "jti": uuid::Uuid::new_v4().to_string(),
        "kubernetes.io": about,
        "nbf": now,
        "sub": format!("system:serviceaccount:{namespace}:{name}"),
    });
    let expires = jiff::Timestamp::from_second(now + seconds).map_or_else(|_| meta::now(), meta::time);
    Ok(json!({
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {
            "name": name, "namespace": namespace, "uid": meta::uid(&account), "creationTimestamp": meta::now(),
        },
        "spec": { "audiences": audiences, "expirationSeconds": seconds, "boundObjectRef": spec["boundObjectRef"] },
        "status": { "token": api.tokens.sign(&claims), "expirationTimestamp": expires },
    }))
}

/// Ties a token to a pod or a Secret: it dies with it.
fn bind(api: &Api, namespace: &str, account: &str, bound: &Value, about: &mut Value) -> Result<(), ApiError> {
    let (kind, name) = (meta::text(bound, "/kind"), meta::text(bound, "/name"));
    let (plural, claim) = match kind {
        "Pod" => ("pods", "pod"),
        "Secret" => ("secrets", "secret"),
        _ => {
            let version = meta::text(bound, "/apiVersion");
            let slash = if version.contains('/') { "" } else { "/" };
            let message = format!("cannot bind token to object of type {slash}{version}, Kind={kind}");
            return Err(ApiError::bad_request(message));
        }
    };
    let object = api.store.get(plural, namespace, name).ok_or_else(|| ApiError::not_found(plural, name))?;
    let wanted = meta::text(bound, "/uid");
    if !wanted.is_empty() && wanted != meta::uid(&object) {
        let why = format!(
            "the UID in the bound object reference ({wanted}) does not match the UID in record. The object might have \
             been deleted and then recreated"
        );
        return Err(ApiError::conflict(kind, name, &why));
    }
    if kind == "Pod" && meta::text(&object, "/spec/serviceAccountName") != account {
        let message = format!(
            "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
        );
        return Err(ApiError::bad_request(message));
    }
    about[claim] = json!({ "name": name, "uid": meta::uid(&object) });
    Ok(())
}
