//! What stands in for a node: pods that run as soon as they exist, and an agent without processes.

use std::io;
use std::net::IpAddr;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::net::TcpStream;
use weft_local::api::error::ApiError;
use weft_local::api::kubelet::{AttachQuery, ExecQuery, ExecStreams, ExitCode, Kubelet, LogQuery};

/// Makes each pod run at once: a Job's pods succeed, others become ready; those that are deleted go.
pub(crate) async fn pods(client: Client) {
    let pods: Api<Pod> = Api::all(client.clone());
    let mut events = std::pin::pin!(watcher(pods, watcher::Config::default()).applied_objects());
    while let Some(pod) = events.try_next().await.unwrap() {
        let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap());
        let name = pod.name_any();
        if pod.metadata.deletion_timestamp.is_some() {
            // Somebody else's forced deletion may be faster.
            let _ = api.delete(&name, &DeleteParams::default().grace_period(0)).await;
            continue;
        }
        if pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some()) {
            continue;
        }
        let job = pod.labels().contains_key("job-name");
        let status = if job {
            json!({ "phase": "Succeeded", "podIP": "10.77.0.9" })
        } else {
            let last = pod.metadata.uid.unwrap().bytes().fold(0_u8, |sum, byte| sum.wrapping_add(byte));
            json!({
                "phase": "Running",
                "podIP": format!("10.77.1.{last}"),
                "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" }],
            })
        };
        let patch = Patch::Merge(json!({ "status": status }));
        let _ = api.patch_status(&name, &PatchParams::default(), &patch).await;
    }
}

/// A node agent without a node: logs are fixed, and every command is `cat` with an exit status in its arguments.
pub(crate) struct Agent;

impl Kubelet for Agent {
    fn logs(
        &self,
        query: LogQuery,
    ) -> BoxFuture<'_, Result<BoxStream<'static, io::Result<Bytes>>, ApiError>> {
        Box::pin(async move {
            let skipped = 3 - query.tail_lines.unwrap_or(3).min(3);
            let lines = (1..=3).map(move |n| Ok(Bytes::from(format!("{} line {n}\n", query.container))));
            Ok(stream::iter(lines).skip(skipped).boxed())
        })
    }

    fn exec(&self, query: ExecQuery, mut streams: ExecStreams) -> BoxFuture<'_, Result<ExitCode, ApiError>> {
        Box::pin(async move {
            let greeting = format!("{}\n", query.command.join(" "));
            let _ = streams.stdout.send(greeting.into()).await;
            while query.stdin
                && let Some(data) = streams.stdin.recv().await
            {
                let _ = streams.stdout.send(data).await;
            }
            let _ = streams.stderr.send(Bytes::from_static(b"done\n")).await;
            let code = query.command.last().and_then(|last| last.parse().ok()).unwrap_or(0);
            Ok(ExitCode(code))
        })
    }

    fn attach(&self, _: AttachQuery, streams: ExecStreams) -> BoxFuture<'_, Result<ExitCode, ApiError>> {
        Box::pin(async move {
            let _ = streams.stdout.send(Bytes::from_static(b"attached\n")).await;
            Ok(ExitCode(0))
        })
    }

    fn dial(&self, _: IpAddr, port: u16) -> BoxFuture<'_, io::Result<TcpStream>> {
        Box::pin(TcpStream::connect(("127.0.0.1", port)))
    }

    fn connect<'a>(&'a self, _: &'a str, port: u16) -> BoxFuture<'a, io::Result<TcpStream>> {
        Box::pin(TcpStream::connect(("127.0.0.1", port)))
    }
}
