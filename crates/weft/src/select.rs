//! Names as people type them: `web`, `pod/web-1`, `deploy/web`, `svc/store:5000`, `shop/web`, `10.77.0.5:80`.

use crate::reach;
use anyhow::{Result, bail};
use k8s_openapi::api::{
    apps::v1::Deployment,
    batch::v1::Job,
    core::v1::{Pod, Service},
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, ObjectList},
};
use std::net::IpAddr;

/// What a name may stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Any,
    Pod,
    Deployment,
    Job,
    Service,
}

/// A parsed name, before the cluster was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) kind: Kind,
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    pub(crate) port: Option<u16>,
    pub(crate) ip: Option<IpAddr>,
}

impl Name {
    /// `[NAMESPACE/][KIND/]NAME[:PORT]` or `IP[:PORT]`; a service may also be called `NAME.NAMESPACE[.svc…]`.
    pub(crate) fn parse(text: &str) -> Result<Name> {
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(Name {
                kind: Kind::Any,
                namespace: None,
                name: text.into(),
                port: None,
                ip: Some(ip),
            });
        }
        if let Ok(addr) = text.parse::<std::net::SocketAddr>() {
            let (ip, port) = (Some(addr.ip()), Some(addr.port()));
            return Ok(Name { kind: Kind::Any, namespace: None, name: addr.ip().to_string(), port, ip });
        }
        let (path, port) = match text.rsplit_once(':') {
            Some((path, port)) => match port.parse::<u16>() {
                Ok(port) if port > 0 => (path, Some(port)),
                _ => bail!("{text:?}: {port:?} is no port (1 to 65535)"),
            },
            None => (text, None),
        };
        let parts: Vec<&str> = path.split('/').collect();
        let (namespace, kind, name) = match parts[..] {
            [name] => (None, Kind::Any, name),
            [first, name] => match kind_of(first) {
                Some(kind) => (None, kind, name),
                None => (Some(first), Kind::Any, name),
            },
            [namespace, kind, name] => match kind_of(kind) {
                Some(kind) => (Some(namespace), kind, name),
                None => bail!("{text:?}: {kind:?} is no kind known here (pod, deploy, job, svc)"),
            },
            _ => bail!("{text:?} is not of the form [NAMESPACE/][KIND/]NAME[:PORT]"),
        };
        if name.is_empty() {
            bail!("{text:?} names nothing");
        }
        let mut labels = name.split('.');
        let (first, second) = (labels.next().unwrap_or(name), labels.next());
        let (namespace, name) = match (namespace, second) {
            (None, Some(second)) => (Some(second), first),
            (namespace, _) => (namespace, name),
        };
        Ok(Name { kind, namespace: namespace.map(Into::into), name: name.into(), port, ip: None })
    }
}

fn kind_of(text: &str) -> Option<Kind> {
    Some(match text.to_ascii_lowercase().as_str() {
        "po" | "pod" | "pods" => Kind::Pod,
        "deploy" | "deployment" | "deployments" | "deployment.apps" => Kind::Deployment,
        "job" | "jobs" | "job.batch" => Kind::Job,
        "svc" | "service" | "services" => Kind::Service,
        _ => return None,
    })
}

/// What a name turned out to be.
#[derive(Clone, Debug)]
pub(crate) struct Selected {
    /// `deploy/web`, `pod/web-1`, `svc/store`.
    pub(crate) title: String,
    pub(crate) namespace: String,
    pub(crate) pods: Vec<Pod>,
    pub(crate) service: Option<Service>,
}

impl Selected {
    /// The one pod with a proxy, where a question makes sense for one only.
    pub(crate) fn one_meshed(self) -> Result<Pod> {
        let title = format!("{}/{}", self.namespace, self.title);
        let (mut meshed, others): (Vec<Pod>, Vec<Pod>) =
            self.pods.into_iter().partition(|pod| reach::is_running(pod) && reach::is_meshed(pod));
        match (meshed.pop(), meshed.len(), others.len()) {
            (Some(pod), 0, _) => Ok(pod),
            (Some(last), ..) => {
                let names: Vec<String> =
                    meshed.iter().chain([&last]).map(|p| format!("po/{}", p.name_any())).collect();
                bail!("{title} has several pods: say which of {}", names.join(", "))
            }
            (None, _, 0) => bail!("{title} has no pods"),
            (None, ..) => bail!("{title} has no running pod with a proxy"),
        }
    }
}

/// Finds the object, in `namespace` or wherever there is exactly one of that name.
pub(crate) async fn find(client: &Client, name: &Name, namespace: Option<&str>) -> Result<Selected> {
    let namespace = name.namespace.as_deref().or(namespace);
    if let Some(ip) = name.ip {
        return find_ip(client, ip).await;
    }
    let mut found = Vec::new();
    if matches!(name.kind, Kind::Any | Kind::Pod) {
        for pod in list::<Pod>(client, namespace).await?.into_iter().filter(|p| p.name_any() == name.name) {
            let namespace = pod.namespace().unwrap_or_default();
            found.push(Selected {
                title: format!("pod/{}", name.name),
                namespace,
                pods: vec![pod],
                service: None,
            });
        }
    }
    if matches!(name.kind, Kind::Any | Kind::Deployment) {
        for deployment in
            list::<Deployment>(client, namespace).await?.into_iter().filter(|d| d.name_any() == name.name)
        {
            let labels =
                deployment.spec.as_ref().and_then(|s| s.selector.match_labels.clone()).unwrap_or_default();
            found.push(
                by_labels(client, format!("deploy/{}", name.name), deployment.namespace(), &labels, None)
                    .await?,
            );
        }
    }
    if matches!(name.kind, Kind::Any | Kind::Job) {
        for job in list::<Job>(client, namespace).await?.into_iter().filter(|d| d.name_any() == name.name) {
            let labels = [("job-name".to_string(), name.name.clone())].into();
            found
                .push(by_labels(client, format!("job/{}", name.name), job.namespace(), &labels, None).await?);
        }
    }
    // A workload and its service usually share their name; the workload says more.
    if name.kind == Kind::Service || (name.kind == Kind::Any && found.is_empty()) {
        for service in
            list::<Service>(client, namespace).await?.into_iter().filter(|d| d.name_any() == name.name)
        {
            let labels = service.spec.as_ref().and_then(|s| s.selector.clone()).unwrap_or_default();
            let namespace = service.namespace();
            found.push(
                by_labels(client, format!("svc/{}", name.name), namespace, &labels, Some(service)).await?,
            );
        }
    }
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => {
            let place = namespace.map_or("any namespace".to_string(), |n| format!("namespace {n}"));
            bail!(
                "nothing called {:?} in {place}: `kubectl get pods,deploy,svc -A` lists what there is",
                name.name
            )
        }
        _ => {
            let all: Vec<_> = found.iter().map(|s| format!("{}/{}", s.namespace, s.title)).collect();
            bail!("{:?} may be {}: say which", name.name, all.join(" or "))
        }
    }
}

async fn find_ip(client: &Client, ip: IpAddr) -> Result<Selected> {
    let text = ip.to_string();
    let has = |pod: &Pod| pod.status.as_ref().and_then(|s| s.pod_ip.as_deref()) == Some(text.as_str());
    let alive = |pod: &Pod| {
        !matches!(pod.status.as_ref().and_then(|s| s.phase.as_deref()), Some("Succeeded" | "Failed"))
    };
    if let Some(pod) = list::<Pod>(client, None).await?.into_iter().find(|p| has(p) && alive(p)) {
        let namespace = pod.namespace().unwrap_or_default();
        return Ok(Selected {
            title: format!("pod/{}", pod.name_any()),
            namespace,
            pods: vec![pod],
            service: None,
        });
    }
    let is_cluster_ip =
        |s: &Service| s.spec.as_ref().and_then(|s| s.cluster_ip.as_deref()) == Some(text.as_str());
    if let Some(service) = list::<Service>(client, None).await?.into_iter().find(is_cluster_ip) {
        let labels = service.spec.as_ref().and_then(|s| s.selector.clone()).unwrap_or_default();
        return by_labels(
            client,
            format!("svc/{}", service.name_any()),
            service.namespace(),
            &labels,
            Some(service),
        )
        .await;
    }
    bail!("no pod or service has the address {ip}")
}

async fn by_labels(
    client: &Client,
    title: String,
    namespace: Option<String>,
    labels: &std::collections::BTreeMap<String, String>,
    service: Option<Service>,
) -> Result<Selected> {
    let namespace = namespace.unwrap_or_default();
    let mut pods = Vec::new();
    // No labels would select every pod; a Service without a selector selects none.
    if !labels.is_empty() {
        let selector: Vec<_> = labels.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let params = ListParams::default().labels(&selector.join(","));
        pods = Api::<Pod>::namespaced(client.clone(), &namespace).list(&params).await?.items;
    }
    Ok(Selected { title, namespace, pods, service })
}

async fn list<K>(client: &Client, namespace: Option<&str>) -> Result<ObjectList<K>>
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let api: Api<K> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    Ok(api.list(&ListParams::default()).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> String {
        match Name::parse(text) {
            Ok(n) => {
                format!("{:?} {} {} {}", n.kind, n.namespace.unwrap_or_default(), n.name, n.port.unwrap_or(0))
            }
            Err(error) => format!("error: {error}"),
        }
    }

    #[test]
    fn of_several_pods_the_user_says_which() {
        let pod = |name: &str, meshed: bool| -> Pod {
            let labels = if meshed {
                serde_json::json!({"linkerd.io/control-plane-ns": "linkerd"})
            } else {
                serde_json::json!({})
            };
            let pod = serde_json::json!({"metadata": {"name": name, "labels": labels}, "status": {"phase": "Running"}});
            serde_json::from_value(pod).unwrap()
        };
        let of = |pods: Vec<Pod>| {
            let selected =
                Selected { title: "deploy/web".into(), namespace: "shop".into(), pods, service: None };
            selected.one_meshed().map(|pod| pod.name_any()).map_err(|error| error.to_string())
        };
        assert_eq!(of(vec![pod("a", false), pod("b", true)]), Ok("b".into()));
        let several = of(vec![pod("a", true), pod("b", true)]).unwrap_err();
        assert_eq!(several, "shop/deploy/web has several pods: say which of po/a, po/b");
        assert!(of(vec![pod("a", false)]).unwrap_err().contains("no running pod with a proxy"));
        assert!(of(vec![]).unwrap_err().contains("no pods"));
    }

    #[test]
    fn names_are_read_as_people_type_them() {
        assert_eq!(parsed("web"), "Any  web 0");
        assert_eq!(parsed("deploy/web:80"), "Deployment  web 80");
        assert_eq!(parsed("shop/svc/store:5000"), "Service shop store 5000");
        assert_eq!(parsed("shop/store"), "Any shop store 0");
        assert_eq!(parsed("store.shop.svc.cluster.local:5000"), "Any shop store 5000");
        assert_eq!(parsed("10.77.0.3:80"), "Any  10.77.0.3 80");
        assert!(parsed("web:http").contains("is no port"));
        assert!(parsed("a/b/c/d").contains("form"));
        assert!(parsed("pod/").contains("names nothing"));
        assert!(parsed("x/y/z").contains("no kind"));
    }
}
