//! Reads everything there is to read, for as long as there is time. What could not be read is told, and stops nothing.

use super::{
    archive::{Added, Archive},
    redact::Redactor,
};
use crate::{
    cluster,
    reach::{self, title},
};
use anyhow::Result;
use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt as _, api::LogParams};
use serde_json::{Value, json};
use std::{fmt::Write as _, time::Duration};
use tokio::time::{Instant, timeout_at};
use weft_local::api::kubelet::MIRROR;
use weft_wire::{cached::CACHE_PATH, record::CONNECTIONS_PATH};

/// Each question.
const ASK: Duration = Duration::from_secs(15);
const AT_ONCE: usize = 6;
/// Proxies that are asked, those of pods in trouble first.
const PROXIES: usize = 30;
const LOG_LINES: i64 = 5_000;
const LOG_BYTES: i64 = 4 << 20;

/// Of the control plane's namespace.
const OWN: [&str; 12] = [
    "/api/v1/namespaces/NS/pods",
    "/api/v1/namespaces/NS/services",
    "/api/v1/namespaces/NS/configmaps",
    "/api/v1/namespaces/NS/secrets",
    "/api/v1/namespaces/NS/events",
    "/api/v1/namespaces/NS/serviceaccounts",
    "/apis/apps/v1/namespaces/NS/deployments",
    "/apis/apps/v1/namespaces/NS/daemonsets",
    "/apis/batch/v1/namespaces/NS/cronjobs",
    "/apis/discovery.k8s.io/v1/namespaces/NS/endpointslices",
    "/apis/coordination.k8s.io/v1/namespaces/NS/leases",
    "/apis/networking.k8s.io/v1/namespaces/NS/networkpolicies",
];
/// Of the whole cluster, or of one namespace of it: the second column is what they are within a namespace.
const MESH: [(&str, &str); 14] = [
    ("/apis/policy.linkerd.io/v1beta3", "servers"),
    ("/apis/policy.linkerd.io/v1beta1", "serverauthorizations"),
    ("/apis/policy.linkerd.io/v1alpha1", "authorizationpolicies"),
    ("/apis/policy.linkerd.io/v1alpha1", "meshtlsauthentications"),
    ("/apis/policy.linkerd.io/v1alpha1", "networkauthentications"),
    ("/apis/policy.linkerd.io/v1beta3", "httproutes"),
    ("/apis/policy.linkerd.io/v1alpha1", "egressnetworks"),
    ("/apis/gateway.networking.k8s.io/v1", "httproutes"),
    ("/apis/gateway.networking.k8s.io/v1", "grpcroutes"),
    ("/apis/linkerd.io/v1alpha2", "serviceprofiles"),
    ("/apis/workload.linkerd.io/v1beta1", "externalworkloads"),
    ("/apis/multicluster.linkerd.io/v1alpha3", "links"),
    ("/apis/networking.k8s.io/v1", "networkpolicies"),
    ("/api/v1", "services"),
];
const CLUSTER: [&str; 4] = [
    "/api/v1/nodes",
    "/api/v1/namespaces",
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
];

pub(super) struct Collector {
    client: Client,
    archive: Archive,
    redactor: Redactor,
    deadline: Instant,
    control: String,
    missing: Vec<String>,
    control_pods: Vec<Pod>,
    proxies: Vec<Pod>,
}

impl Collector {
    pub(super) fn new(
        client: Client,
        archive: Archive,
        redactor: Redactor,
        deadline: Instant,
        control: &str,
    ) -> Self {
        Collector {
            client,
            archive,
            redactor,
            deadline,
            control: control.to_owned(),
            missing: Vec::new(),
            control_pods: Vec::new(),
            proxies: Vec::new(),
        }
    }

    pub(super) fn text(&mut self, name: &str, text: &str) -> Result<()> {
        if let Ok(mut value) = serde_json::from_str::<Value>(text) {
            self.redactor.texts(&mut value);
            let text = serde_json::to_string_pretty(&value)?;
            return self.put(name, &text);
        }
        let text = self.redactor.text(text);
        self.put(name, &text)
    }

    fn put(&mut self, name: &str, text: &str) -> Result<()> {
        match self.archive.add(name, text)? {
            Added::Whole => {}
            Added::Shortened => self.missing.push(format!("the beginning of {name}, which is long")),
            Added::NoRoom => self.missing.push(format!("{name}: the archive is full")),
        }
        Ok(())
    }

    pub(super) fn output(&mut self, name: &str, text: Result<String>) -> Result<()> {
        match text {
            Ok(text) => self.text(name, &text),
            Err(why) => {
                self.missing.push(format!("{name}: {why:#}"));
                Ok(())
            }
        }
    }

    /// Everything that the API keeps, first read and redacted as a whole, then written: what one object teaches is taken out of
    /// all of them.
    pub(super) async fn objects(&mut self, namespace: Option<&str>) -> Result<()> {
        let (control, client) = (self.control.clone(), self.client.clone());
        let mut lists: Vec<(String, String)> = Vec::new();
        let last = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
        for path in OWN {
            lists.push((format!("objects/control-plane/{}.json", last(path)), path.replace("NS", &control)));
        }
        for path in CLUSTER {
            lists.push((format!("objects/cluster/{}.json", last(path)), path.to_owned()));
        }
        let scope = namespace.map(|namespace| format!("/namespaces/{namespace}")).unwrap_or_default();
        for (version, plural) in MESH {
            let group = version.split('/').nth(2).unwrap_or_default();
            lists.push((format!("objects/mesh/{plural}.{group}.json"), format!("{version}{scope}/{plural}")));
        }
        let warnings = format!("/api/v1{scope}/events");
        lists.push(("objects/mesh/events.json".to_owned(), warnings));

        let version = self.asked("the API's version", cluster::get(&client, "/version")).await;
        let mut read = vec![(
            "versions.json".to_owned(),
            json!({
                "weft": env!("CARGO_PKG_VERSION"),
                "kubernetes": version.flatten(),
            }),
        )];
        for (name, path) in lists {
            let listed = self.asked(&path, cluster::list(&client, &path, None)).await;
            if let Some(objects) = listed.filter(|objects| !objects.is_empty()) {
                read.push((name, Value::Array(objects)));
            }
        }
        let meshed = format!("{}={control}", reach::CONTROL_NS);
        let pods_of_mesh = format!("/api/v1{scope}/pods");
        let listed = self.asked(&pods_of_mesh, cluster::list(&client, &pods_of_mesh, Some(&meshed))).await;
        if let Some(pods) = listed {
            self.proxies = pods.iter().filter_map(|pod| serde_json::from_value(pod.clone()).ok()).collect();
            read.push(("objects/mesh/pods.json".to_owned(), Value::Array(pods)));
        }
        let own = read.iter().find(|(name, _)| name == "objects/control-plane/pods.json");
        if let Some(pods) = own.and_then(|(_, pods)| pods.as_array()) {
            self.control_pods =
                pods.iter().filter_map(|pod| serde_json::from_value(pod.clone()).ok()).collect();
        }
        for object in read.iter_mut().filter_map(|(_, list)| list.as_array_mut()).flatten() {
            self.redactor.object(object);
        }
        for (name, list) in read {
            self.text(&name, &list.to_string())?;
        }
        Ok(())
    }

    /// Logs and metrics of the control plane, and its journal.
    pub(super) async fn control_plane(&mut self) -> Result<()> {
        for pod in std::mem::take(&mut self.control_pods) {
            let containers: Vec<String> =
                pod.spec.iter().flat_map(|spec| &spec.containers).map(|c| c.name.clone()).collect();
            // The controller of `weft up` is a process: its log is a file, which comes along.
            let stands_in = pod.annotations().contains_key(MIRROR);
            for container in containers.iter().filter(|_| !stands_in) {
                self.log(&pod, container).await?;
            }
            for (container, port) in crate::commands::diagnostics::metrics::admin_ports(&pod) {
                let name = format!("metrics/{}-{container}.txt", pod.name_any());
                let page = self.within(reach::read_port(&self.client, &pod, port, "/metrics")).await;
                self.output(&name, page)?;
            }
        }
        let path =
            format!("/api/v1/namespaces/{}/services/linkerd-dst:9990/proxy/weft/journal", self.control);
        let journal = self.within(cluster::get(&self.client, &path)).await;
        match journal {
            // A stock controller has none.
            Ok(None) => Ok(()),
            Ok(Some(journal)) => self.text("journal.json", &journal.to_string()),
            Err(why) => self.output("journal.json", Err(why)),
        }
    }

    /// Logs, metrics, answers and failed connections of proxies.
    pub(super) async fn proxies(&mut self) -> Result<()> {
        let mut pods = std::mem::take(&mut self.proxies);
        pods.sort_by_key(|pod| (std::cmp::Reverse(trouble(pod)), title(pod)));
        if pods.len() > PROXIES {
            self.missing.push(format!(
                "{} of {} proxies: --namespace chooses",
                pods.len() - PROXIES,
                pods.len()
            ));
            pods.truncate(PROXIES);
        }
        for pod in &pods {
            self.log(pod, reach::PROXY).await?;
        }
        let (client, deadline) = (&self.client, self.deadline);
        let running: Vec<Pod> = pods.into_iter().filter(reach::is_running).collect();
        let pages: Vec<(String, Result<String>)> = stream::iter(&running)
            .flat_map(|pod| {
                let connections = format!("{CONNECTIONS_PATH}?failed=true&limit=200");
                stream::iter([
                    (pod, "metrics", "txt", "/metrics".to_owned()),
                    (pod, "discovery", "json", format!("{CACHE_PATH}?limit=2000")),
                    (pod, "connections", "json", connections),
                ])
            })
            .map(|(pod, folder, kind, path)| async move {
                let name =
                    format!("{folder}/{}_{}.{kind}", pod.namespace().unwrap_or_default(), pod.name_any());
                (name, within(deadline, reach::read_admin(client, pod, &path)).await)
            })
            .buffered(AT_ONCE)
            .collect()
            .await;
        for (name, page) in pages {
            self.output(&name, page)?;
        }
        Ok(())
    }

    /// The end of a container's log, and of that before its last restart.
    async fn log(&mut self, pod: &Pod, container: &str) -> Result<()> {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let restarted = pod.status.iter().flat_map(|status| {
            status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten())
        });
        let restarted =
            restarted.filter(|status| status.name == container).any(|status| status.restart_count > 0);
        for previous in [false, true].into_iter().filter(|previous| !previous || restarted) {
            let params = LogParams {
                container: Some(container.to_owned()),
                tail_lines: Some(LOG_LINES),
                limit_bytes: Some(LOG_BYTES),
                timestamps: true,
                previous,
                ..LogParams::default()
            };
            let api: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
            let log = self.within(async { Ok(api.logs(&name, &params).await?) }).await;
            let before = if previous { "-before" } else { "" };
            self.output(&format!("logs/{namespace}_{name}_{container}{before}.txt"), log)?;
        }
        Ok(())
    }

    async fn asked<T>(&mut self, what: &str, question: impl Future<Output = Result<T>>) -> Option<T> {
        match within(self.deadline, question).await {
            Ok(answer) => Some(answer),
            Err(why) => {
                self.missing.push(format!("{what}: {why:#}"));
                None
            }
        }
    }

    async fn within<T>(&self, question: impl Future<Output = Result<T>>) -> Result<T> {
        within(self.deadline, question).await
    }

    /// Writes what is missing, too, and says what that is.
    pub(super) fn finish(mut self) -> Result<Vec<String>> {
        let mut text = String::from("What could not be read:\n");
        for gap in &self.missing {
            writeln!(text, "- {gap}")?;
        }
        if self.missing.is_empty() {
            text = "Everything was read.\n".to_owned();
        }
        let text = self.redactor.text(&text);
        self.archive.add("missing.txt", &text)?;
        self.archive.finish()?;
        Ok(self.missing.iter().map(|gap| self.redactor.text(gap)).collect())
    }
}

async fn within<T>(deadline: Instant, question: impl Future<Output = Result<T>>) -> Result<T> {
    let until = deadline.min(Instant::now() + ASK);
    timeout_at(until, question).await.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer in time")))
}

/// Restarts, and not being ready: what most likely has something to tell.
fn trouble(pod: &Pod) -> i32 {
    let Some(status) = &pod.status else { return 0 };
    let ready = status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
    let restarts: i32 = status.container_statuses.iter().flatten().map(|status| status.restart_count).sum();
    restarts + if ready { 0 } else { 1_000 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_in_trouble_come_first() {
        let pod = |ready: &str, restarts: i32| -> Pod {
            serde_json::from_value(json!({"status": {"conditions": [{"type": "Ready", "status": ready}],
                "containerStatuses": [{"name": "a", "image": "", "imageID": "", "ready": true, "restartCount": restarts}]}}))
            .unwrap()
        };
        let order = [pod("False", 0), pod("True", 5), pod("True", 0)];
        assert!(order.windows(2).all(|pair| trouble(&pair[0]) > trouble(&pair[1])));
    }
}
