//! A Kubernetes API that is there already, which a mesh on this machine uses instead of one of its own.
//!
//! The mesh's namespaces do not reach what this machine reaches, least of all its loopback. The process outside carries
//! their connections to the API server; TLS is between the two ends.

use ipnet::Ipv4Net;
use kube::{
    Client, Config,
    config::{AuthInfo, Cluster, KubeConfigOptions, Kubeconfig},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{fmt, io, net::SocketAddr, path::Path, thread::JoinHandle, time::Duration};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::{Semaphore, oneshot},
    time::timeout,
};
use weft_fault::{Code, Fault, Phase};

/// What the API server may take for a connection or an answer.
const DEADLINE: Duration = Duration::from_secs(10);
/// Connections that are carried at a time; more wait.
const CONNECTIONS: usize = 256;

/// What a kubeconfig, or a file that it names, may have: a device has no end.
const FILE_LIMIT: u64 = 8 << 20;

/// An API server, and who we are to it.
#[derive(Clone, Serialize, Deserialize)]
pub struct External {
    /// One cluster and one user; nothing in it leads to files or programs.
    pub kubeconfig: String,
    /// Where this machine reaches it.
    pub address: SocketAddr,
    /// Where it takes the addresses of Services from.
    pub services: Ipv4Net,
}

/// Holds a key or a token: never print it.
impl fmt::Debug for External {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("External")
            .field("address", &self.address)
            .field("services", &self.services)
            .finish_non_exhaustive()
    }
}

fn unusable(path: &Path, problem: impl fmt::Display) -> Fault {
    Fault::new(Code::BadFlag)
        .in_phase(Phase::Start)
        .about(format!("--kubeconfig {}", path.display()))
        .fact("problem", problem)
        .fact("expected", "a file with which `kubectl --kubeconfig FILE get nodes` works on this machine")
}

impl External {
    /// Reads the current context of a kubeconfig, and asks its server what a mesh needs to know.
    pub async fn read(path: &Path) -> Result<External, Fault> {
        let whole = whole(path).map_err(|problem| unusable(path, problem))?;
        let mut kubeconfig = alone(&whole).map_err(|problem| unusable(path, problem))?;
        let server = server(&mut kubeconfig).map_err(|problem| unusable(path, problem))?;
        let address = timeout(DEADLINE, tokio::net::lookup_host(&server)).await;
        let address = address.ok().and_then(Result::ok).and_then(|mut found| found.next());
        let address = address.ok_or_else(|| unusable(path, format!("there is no address of {server}")))?;
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig.clone(), &options).await;
        let config = config.map_err(|e| unusable(path, e))?;
        let client = Client::try_from(config).map_err(|e| unusable(path, e))?;
        // Whoever gave the file knows what is in it: this is the first that is asked of its server.
        let services = service_range(&client).await.map_err(|fault| {
            fault.about(format!("--kubeconfig {}", path.display())).fact("server", &server)
        })?;
        let kubeconfig = serde_json::to_string(&kubeconfig).map_err(|e| unusable(path, e))?;
        Ok(External { kubeconfig, address, services })
    }

    /// The kubeconfig for the inside, where the server is found at another address but has the same name.
    pub(crate) fn kubeconfig_at(&self, address: SocketAddr) -> Result<String, Fault> {
        let broken = |e: Box<dyn std::error::Error + Send + Sync>| {
            Fault::new(Code::Invariant).about("kubeconfig").because(e)
        };
        let mut kubeconfig = Kubeconfig::from_yaml(&self.kubeconfig).map_err(|e| broken(e.into()))?;
        for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
            let url: http::Uri = cluster
                .server
                .as_deref()
                .unwrap_or_default()
                .parse()
                .map_err(|e: http::uri::InvalidUri| broken(e.into()))?;
            if cluster.tls_server_name.is_none() {
                let name = url.host().unwrap_or_default().trim_matches(['[', ']']);
                cluster.tls_server_name = Some(name.to_owned());
            }
            cluster.server = Some(format!("https://{address}"));
        }
        serde_json::to_string(&kubeconfig).map_err(|e| broken(e.into()))
    }
}

/// Everything in a kubeconfig.
fn whole(path: &Path) -> Result<Kubeconfig, String> {
    let bytes = content(path)?;
    if let ([0xff, 0xfe, ..] | [0xfe, 0xff, ..], 1) = (&bytes[..], bytes.len() % 2) {
        return Err("it is UTF-16 with half a character".to_owned());
    }
    // What is no file, such as a pipe, can be read once.
    let parsed = if path.is_file() {
        Kubeconfig::read_from(path)
    } else {
        let text = String::from_utf8(bytes).map_err(|e| e.to_string())?;
        Kubeconfig::from_yaml(&text)
    };
    parsed.map_err(|error| {
        // What is wrong in a file may be told over several lines.
        let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
        causes.map(|cause| cause.to_string()).collect::<Vec<_>>().join(": ")
    })
}

/// The current context's cluster and user, with the content of the files they name.
fn alone(whole: &Kubeconfig) -> Result<Kubeconfig, String> {
    let current = whole.current_context.as_deref().unwrap_or_default();
    let context = whole.contexts.iter().find(|c| c.name == current);
    let context = context.ok_or_else(|| no_context(whole, current))?;
    let inside = context.context.as_ref().ok_or("its current context is empty")?;
    let user = inside.user.as_deref().unwrap_or_default();
    let mut cluster = whole.clusters.iter().find(|c| c.name == inside.cluster).cloned();
    let mut auth = whole.auth_infos.iter().find(|a| a.name == user).cloned();
    if let Some(cluster) = cluster.as_mut().and_then(|named| named.cluster.as_mut()) {
        take_in_authority(cluster)?;
    }
    if auth.is_none() && !user.is_empty() {
        return Err(format!("it has no user {user:?}, whom its current context names"));
    }
    if let Some(auth) = auth.as_mut().and_then(|named| named.auth_info.as_mut()) {
        take_in_user(auth)?;
    }
    Ok(Kubeconfig {
        current_context: Some(context.name.clone()),
        contexts: vec![context.clone()],
        clusters: vec![cluster.ok_or_else(|| format!("it has no cluster {}", inside.cluster))?],
        auth_infos: auth.into_iter().collect(),
        api_version: Some("v1".to_owned()),
        kind: Some("Config".to_owned()),
        ..Kubeconfig::default()
    })
}

fn no_context(whole: &Kubeconfig, current: &str) -> String {
    const SHOWN: usize = 10;
    let names: Vec<&str> = whole.contexts.iter().take(SHOWN).map(|context| context.name.as_str()).collect();
    let choose = match names[..] {
        [] => "there are no contexts in it at all".to_owned(),
        _ => format!("choose one with `kubectl config use-context`: {}", names.join(", ")),
    };
    match current {
        "" => format!("it has no current context; {choose}"),
        _ => format!("it has no context {current:?}, which it calls the current one; {choose}"),
    }
}

/// Of a file that a user names, or that a kubeconfig does.
fn content(path: &Path) -> Result<Vec<u8>, String> {
    use io::Read as _;
    let read = || -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        std::fs::File::open(path)?.take(FILE_LIMIT + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|e| format!("{}: {e}", path.display()))?;
    match bytes.len() as u64 > FILE_LIMIT {
        true => Err(format!("{}: it is larger than {} MiB", path.display(), FILE_LIMIT >> 20)),
        false => Ok(bytes),
    }
}

fn encoded(path: &str) -> Result<String, String> {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    Ok(STANDARD.encode(content(Path::new(path))?))
}

fn take_in_authority(cluster: &mut Cluster) -> Result<(), String> {
    if let Some(file) = cluster.certificate_authority.take() {
        cluster.certificate_authority_data = Some(encoded(&file)?);
    }
    Ok(())
}

fn take_in_user(auth: &mut AuthInfo) -> Result<(), String> {
    if auth.exec.is_some() || auth.auth_provider.is_some() {
        return Err(
            "its user is a program that is asked for credentials: give one with a certificate or token \
                    (kubectl create token)"
                .to_owned(),
        );
    }
    if let Some(file) = auth.client_certificate.take() {
        auth.client_certificate_data = Some(encoded(&file)?);
    }
    if let Some(file) = auth.client_key.take() {
        auth.client_key_data = Some(encoded(&file)?.into());
    }
    if let Some(file) = auth.token_file.take() {
        let token = String::from_utf8(content(Path::new(&file))?).map_err(|e| format!("{file}: {e}"))?;
        auth.token = Some(token.trim().to_owned().into());
    }
    Ok(())
}

/// The server as `host:port`.
fn server(kubeconfig: &mut Kubeconfig) -> Result<String, String> {
    let cluster = kubeconfig.clusters.first().and_then(|named| named.cluster.as_ref());
    let url = cluster.and_then(|cluster| cluster.server.as_deref());
    let url = url.filter(|url| !url.is_empty()).ok_or("its cluster has no server")?;
    let uri: http::Uri = url.parse().map_err(|e| format!("{url}: {e}"))?;
    match (uri.scheme_str(), uri.host()) {
        // What follows the host is its port, even where that is no port.
        (Some("https"), Some(host)) => match (uri.port_u16(), uri.authority().map(|a| a.as_str())) {
            (Some(port), _) => Ok(format!("{host}:{port}")),
            (None, Some(all)) if all.ends_with(host) => Ok(format!("{host}:443")),
            _ => Err(format!("{url} has a port that is none")),
        },
        _ => Err(format!("{url} is no https:// address")),
    }
}

/// Where the cluster takes the addresses of Services from: its ServiceCIDR says so since 1.33. Before, it is asked for an
/// address that no cluster gives, and the refusal says which it does.
async fn service_range(client: &Client) -> Result<Ipv4Net, Fault> {
    let fault = || Fault::new(Code::ApiRequestFailed).fact("step", "find the range of Services");
    let request = http::Request::get("/apis/networking.k8s.io/v1/servicecidrs/kubernetes")
        .body(Vec::new())
        .map_err(|e| fault().because(e))?;
    match timeout(DEADLINE, client.request::<Value>(request))
        .await
        .map_err(|_| fault().fact("answer", "none in time"))?
    {
        Ok(found) => {
            let ranges = found["spec"]["cidrs"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let range = ranges.filter_map(|range| range.parse().ok()).next();
            return range.ok_or_else(|| fault().fact("answer", "a ServiceCIDR without an IPv4 range"));
        }
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => return Err(fault().because(error)),
    }
    let body = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"generateName": "weft-range-"},
        "spec": {"clusterIP": "0.0.0.1", "ports": [{"port": 1}]}});
    let request = http::Request::post("/api/v1/namespaces/default/services?dryRun=All")
        .header("content-type", "application/json")
        .body(body.to_string().into_bytes())
        .map_err(|e| fault().because(e))?;
    let answer = timeout(DEADLINE, client.request::<Value>(request)).await;
    match answer.map_err(|_| fault().fact("answer", "none in time"))? {
        Err(kube::Error::Api(status)) => {
            range_in(&status.message).ok_or_else(|| fault().fact("answer", status.message.as_str()))
        }
        Err(error) => Err(fault().because(error)),
        Ok(_) => Err(fault().fact("answer", "a Service with the address 0.0.0.1")),
    }
}

/// The IPv4 range that a refusal names.
fn range_in(message: &str) -> Option<Ipv4Net> {
    let (_, rest) = message.split_once("range of valid IPs is ")?;
    rest.split([' ', ',', ']', '"']).find_map(|word| word.parse().ok())
}

/// Carries connections to the API server until dropped.
#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) at: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Listens on an address that only the mesh reaches. A thread of its own: whoever starts a mesh may have no runtime.
    pub(crate) fn start(listen: std::net::IpAddr, to: SocketAddr) -> io::Result<Relay> {
        let listener = std::net::TcpListener::bind((listen, 0))?;
        let at = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("api-relay".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    // The sender's end is an end as well.
                    _ = stopped => {}
                    () = carry(listener, to) => {}
                }
            });
        })?;
        Ok(Relay { at, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn carry(listener: std::net::TcpListener, to: SocketAddr) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    let room = std::sync::Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        let Ok((mut inside, _)) = listener.accept().await else {
            // Out of descriptors, most likely: wait for some to be free.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        tokio::spawn(async move {
            let _permit = permit;
            if let Ok(Ok(mut outside)) = timeout(DEADLINE, TcpStream::connect(to)).await {
                // Either end may close it; the clients have deadlines of their own.
                let _ = copy_bidirectional(&mut inside, &mut outside).await;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubeconfig(user: &str, files: &Path) -> Kubeconfig {
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: b\n\
             contexts:\n- {{name: a, context: {{cluster: a, user: a}}}}\n- {{name: b, context: {{cluster: b, user: b}}}}\n\
             clusters:\n- {{name: a, cluster: {{server: 'https://a'}}}}\n\
             - {{name: b, cluster: {{server: 'https://b.example:6443', certificate-authority: {ca}}}}}\n\
             users:\n- {{name: a, user: {{token: a}}}}\n- {{name: b, user: {user}}}\n",
            ca = files.join("ca").display()
        );
        Kubeconfig::from_yaml(&text).unwrap()
    }

    #[test]
    fn one_cluster_and_one_user_are_left_and_files_are_taken_in() {
        let files = tempfile::tempdir().unwrap();
        std::fs::write(files.path().join("ca"), "CA").unwrap();
        std::fs::write(files.path().join("token"), "secret\n").unwrap();
        let token = files.path().join("token");
        let mut left =
            alone(&kubeconfig(&format!("{{tokenFile: {}}}", token.display()), files.path())).unwrap();
        assert_eq!((left.clusters.len(), left.auth_infos.len()), (1, 1));
        assert_eq!(server(&mut left).unwrap(), "b.example:6443");
        let text = serde_json::to_string(&left).unwrap();
        assert!(
            text.contains("Q0E=") && text.contains("\"secret\"") && !text.contains("tokenFile"),
            "{text}"
        );

        let external = External {
            kubeconfig: text,
            address: "192.0.2.1:6443".parse().unwrap(),
            services: "10.96.0.0/12".parse().unwrap(),
        };
        let inside = external.kubeconfig_at("10.77.255.254:7".parse().unwrap()).unwrap();
        assert!(inside.contains("https://10.77.255.254:7") && inside.contains("b.example"), "{inside}");
        assert!(!format!("{external:?}").contains("secret"));
    }

    #[test]
    fn what_cannot_be_taken_along_is_refused() {
        let files = tempfile::tempdir().unwrap();
        let missing = alone(&kubeconfig("{token: x}", files.path())).unwrap_err();
        assert!(missing.contains("ca"), "{missing}");
        std::fs::write(files.path().join("ca"), "CA").unwrap();
        let program =
            "{exec: {apiVersion: client.authentication.k8s.io/v1, command: login, interactiveMode: Never}}";
        let refused = alone(&kubeconfig(program, files.path())).unwrap_err();
        assert!(refused.contains("program"), "{refused}");
    }

    #[test]
    fn files_that_are_no_kubeconfig_are_refused_with_their_name() {
        let files = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = files.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let contexts =
            b"apiVersion: v1\nkind: Config\ncontexts: [{name: a}, {name: b}]\ncurrent-context: c\n";
        for (path, why) in [
            (files.path().join("none"), "No such file"),
            (files.path().to_owned(), "directory"),
            ("/dev/zero".into(), "larger than 8 MiB"),
            (file("empty", b""), "no current context"),
            (file("binary", &[0x7f, b'E', b'L', b'F', 0xff, 0]), "UTF-8"),
            (file("half", &[0xff, 0xfe, b'a']), "half a character"),
            (file("huge", &vec![b'#'; FILE_LIMIT as usize + 1]), "larger than 8 MiB"),
            (file("list", b"- a\n- b\n"), "parse"),
            (file("contexts", contexts), "no context \"c\", which it calls the current one; choose one with"),
        ] {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let fault = runtime.block_on(External::read(&path)).unwrap_err();
            assert_eq!(fault.code(), Code::BadFlag);
            let text = fault.to_string();
            assert!(text.contains(path.to_str().unwrap()) && text.contains(why), "{text}");
        }
        for (url, found) in [
            ("https://a", Ok("a:443")),
            ("https://[::1]/x", Ok("[::1]:443")),
            ("https://[::1]:6443", Ok("[::1]:6443")),
            ("https://a:99999", Err("port")),
            ("https://a:", Err("port")),
            ("http://a:1", Err("no https:// address")),
            ("a", Err("no https:// address")),
            ("", Err("no server")),
        ] {
            let text = format!("clusters: [{{name: a, cluster: {{server: '{url}'}}}}]");
            match (server(&mut Kubeconfig::from_yaml(&text).unwrap()), found) {
                (Ok(server), Ok(expected)) => assert_eq!(server, expected),
                (Err(why), Err(expected)) => assert!(why.contains(expected), "{url}: {why}"),
                (got, _) => panic!("{url}: {got:?}"),
            }
        }
        let nobody = kubeconfig("{token: x}", files.path());
        let nobody = Kubeconfig { auth_infos: Vec::new(), ..nobody };
        std::fs::write(files.path().join("ca"), "CA").unwrap();
        let refused = alone(&nobody).unwrap_err();
        assert!(refused.contains("no user \"b\""), "{refused}");
    }

    #[test]
    fn the_range_is_in_the_refusal() {
        for message in [
            "Service \"x\" is invalid: spec.clusterIPs: Invalid value: [\"0.0.0.1\"]: failed to allocate IP 0.0.0.1: \
             the provided IP (0.0.0.1) is not in the valid range. The range of valid IPs is 10.96.0.0/12",
            "provided IP is not in the valid range. The range of valid IPs is 10.96.0.0/12]",
        ] {
            assert_eq!(range_in(message), Some("10.96.0.0/12".parse().unwrap()), "{message}");
        }
        assert_eq!(range_in("no"), None);
    }
}
