//! Rows of Services and of what says where they lead.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{NONE, age, count, or, texts};
use crate::api::kinds::Kind;
use crate::api::meta::{self, text};
use crate::api::selector::LabelSelector;

pub(super) fn service(_: &Kind, service: &Value, now: Timestamp) -> Vec<Value> {
    let ports: Vec<String> = meta::items(service, "/spec/ports")
        .iter()
        .map(|port| {
            let node_port = port["nodePort"].as_i64().map_or(String::new(), |port| format!(":{port}"));
            format!("{}{node_port}/{}", port["port"], text(port, "/protocol"))
        })
        .collect();
    let external = external(service);
    let selector = service["spec"]["selector"].as_object();
    let selector = selector.map_or(String::new(), |labels| LabelSelector::from_labels(labels).to_string());
    vec![
        json!(text(service, "/spec/type")),
        or(text(service, "/spec/clusterIP"), NONE),
        or(&external, NONE),
        or(&ports.join(","), NONE),
        age(service, now),
        or(&selector, NONE),
    ]
}

/// Where a Service can be reached from outside. A balancer that nobody provides is waited for.
fn external(service: &Value) -> String {
    let addresses = texts(service, "/spec/externalIPs");
    match text(service, "/spec/type") {
        "ExternalName" => text(service, "/spec/externalName").to_owned(),
        "LoadBalancer" => {
            let balancers = meta::items(service, "/status/loadBalancer/ingress").iter();
            let balancers = balancers.map(|balancer| match text(balancer, "/ip") {
                "" => text(balancer, "/hostname"),
                ip => ip,
            });
            let all: Vec<&str> = balancers.chain(addresses).collect();
            if all.is_empty() { "<pending>".to_owned() } else { all.join(",") }
        }
        _ => addresses.join(","),
    }
}

/// The first three of a list, and how many more there are.
pub(super) fn few(list: &[String], unset: &str) -> Value {
    match list.len() {
        0 => json!(unset),
        1..=3 => json!(list.join(",")),
        n => json!(format!("{} + {} more...", list[..3].join(","), n - 3)),
    }
}

pub(super) fn slice(_: &Kind, slice: &Value, now: Timestamp) -> Vec<Value> {
    let ports: Vec<String> = meta::items(slice, "/ports")
        .iter()
        .map(|port| port["port"].as_i64().map_or("*".to_owned(), |port| port.to_string()))
        .collect();
    let addresses: Vec<String> = meta::items(slice, "/endpoints")
        .iter()
        .flat_map(|endpoint| meta::items(endpoint, "/addresses"))
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    vec![slice["addressType"].clone(), few(&ports, "<unset>"), few(&addresses, "<unset>"), age(slice, now)]
}

/// The first three addresses that are ready, each with each port.
pub(super) fn endpoints(_: &Kind, object: &Value, now: Timestamp) -> Vec<Value> {
    let subsets = meta::items(object, "/subsets");
    let mut found = Vec::new();
    for subset in subsets {
        let addresses = || meta::items(subset, "/addresses").iter().map(|address| text(address, "/ip"));
        let ports = meta::items(subset, "/ports");
        if ports.is_empty() {
            found.extend(addresses().map(str::to_owned));
        }
        for port in ports {
            let with_port = |ip: &str| {
                let shown = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
                format!("{shown}:{}", port["port"])
            };
            found.extend(addresses().map(with_port));
        }
    }
    vec![few(&found, if subsets.is_empty() { NONE } else { "" }), age(object, now)]
}

pub(super) fn policy(_: &Kind, policy: &Value, now: Timestamp) -> Vec<Value> {
    let selector = LabelSelector::from_object(&policy["spec"]["podSelector"]).to_string();
    vec![or(&selector, NONE), age(policy, now)]
}

pub(super) fn budget(_: &Kind, budget: &Value, now: Timestamp) -> Vec<Value> {
    let share = |field: &str| match &budget["spec"][field] {
        Value::Null => json!("N/A"),
        Value::String(share) => json!(share),
        number => json!(number.to_string()),
    };
    vec![
        share("minAvailable"),
        share("maxUnavailable"),
        json!(count(budget, "/status/disruptionsAllowed")),
        age(budget, now),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::kinds::Kinds;

    /// The cells of an object, without its age.
    fn cells(row: super::super::Cells, object: Value) -> Vec<String> {
        let kind = Kinds::default().find("", "v1", "services").unwrap();
        let shown = |cell: Value| cell.as_str().map_or(cell.to_string(), str::to_owned);
        row(&kind, &object, Timestamp::now()).into_iter().map(shown).filter(|s| s != "<unknown>").collect()
    }

    #[test]
    fn endpoints_that_are_ready_are_shown_with_their_ports() {
        let [one, two] = ["10.1.1.1", "10.1.1.2"].map(|ip| json!({ "ip": ip }));
        let subset = |ports: Value| json!({ "addresses": [one, two], "ports": ports });
        for (subsets, shown) in [
            (json!([]), "<none>"),
            (json!([{ "notReadyAddresses": [one], "ports": [{ "port": 1 }] }]), ""),
            (json!([subset(json!([]))]), "10.1.1.1,10.1.1.2"),
            (
                json!([subset(json!([{ "port": 80 }, { "port": 81 }]))]),
                "10.1.1.1:80,10.1.1.2:80,10.1.1.1:81 + 1 more...",
            ),
            (json!([{ "addresses": [{ "ip": "fd00::1" }], "ports": [{ "port": 80 }] }]), "[fd00::1]:80"),
        ] {
            assert_eq!(cells(endpoints, json!({ "subsets": subsets })), [shown]);
        }
    }

    #[test]
    fn where_a_service_is_reached_from_outside() {
        let of = |spec: Value, ingress: Value| {
            external(&json!({ "spec": spec, "status": { "loadBalancer": { "ingress": ingress } } }))
        };
        let balanced = json!({ "type": "LoadBalancer" });
        assert_eq!(of(balanced.clone(), json!([])), "<pending>");
        assert_eq!(of(balanced, json!([{ "ip": "1.2.3.4" }, { "hostname": "a.b" }])), "1.2.3.4,a.b");
        assert_eq!(of(json!({ "type": "LoadBalancer", "externalIPs": ["5.6.7.8"] }), Value::Null), "5.6.7.8");
        assert_eq!(of(json!({ "type": "NodePort" }), Value::Null), "");
        assert_eq!(of(json!({ "type": "ExternalName", "externalName": "a.b" }), Value::Null), "a.b");
    }

    #[test]
    fn budgets_and_policies() {
        assert_eq!(cells(budget, json!({ "spec": { "minAvailable": 1 } })), ["1", "N/A", "0"]);
        let share = json!({ "spec": { "maxUnavailable": "20%" }, "status": { "disruptionsAllowed": 2 } });
        assert_eq!(cells(budget, share), ["N/A", "20%", "2"]);
        assert_eq!(cells(policy, json!({ "spec": { "podSelector": {} } })), [NONE]);
        let selector = json!({ "spec": { "podSelector": { "matchLabels": { "a": "b" } } } });
        assert_eq!(cells(policy, selector), ["a=b"]);
    }
}
