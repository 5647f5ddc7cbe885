use crate::harness::{Cluster, documents, named, shown};

const DEPLOYMENT: &str = "apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
spec:
  selector:
    matchLabels: {app: web}
  template:
    metadata:
      labels: {app: web}
    spec:
      containers:
      - name: web
        image: web
        ports:
        - containerPort: 8080
        - containerPort: 53
          protocol: UDP
";
const SERVICE: &str =
    "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\nspec:\n  ports:\n  - port: 80\n";
const HOST: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: host\nspec:\n  hostNetwork: true\n  containers:\n  - name: a\n    image: a\n";

#[test]
fn annotations_in_and_out_again() {
    let cluster = Cluster::start();
    let both = format!("{DEPLOYMENT}---\n{SERVICE}");
    let output =
        cluster.weft(&["inject", "--opaque-ports", "3306", "--wait-before-exit-seconds", "5", "-"], &both);
    assert!(output.status.success(), "{}", shown(&output));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("deployment/web") && told.contains("injected"), "{told}");
    assert!(told.contains("service/web") && told.contains("skipped"), "{told}");
    assert!(told.contains("UDP ports 53"), "{told}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let injected = documents(&text);
    let notes = &named(&injected, "Deployment", "web")["spec"]["template"]["metadata"]["annotations"];
    assert_eq!(notes["linkerd.io/inject"], "enabled");
    assert_eq!(notes["config.linkerd.io/opaque-ports"], "3306");
    assert_eq!(notes["config.alpha.linkerd.io/proxy-wait-before-exit-seconds"], "5");
    let out = cluster.weft(&["uninject", "-"], &text);
    assert_eq!(documents(&String::from_utf8_lossy(&out.stdout)), documents(&both));
}

#[test]
fn manifests_are_read_from_the_web() {
    use std::io::{Read as _, Write as _};
    let cluster = Cluster::start();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/web.yaml", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        for (status, body) in [("200 OK", DEPLOYMENT), ("404 Not Found", "")] {
            let (mut tcp, _) = listener.accept().unwrap();
            let _ = tcp.read(&mut [0; 4096]).unwrap();
            let head =
                format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            tcp.write_all(format!("{head}{body}").as_bytes()).unwrap();
        }
    });
    let injected = documents(&cluster.ok(&["inject", &url]));
    let notes = &named(&injected, "Deployment", "web")["spec"]["template"]["metadata"]["annotations"];
    assert_eq!(notes["linkerd.io/inject"], "enabled");
    let missing = cluster.weft(&["uninject", &url], "");
    assert_eq!(missing.status.code(), Some(2), "{}", shown(&missing));
    assert!(shown(&missing).contains(&url) && shown(&missing).contains("404"), "{}", shown(&missing));
    server.join().unwrap();
}

#[test]
fn ports_of_udp_cannot_be_skipped() {
    let cluster = Cluster::start();
    for flag in ["--skip-inbound-ports", "--skip-outbound-ports"] {
        let output = cluster.weft(&["inject", flag, "8080,53/udp", "-"], DEPLOYMENT);
        assert_eq!(output.status.code(), Some(2), "{}", shown(&output));
        assert!(shown(&output).contains("53/udp: UDP always goes past the proxy"), "{}", shown(&output));
    }
}

#[test]
fn by_hand_with_the_clusters_settings() {
    let cluster = Cluster::start();
    if !cluster.apply(&cluster.ok(&["install", "--crds"])) {
        return;
    }
    let installed = cluster.ok(&["install", "--set", "proxy.logLevel=trace,proxy.image.version=v9"]);
    cluster.apply(&installed);
    let output = cluster.weft(&["inject", "--manual", "-"], DEPLOYMENT);
    assert!(output.status.success(), "{}", shown(&output));
    let injected = documents(&String::from_utf8_lossy(&output.stdout));
    let spec = &named(&injected, "Deployment", "web")["spec"]["template"]["spec"];
    let proxy = &spec["initContainers"][1];
    assert_eq!(proxy["image"], "weft.dev/weft-proxy:v9");
    let value = |name: &str| {
        let env = proxy["env"].as_array().unwrap().iter();
        env.clone().find(|e| e["name"] == format!("LINKERD2_PROXY_{name}")).unwrap()["value"].clone()
    };
    assert_eq!(value("LOG"), "trace");
    let roots =
        &named(&documents(&installed), "ConfigMap", "linkerd-identity-trust-roots")["data"]["ca-bundle.crt"]
            .clone();
    assert_eq!(&value("IDENTITY_TRUST_ANCHORS"), roots);
    // The API takes what was made.
    assert!(cluster.apply(&String::from_utf8_lossy(&output.stdout)));
    let again = cluster.weft(&["inject", "--manual", "-"], &String::from_utf8_lossy(&output.stdout));
    assert_eq!(again.status.code(), Some(1), "{}", shown(&again));
}

#[test]
fn what_cannot_be_injected_is_printed_as_it_is_and_told() {
    let cluster = Cluster::start();
    let output = cluster.weft(&["inject", "-"], HOST);
    assert_eq!(output.status.code(), Some(1), "{}", shown(&output));
    assert!(shown(&output).contains("CFG-012"), "{}", shown(&output));
    assert_eq!(documents(&String::from_utf8_lossy(&output.stdout)), documents(HOST));
    let unreadable = cluster.weft(&["inject", "-"], "a: [");
    assert_eq!(unreadable.status.code(), Some(2), "{}", shown(&unreadable));
    let default = cluster.weft(&["inject", "--manual", "--ignore-cluster", "-"], DEPLOYMENT);
    assert!(default.status.success(), "{}", shown(&default));
}
