//! Services and EndpointSlices: defaults and validation. Cluster IPs are given in `api::cluster_ip`.

use serde_json::{Value, json};

use super::{names, pod};
use crate::api::error::FieldError;
use crate::api::meta::{self, default};

const VALID_IP: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";

pub(super) fn default_service(service: &mut Value) {
    let spec = meta::object_mut(service, "spec");
    default(spec, "type", "ClusterIP");
    default(spec, "sessionAffinity", "None");
    let external_name = spec["type"] == "ExternalName";
    if !external_name {
        default(spec, "internalTrafficPolicy", "Cluster");
    }
    if spec["sessionAffinity"] == "ClientIP" {
        default(spec, "sessionAffinityConfig", json!({ "clientIP": { "timeoutSeconds": 10_800 } }));
    }
    if spec["type"] == "NodePort" || spec["type"] == "LoadBalancer" {
        default(spec, "externalTrafficPolicy", "Cluster");
    }
    if spec["type"] == "LoadBalancer" {
        default(spec, "allocateLoadBalancerNodePorts", true);
    }
    if let Some(ip) = spec.get("clusterIP").cloned().filter(|ip| ip.as_str().is_some_and(|ip| !ip.is_empty()))
    {
        default(spec, "clusterIPs", json!([ip]));
    }
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(port) = port.as_object_mut() else { continue };
        default(port, "protocol", "TCP");
        if let Some(number) = port.get("port").cloned() {
            default(port, "targetPort", number);
        }
    }
    let status = meta::object_mut(service, "status");
    default(status, "loadBalancer", json!({}));
}

/// The families of a Service's addresses. One whose endpoints somebody else writes may have them of both.
pub(crate) fn settle_families(service: &mut Value) {
    let spec = meta::object_mut(service, "spec");
    if spec.get("type").is_some_and(|kind| kind == "ExternalName") {
        return;
    }
    let bare = spec.get("selector").and_then(Value::as_object).is_none_or(serde_json::Map::is_empty);
    if bare && spec.get("clusterIP").is_some_and(|ip| ip == "None") {
        default(spec, "ipFamilies", json!(["IPv4", "IPv6"]));
        default(spec, "ipFamilyPolicy", "RequireDualStack");
        return;
    }
    default(spec, "ipFamilies", json!(["IPv4"]));
    default(spec, "ipFamilyPolicy", "SingleStack");
}

/// What an update leaves out is kept: the address is for life.
pub(crate) fn keep_address(new: &mut Value, old: &Value) {
    let still_clustered = new["spec"]["type"] != "ExternalName";
    let spec = meta::object_mut(new, "spec");
    if still_clustered && spec.get("clusterIP").is_none_or(|ip| ip == "") {
        for field in ["clusterIP", "clusterIPs"] {
            if let Some(value) = old["spec"].get(field) {
                spec.insert(field.to_owned(), value.clone());
            }
        }
    }
    if still_clustered {
        for field in ["ipFamilies", "ipFamilyPolicy"] {
            if let Some(value) = old["spec"].get(field) {
                default(spec, field, value.clone());
            }
        }
        settle_families(new);
    }
}

pub(super) fn validate_service(service: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let spec = &service["spec"];
    let ports = meta::items(spec, "/ports");
    let headless = spec["clusterIP"] == "None";
    let kind = meta::text(spec, "/type");
    let kinds = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    if ports.is_empty() && !headless && kind != "ExternalName" {
        errors.push(FieldError::required("spec.ports", ""));
    }
    let mut seen: Vec<(&Value, &Value)> = Vec::new();
    let mut port_names: Vec<&str> = Vec::new();
    for (i, port) in ports.iter().enumerate() {
        let field = format!("spec.ports[{i}]");
        let name = meta::text(port, "/name");
        if name.is_empty() {
            if ports.len() > 1 {
                errors.push(FieldError::required(format!("{field}.name"), ""));
            }
        } else if let Some(why) = names::label(name) {
            errors.push(FieldError::invalid(format!("{field}.name"), name, why));
        } else if port_names.contains(&name) {
            errors.push(FieldError::duplicate(format!("{field}.name"), name));
        }
        port_names.push(name);
        pod::port_number(&format!("{field}.port"), port["port"].as_i64().unwrap_or(0), errors);
        let protocols = ["SCTP", "TCP", "UDP"];
        let protocol = meta::text(port, "/protocol");
        if !protocols.contains(&protocol) {
            errors.push(FieldError::unsupported(format!("{field}.protocol"), protocol, &protocols));
        }
        match &port["targetPort"] {
            Value::Number(number) => {
                pod::port_number(&format!("{field}.targetPort"), number.as_i64().unwrap_or(0), errors);
            }
            Value::String(name) => {
                if let Some(why) = pod::port_name(name) {
                    errors.push(FieldError::invalid(format!("{field}.targetPort"), name.as_str(), why));
                }
            }
            _ => {}
        }
        let key = (&port["port"], &port["protocol"]);
        if seen.contains(&key) {
            // In the form in which a real server has it.
            let shown = format!(
                "{{\"Name\":\"\",\"Protocol\":{},\"AppProtocol\":null,\"Port\":{},\"TargetPort\":0,\"NodePort\":0}}",
                port["protocol"], port["port"]
            );
            let message = format!("Duplicate value: {shown}");
            errors.push(FieldError { reason: "FieldValueDuplicate", field, message });
        }
        seen.push(key);
    }
    names::labels("spec.selector", spec["selector"].as_object(), errors);
    let affinities = ["ClientIP", "None"];
    let affinity = meta::text(spec, "/sessionAffinity");
    if !affinities.contains(&affinity) {
        errors.push(FieldError::unsupported("spec.sessionAffinity", affinity, &affinities));
    }
    if !kinds.contains(&kind) {
        errors.push(FieldError::unsupported("spec.type", kind, &kinds));
    }
    if kind == "ExternalName" && meta::text(spec, "/externalName").is_empty() {
        errors.push(FieldError::required("spec.externalName", ""));
    }
    let bare = spec["selector"].as_object().is_none_or(serde_json::Map::is_empty);
    if spec["ipFamilyPolicy"] == "RequireDualStack" && !(headless && bare) {
        let why = "this cluster is not configured for dual-stack services";
        errors.push(FieldError::invalid("spec.ipFamilyPolicy", "RequireDualStack", why));
    }
    if let Some(old) = old {
        let before = meta::text(old, "/spec/clusterIP");
        if !before.is_empty() && kind != "ExternalName" && spec["clusterIP"] != before {
            let shown = spec["clusterIPs"].clone();
            errors.push(FieldError::invalid("spec.clusterIPs[0]", shown, "may not change once set"));
        }
    }
}

pub(super) fn default_slice(slice: &mut Value) {
    for port in slice.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(port) = port.as_object_mut() {
            default(port, "name", "");
            default(port, "protocol", "TCP");
        }
    }
    for endpoint in slice.get_mut("endpoints").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(endpoint) = endpoint.as_object_mut() {
            default(endpoint, "conditions", json!({}));
        }
    }
    // Absent and empty are both written as null, and read back as empty lists by every client.
    for list in ["endpoints", "ports"] {
        if slice.get(list).and_then(Value::as_array).is_none_or(Vec::is_empty) {
            slice[list] = Value::Null;
        }
    }
}

pub(super) fn default_endpoints(endpoints: &mut Value) {
    for subset in endpoints.get_mut("subsets").and_then(Value::as_array_mut).into_iter().flatten() {
        for port in subset.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(port) = port.as_object_mut() {
                default(port, "protocol", "TCP");
            }
        }
    }
}

pub(super) fn validate_endpoints(endpoints: &Value, errors: &mut Vec<FieldError>) {
    for (i, subset) in meta::items(endpoints, "/subsets").iter().enumerate() {
        for list in ["addresses", "notReadyAddresses"] {
            for (j, address) in meta::items(subset, &format!("/{list}")).iter().enumerate() {
                let ip = meta::text(address, "/ip");
                if ip.parse::<std::net::IpAddr>().is_err() {
                    errors.push(FieldError::invalid(format!("subsets[{i}].{list}[{j}].ip"), ip, VALID_IP));
                }
            }
        }
    }
}

pub(super) fn validate_slice(slice: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let kinds = ["FQDN", "IPv4", "IPv6"];
    let kind = meta::text(slice, "/addressType");
    if kind.is_empty() {
        errors.push(FieldError::required("addressType", ""));
    } else if !kinds.contains(&kind) {
        errors.push(FieldError::unsupported("addressType", kind, &kinds));
    }
    if old.is_some_and(|old| old["addressType"] != slice["addressType"]) {
        errors.push(FieldError::invalid("addressType", kind, "field is immutable"));
    }
    for (i, endpoint) in meta::items(slice, "/endpoints").iter().enumerate() {
        let addresses = meta::items(endpoint, "/addresses");
        if addresses.is_empty() {
            let why = "must contain at least 1 address";
            errors.push(FieldError::required(format!("endpoints[{i}].addresses"), why));
        }
        for (j, address) in addresses.iter().filter_map(Value::as_str).enumerate() {
            if !["IPv4", "IPv6"].contains(&kind) {
                continue;
            }
            let field = format!("endpoints[{i}].addresses");
            match address.parse::<std::net::IpAddr>() {
                Err(_) => {
                    errors.push(FieldError::invalid(format!("{field}[{j}]"), address, VALID_IP));
                }
                Ok(ip) if ip.is_ipv4() != (kind == "IPv4") => {
                    errors.push(FieldError::invalid(field, address, format!("must be an {kind} address")));
                }
                Ok(ip) => {
                    if let Some(why) = unreachable(ip) {
                        errors.push(FieldError::invalid(format!("{field}[{j}]"), address, why));
                    }
                }
            }
        }
    }
    let mut port_names: Vec<&str> = Vec::new();
    for (i, port) in meta::items(slice, "/ports").iter().enumerate() {
        let name = meta::text(port, "/name");
        if let Some(why) = (!name.is_empty()).then(|| names::label(name)).flatten() {
            errors.push(FieldError::invalid(format!("ports[{i}].name"), name, why));
        } else if port_names.contains(&name) {
            errors.push(FieldError::duplicate(format!("ports[{i}].name"), name));
        }
        port_names.push(name);
        let protocols = ["SCTP", "TCP", "UDP"];
        let protocol = meta::text(port, "/protocol");
        if !protocols.contains(&protocol) {
            errors.push(FieldError::unsupported(format!("ports[{i}].protocol"), protocol, &protocols));
        }
    }
}

/// Why an address cannot be an endpoint's. One of loopback can: on this machine it leads somewhere.
fn unreachable(ip: std::net::IpAddr) -> Option<&'static str> {
    use std::net::IpAddr::{V4, V6};
    let link_local = match ip {
        V4(ip) => ip.is_link_local(),
        V6(ip) => ip.is_unicast_link_local(),
    };
    let multicast = match ip {
        V4(ip) => ip.octets()[..3] == [224, 0, 0],
        V6(ip) => ip.segments()[0] & 0xffc0 == 0xff00 && ip.segments()[0] & 0xf == 2,
    };
    match () {
        () if ip.is_unspecified() => Some("may not be unspecified (0.0.0.0 or ::)"),
        () if link_local => Some("may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
        () if multicast => Some("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"),
        () => None,
    }
}
