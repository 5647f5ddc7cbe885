//! What callers say about themselves and about what they look for.

use crate::view::beside::WorkloadName;
use serde::Deserialize;
use std::net::{IpAddr, SocketAddr};
use tonic::Status;
use weft_kube::meta::ObjectName;

/// The longest name or token that is looked at.
const TEXT_LIMIT: usize = 2048;

/// The proxy's context token. One that cannot be read is empty: it only refines answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Context {
    pub ns: String,
    pub node_name: Option<String>,
    pub pod: Option<String>,
}

impl Context {
    pub fn parse(token: &str) -> Context {
        if token.len() > TEXT_LIMIT {
            return Context::default();
        }
        if let Some(ns) = token.strip_prefix("ns:") {
            return Context { ns: ns.to_owned(), ..Context::default() };
        }
        let context: Context = serde_json::from_str(token).unwrap_or_default();
        Context { node_name: context.node_name.filter(|n| !n.is_empty()), ..context }
    }
}

/// Whom a proxy stands beside: `ns:pod`, or JSON that names a pod or an ExternalWorkload.
pub fn workload(token: &str) -> Result<WorkloadName, Status> {
    #[derive(Deserialize)]
    struct Json {
        ns: String,
        #[serde(default)]
        pod: String,
        #[serde(default)]
        external_workload: String,
    }
    let bad = || {
        Status::invalid_argument(
            "the workload is neither ns:pod nor {\"ns\",\"pod\"} nor {\"ns\",\"external_workload\"}",
        )
    };
    if token.len() > TEXT_LIMIT {
        return Err(bad());
    }
    let (ns, pod, external) = if token.starts_with('{') {
        let Json { ns, pod, external_workload } = serde_json::from_str(token).map_err(|_| bad())?;
        (ns, pod, external_workload)
    } else {
        let (ns, pod) = token.split_once(':').ok_or_else(bad)?;
        (ns.to_owned(), pod.to_owned(), String::new())
    };
    match (ns.is_empty(), pod.is_empty(), external.is_empty()) {
        (false, false, true) => Ok(WorkloadName::Pod(ObjectName::new(ns, pod))),
        (false, true, false) => Ok(WorkloadName::External(ObjectName::new(ns, external))),
        _ => Err(bad()),
    }
}

/// Where a path leads: `host[:port]`, port 80 unless given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Addr(SocketAddr),
    Service { service: ObjectName, port: u16 },
    Member { service: ObjectName, hostname: String, port: u16 },
}

pub fn target(path: &str, cluster_domain: &str) -> Result<Target, Status> {
    let bad = |why: &str| Status::invalid_argument(format!("{why}: {:?}", &path[..path.len().min(300)]));
    if path.len() > TEXT_LIMIT || !path.is_ascii() {
        return Err(bad("the name is too long or not ASCII"));
    }
    if let Ok(addr) = path.parse::<SocketAddr>() {
        return Ok(Target::Addr(addr));
    }
    if let Ok(ip) = path.parse::<IpAddr>() {
        return Ok(Target::Addr(SocketAddr::new(ip, 80)));
    }
    let (host, port) = match path.rsplit_once(':') {
        Some((host, port)) => {
            (host, port.parse::<u16>().ok().filter(|p| *p != 0).ok_or_else(|| bad("bad port"))?)
        }
        None => (path, 80),
    };
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let suffix = format!(".svc.{cluster_domain}");
    let name = host.strip_suffix(&suffix).ok_or_else(|| bad("not the name of a service in this cluster"))?;
    let labels: Vec<&str> = name.split('.').collect();
    if labels.iter().any(|l| l.is_empty() || l.len() > 63) {
        return Err(bad("not the name of a service"));
    }
    match labels[..] {
        [service, ns] => Ok(Target::Service { service: ObjectName::new(ns, service), port }),
        [hostname, service, ns] => {
            Ok(Target::Member { service: ObjectName::new(ns, service), hostname: hostname.to_owned(), port })
        }
        _ => Err(bad("not the name of a service")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens() {
        let token = r#"{"ns":"shop","nodeName":"n1","pod":"web"}"#;
        assert_eq!(Context::parse(token).node_name.as_deref(), Some("n1"));
        assert_eq!(Context::parse("ns:shop").ns, "shop");
        assert_eq!(Context::parse("nonsense"), Context::default());
        let pod = WorkloadName::Pod(ObjectName::new("shop", "web"));
        assert_eq!(workload("shop:web").unwrap(), pod);
        assert_eq!(workload(r#"{"ns":"shop","pod":"web"}"#).unwrap(), pod);
        let machine = workload(r#"{"ns":"shop","external_workload":"vm"}"#).unwrap();
        assert_eq!(machine, WorkloadName::External(ObjectName::new("shop", "vm")));
        let both = r#"{"ns":"shop","pod":"web","external_workload":"vm"}"#;
        for bad in ["", ":", "a:", "{", r#"{"ns":"shop"}"#, r#"{"ns":"","pod":"a"}"#, both, &"x".repeat(5000)]
        {
            assert!(workload(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn paths() {
        let read = |path| target(path, "cluster.local");
        assert_eq!(read("10.0.0.1:81").unwrap(), Target::Addr("10.0.0.1:81".parse().unwrap()));
        assert_eq!(read("[fd00::1]:81").unwrap(), Target::Addr("[fd00::1]:81".parse().unwrap()));
        let service = ObjectName::new("shop", "web");
        for path in ["web.shop.svc.cluster.local", "Web.shop.svc.cluster.local.:80"] {
            assert_eq!(read(path).unwrap(), Target::Service { service: service.clone(), port: 80 });
        }
        assert_eq!(
            read("web-0.web.shop.svc.cluster.local:8080").unwrap(),
            Target::Member { service, hostname: "web-0".into(), port: 8080 }
        );
        for bad in [
            "",
            "web",
            "example.com:80",
            "svc.cluster.local",
            "a.b.c.d.svc.cluster.local",
            "web.shop.svc.cluster.local:0",
            "web.shop.svc.cluster.local:99999",
            "..svc.cluster.local",
            "é.shop.svc.cluster.local",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
