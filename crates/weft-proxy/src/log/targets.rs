//! Linkerd's log targets, and what stands in their stead here.

/// Linkerd's modules that people name in filters, by the beginning of the name, and weft's with the same task.
const STAND_INS: &[(&str, &[&str])] = &[
    ("linkerd_app_inbound", &["weft_proxy::inbound", "weft_proxy::detect"]),
    ("linkerd_app_outbound", &["weft_proxy::outbound"]),
    ("linkerd_app_gateway", &["weft_proxy::inbound"]),
    ("linkerd_app_admin", &["weft_proxy::admin"]),
    ("linkerd_app", &["weft_proxy"]),
    ("linkerd_client_policy", &["weft_proxy::discovery"]),
    ("linkerd_detect", &["weft_proxy::detect"]),
    ("linkerd_dns", &["weft_proxy::control"]),
    ("linkerd_http_detect", &["weft_proxy::detect"]),
    ("linkerd_http", &["weft_proxy::http"]),
    ("linkerd_identity", &["weft_proxy::certify"]),
    ("linkerd_meshtls", &["weft_tls", "weft_proxy::connect"]),
    ("linkerd_opentelemetry", &["weft_proxy::trace"]),
    ("linkerd_pool", &["weft_proxy::outbound"]),
    ("linkerd_proxy_api_resolve", &["weft_proxy::discovery"]),
    ("linkerd_proxy_balance", &["weft_proxy::outbound"]),
    ("linkerd_proxy_client_policy", &["weft_proxy::discovery"]),
    ("linkerd_proxy_http", &["weft_proxy::http"]),
    ("linkerd_proxy_identity", &["weft_proxy::certify"]),
    ("linkerd_proxy_server_policy", &["weft_proxy::inbound"]),
    ("linkerd_proxy_tap", &["weft_proxy::tap"]),
    ("linkerd_proxy_tcp", &["weft_proxy::connect"]),
    ("linkerd_proxy_transport", &["weft_proxy::connect"]),
    ("linkerd_reconnect", &["weft_proxy::connect"]),
    ("linkerd_service_profiles", &["weft_proxy::discovery"]),
    ("linkerd_stack", &["weft_proxy::outbound"]),
    ("linkerd_tls", &["weft_tls", "weft_proxy::detect"]),
    ("linkerd_tracing", &["weft_proxy::log"]),
    ("linkerd_transport_header", &["weft_proxy::inbound"]),
    ("linkerd2_proxy", &["weft"]),
];

/// Adds to each directive about Linkerd's targets the same about weft's.
pub(super) fn with_stand_ins(filter: &str) -> String {
    let mut directives: Vec<String> = Vec::new();
    for directive in filter.split(',').map(str::trim).filter(|directive| !directive.is_empty()) {
        directives.push(directive.to_string());
        let (target, level) = match directive.split_once('=') {
            Some((target, level)) => (target, format!("={level}")),
            None => (directive, String::new()),
        };
        let module = target.split("::").next().unwrap_or_default();
        if module == "linkerd" {
            directives.push(format!("weft{level}"));
        } else if let Some((_, ours)) = STAND_INS.iter().find(|(theirs, _)| module.starts_with(theirs)) {
            directives.extend(ours.iter().map(|ours| format!("{ours}{level}")));
        }
    }
    directives.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linkerds_targets_mean_wefts() {
        for (filter, with) in [
            ("linkerd=debug,info", "linkerd=debug,weft=debug,info"),
            ("warn,linkerd=info,hickory=error", "warn,linkerd=info,weft=info,hickory=error"),
            (
                "linkerd_app_inbound::policy=trace",
                "linkerd_app_inbound::policy=trace,weft_proxy::inbound=trace,weft_proxy::detect=trace",
            ),
            ("linkerd_app_core=warn", "linkerd_app_core=warn,weft_proxy=warn"),
            ("linkerd_unheard_of=debug", "linkerd_unheard_of=debug"),
            ("linkerd", "linkerd,weft"),
            ("off", "off"),
        ] {
            assert_eq!(with_stand_ins(filter), with);
        }
    }

    #[test]
    fn the_first_stand_in_that_fits_is_the_most_precise() {
        for (at, (name, _)) in STAND_INS.iter().enumerate() {
            let found = STAND_INS.iter().position(|(theirs, _)| name.starts_with(theirs));
            assert_eq!(found, Some(at), "{name} is hidden by an earlier one");
        }
    }
}
