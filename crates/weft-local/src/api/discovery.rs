//! Discovery: which groups, versions and resources there are, in the old form and in the aggregated one.

use std::sync::Arc;

use http::header::{ACCEPT, HeaderMap};
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::error::ApiError;
use super::kinds::Kind;
use super::respond::{self, Body, Shown};
use super::{Api, reviews};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// `/version`. The version is that of the API whose behaviour is followed.
pub(super) fn version() -> Value {
    json!({
        "major": "1",
        "minor": "36",
        "gitVersion": "v1.36.0+weft",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": "linux/amd64",
    })
}

/// One resource of a group version, with its subresources: what both forms are made of.
struct Resource {
    plural: String,
    singular: String,
    kind: String,
    namespaced: bool,
    verbs: Vec<&'static str>,
    short_names: Vec<String>,
    categories: Vec<String>,
    subresources: Vec<Subresource>,
}

struct Subresource {
    name: &'static str,
    group: &'static str,
    version: &'static str,
    kind: String,
    verbs: &'static [&'static str],
}

/// A group version and its resources.
struct Version {
    group: String,
    version: String,
    custom: bool,
    resources: Vec<Resource>,
}

/// Answers below `/api` and `/apis`.
pub(super) fn answer(api: &Api, path: &str, headers: &HeaderMap) -> Response<Body> {
    let aggregated = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).is_some_and(|accept| {
        accept.split(',').any(|offer| {
            let offer = offer.replace(' ', "");
            ["g=apidiscovery.k8s.io", "v=v2", "as=APIGroupDiscoveryList"]
                .iter()
                .all(|parameter| offer.split(';').any(|part| part == *parameter))
        })
    });
    let versions = versions(api);
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let found = match parts.as_slice() {
        ["api"] if aggregated => return aggregate(versions.iter().filter(|v| v.group.is_empty())),
        ["apis"] if aggregated => return aggregate(versions.iter().filter(|v| !v.group.is_empty())),
        ["api"] => Some(json!({
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [{ "clientCIDR": "0.0.0.0/0", "serverAddress": "" }],
        })),
        ["apis"] => Some(json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups(&versions) })),
        ["api", version] => resource_list(&versions, "", version),
        ["apis", group] => groups(&versions).into_iter().find(|found| found["name"] == *group).map(|group| {
            let mut whole = json!({ "kind": "APIGroup", "apiVersion": "v1" });
            for (key, value) in group.as_object().into_iter().flatten() {
                whole[key] = value.clone();
            }
            whole
        }),
        ["apis", group, version] => resource_list(&versions, group, version),
        _ => None,
    };
    if let Some(found) = found {
        return Shown::JSON.answer(StatusCode::OK, &found);
    }
    // A version that a built-in group lacks is refused by that group; nobody answers for unknown groups.
    let built_in = |group: &str| versions.iter().any(|v| v.group == group && !v.custom);
    match parts.as_slice() {
        ["apis", group, _] if built_in(group) => respond::failure(&ApiError::no_such_resource()),
        ["api", _] => respond::failure(&ApiError::no_such_resource()),
        _ => respond::plain(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

fn versions(api: &Api) -> Vec<Version> {
    let mut versions: Vec<Version> = Vec::new();
    let mut place = |group: &str, version: &str, custom: bool, resource: Resource| match versions
        .iter_mut()
        .find(|v| v.group == group && v.version == version)
    {
        Some(found) => found.resources.push(resource),
        None => versions.push(Version {
            group: group.to_owned(),
            version: version.to_owned(),
            custom,
            resources: vec![resource],
        }),
    };
    for kind in api.kinds.all() {
        place(&kind.group, &kind.version, kind.is_custom(), resource_of(&kind));
    }
    for review in reviews::REVIEWS {
        place(
            review.group,
            "v1",
            false,
            Resource {
                plural: review.plural.to_owned(),
                singular: review.kind.to_lowercase(),
                kind: review.kind.to_owned(),
                namespaced: review.namespaced,
                verbs: vec!["create"],
                short_names: Vec::new(),
                categories: Vec::new(),
                subresources: Vec::new(),
            },
        );
    }
    for version in &mut versions {
        version.resources.sort_by(|a, b| a.plural.cmp(&b.plural));
    }
    versions
}

fn resource_of(kind: &Arc<Kind>) -> Resource {
    const READ_WRITE: &[&str] = &["get", "patch", "update"];
    const CONNECT: &[&str] = &["create", "get"];
    const PROXY: &[&str] = &["create", "delete", "get", "patch", "update"];
    let mut subresources = Vec::new();
    let mut add = |name, group, version, kind: &str, verbs| {
        subresources.push(Subresource { name, group, version, kind: kind.to_owned(), verbs });
    };
    if !kind.is_custom() {
        match kind.plural.as_str() {
            "pods" => {
                add("attach", "", "", "PodAttachOptions", CONNECT);
                add("binding", "", "", "Binding", &["create"]);
                add("exec", "", "", "PodExecOptions", CONNECT);
                add("log", "", "", "Pod", &["get"]);
                add("portforward", "", "", "PodPortForwardOptions", CONNECT);
                add("proxy", "", "", "PodProxyOptions", PROXY);
            }
            "services" => add("proxy", "", "", "ServiceProxyOptions", PROXY),
            "namespaces" => add("finalize", "", "", "Namespace", &["update"]),
            "serviceaccounts" => add("token", "authentication.k8s.io", "v1", "TokenRequest", &["create"]),
            _ => {}
        }
    }
    if kind.scale {
        add("scale", "autoscaling", "v1", "Scale", READ_WRITE);
    }
    if kind.status {
        add("status", "", "", &kind.kind, READ_WRITE);
    }
    Resource {
        plural: kind.plural.clone(),
        singular: kind.singular.clone(),
        kind: kind.kind.clone(),
        namespaced: kind.namespaced,
        verbs: kind.verbs().to_vec(),
        short_names: kind.short_names.clone(),
        categories: kind.categories.clone(),
        subresources,
    }
}

/// The groups but the core one, each with its versions, the preferred one first.
fn groups(versions: &[Version]) -> Vec<Value> {
    let mut groups: Vec<Value> = Vec::new();
    for version in versions.iter().filter(|version| !version.group.is_empty()) {
        let entry = json!({
            "groupVersion": format!("{}/{}", version.group, version.version), "version": version.version,
        });
        match groups.iter_mut().find(|group| group["name"] == version.group) {
            Some(group) => {
                if let Some(list) = group["versions"].as_array_mut() {
                    list.push(entry);
                    sort_versions(list);
                    group["preferredVersion"] = group["versions"][0].clone();
                }
            }
            None => {
                groups.push(json!({ "name": version.group, "versions": [entry], "preferredVersion": entry }));
            }
        }
    }
    groups
}

fn sort_versions(list: &mut [Value]) {
    let rank = |entry: &Value| super::kinds::version_rank(entry["version"].as_str().unwrap_or(""));
    list.sort_by_key(|entry| std::cmp::Reverse(rank(entry)));
}

fn resource_list(versions: &[Version], group: &str, version: &str) -> Option<Value> {
    let found = versions.iter().find(|v| v.group == group && v.version == version)?;
    let mut resources = Vec::new();
    for resource in &found.resources {
        let mut entry = json!({
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": resource.verbs,
        });
        if !resource.short_names.is_empty() {
            entry["shortNames"] = json!(resource.short_names);
        }
        if !resource.categories.is_empty() {
            entry["categories"] = json!(resource.categories);
        }
        resources.push(entry);
        for sub in &resource.subresources {
            let mut entry = json!({
                "name": format!("{}/{}", resource.plural, sub.name),
                "singularName": "",
                "namespaced": resource.namespaced,
            });
            if !sub.group.is_empty() {
                entry["group"] = json!(sub.group);
                entry["version"] = json!(sub.version);
            }
            entry["kind"] = json!(sub.kind);
            entry["verbs"] = json!(sub.verbs);
            resources.push(entry);
        }
    }
    let mut list = json!({ "kind": "APIResourceList" });
    let group_version = if group.is_empty() {
        version.to_owned()
    } else {
        list["apiVersion"] = json!("v1");
        format!("{group}/{version}")
    };
    list["groupVersion"] = json!(group_version);
    list["resources"] = json!(resources);
    Some(list)
}

fn aggregate<'a>(versions: impl Iterator<Item = &'a Version>) -> Response<Body> {
    let mut items: Vec<Value> = Vec::new();
    for version in versions {
        let resources: Vec<Value> =
            version.resources.iter().map(|resource| aggregated_resource(version, resource)).collect();
        let entry = json!({ "version": version.version, "resources": resources, "freshness": "Current" });
        let same =
            items.iter_mut().find(|item| item["metadata"]["name"].as_str().unwrap_or("") == version.group);
        match same.and_then(|item| item["versions"].as_array_mut()) {
            Some(list) => {
                list.push(entry);
                sort_versions(list);
            }
            None => {
                let metadata =
                    if version.group.is_empty() { json!({}) } else { json!({ "name": version.group }) };
                items.push(json!({ "metadata": metadata, "versions": [entry] }));
            }
        }
    }
    let list = json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items,
    });
    respond::answer(StatusCode::OK, AGGREGATED, respond::to_json(&list))
}

fn aggregated_resource(version: &Version, resource: &Resource) -> Value {
    let own = |kind: &str| {
        let (group, version) =
            if version.custom { (version.group.as_str(), version.version.as_str()) } else { ("", "") };
        json!({ "group": group, "version": version, "kind": kind })
    };
    let mut entry = json!({
        "resource": resource.plural,
        "responseKind": own(&resource.kind),
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": resource.singular,
        "verbs": resource.verbs,
    });
    if !resource.short_names.is_empty() {
        entry["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = json!(resource.categories);
    }
    if !resource.subresources.is_empty() {
        let subresources = resource.subresources.iter().map(|sub| {
            let kind = if sub.group.is_empty() {
                own(&sub.kind)
            } else {
                json!({ "group": sub.group, "version": sub.version, "kind": sub.kind })
            };
            json!({ "subresource": sub.name, "responseKind": kind, "verbs": sub.verbs })
        });
        entry["subresources"] = subresources.collect();
    }
    entry
}
