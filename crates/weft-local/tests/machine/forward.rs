//! Port-forwarding to a server that only the pod itself reaches.

use super::{
    lab::{DEADLINE, apply, ready},
    tests::tool_command,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use weft_local::up::Mesh;

pub(crate) async fn ports_are_forwarded_from_inside_the_pod(client: &Client, _mesh: &Mesh) {
    let serve = tool_command(&["serve", "127.0.0.1:8081", "inside"]);
    apply(
        client,
        &format!(
            r#"
apiVersion: v1
kind: Pod
metadata: {{name: inward}}
spec: {{containers: [{{name: c, image: none, command: {serve}}}]}}
"#
        ),
    )
    .await;
    ready(client, "inward").await;
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let get = async {
        // The server may not listen yet when its container counts as ready.
        loop {
            let mut ports = pods.portforward("inward", &[8081, 8082]).await.unwrap();
            let why = ports.take_error(8082).unwrap();
            let mut stream = ports.take_stream(8081).unwrap();
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer).await;
            if !answer.is_empty() {
                return (answer, why.await.unwrap());
            }
        }
    };
    let (answer, why) = tokio::time::timeout(DEADLINE, get).await.expect("an answer");
    assert!(answer.ends_with("\r\n\r\ninside"), "{answer}");
    assert!(why.contains("connection refused"), "{why}");
}
