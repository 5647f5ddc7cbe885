//! The node ports of Services. They are given and kept unique; nothing on this machine listens on them.

use serde_json::{Value, json};

use super::error::{ApiError, FieldError};
use super::{Api, meta};

/// Where node ports come from, as on a real server.
const RANGE: std::ops::RangeInclusive<u64> = 30_000..=32_767;

/// Gives each port of a Service that needs one a node port, or checks the one it asks for. The caller holds the lock
/// under which addresses are chosen.
pub(super) fn assign(api: &Api, service: &mut Value) -> Result<(), ApiError> {
    let wanted = match meta::text(service, "/spec/type") {
        "NodePort" => true,
        "LoadBalancer" => service["spec"]["allocateLoadBalancerNodePorts"] != json!(false),
        _ => false,
    };
    let services = api.store.list("services", None).0;
    let own = (meta::namespace(service).to_owned(), meta::name(service).to_owned());
    let mut taken: Vec<(u64, String)> = services
        .iter()
        .filter(|other| (meta::namespace(other), meta::name(other)) != (own.0.as_str(), own.1.as_str()))
        .flat_map(|other| meta::items(other, "/spec/ports"))
        .filter_map(|port| Some((port["nodePort"].as_u64()?, meta::text(port, "/protocol").to_owned())))
        .collect();
    let Some(ports) = service.pointer_mut("/spec/ports").and_then(Value::as_array_mut) else { return Ok(()) };
    for port in ports.iter() {
        taken.extend(port["nodePort"].as_u64().map(|number| (number, String::new())));
    }
    for (i, port) in ports.iter_mut().enumerate() {
        let protocol = meta::text(port, "/protocol").to_owned();
        match port["nodePort"].as_u64() {
            Some(number) if number > 0 => {
                let field = format!("spec.ports[{i}].nodePort");
                let refuse = |why: &str| {
                    let error = FieldError::invalid(field.clone(), number, why);
                    Err(ApiError::invalid("Service", &own.1, &[error]))
                };
                if !RANGE.contains(&number) {
                    let (first, last) = (RANGE.start(), RANGE.end());
                    return refuse(&format!(
                        "provided port is not in the valid range. The range of valid ports is {first}-{last}"
                    ));
                }
                if taken.iter().any(|(known, by)| *known == number && *by == protocol) {
                    return refuse("provided port is already allocated");
                }
            }
            _ if wanted => {
                let free = |number: &u64| !taken.iter().any(|(known, _)| known == number);
                let start = rand::random_range(RANGE);
                let Some(number) = (start..=*RANGE.end()).chain(RANGE).find(free) else {
                    return Err(ApiError::internal("failed to allocate a nodePort: range is full"));
                };
                taken.push((number, protocol));
                port["nodePort"] = json!(number);
            }
            _ => {}
        }
    }
    Ok(())
}
