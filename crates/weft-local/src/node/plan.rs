//! From a container's specification to a [`Launch`]: which program, as whom, with which files.

use super::{
    env::{self, Place, Sources},
    user::{is_weft, user},
    volumes::Volumes,
};
use crate::{
    network::Network,
    rights::{PROXY_MARK, Rights},
    runtime::{
        WEFT_DIR,
        launch::{Launch, Program, User},
    },
};
use k8s_openapi::api::core::v1::{Container, Pod};
use std::path::{Path, PathBuf};
use weft_fault::{Code, Fault, Phase};

/// Annotations `weft.dev/command.CONTAINER` give a container that has only an image a command of this machine.
pub(crate) const COMMAND_ANNOTATION: &str = "weft.dev/command.";
/// How the set-up of a redirect and the proxy hear of [`PROXY_MARK`].
const MARK_VARIABLE: &str = "LINKERD2_PROXY_WEFT_SOCKET_MARK";
/// Where programs are looked for when this process was started without a PATH.
const USUAL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What every container of the node shares.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) rights: Rights,
    pub(crate) network: Network,
    pub(crate) cluster_domain: String,
    pub(crate) stage: PathBuf,
    pub(crate) weft: PathBuf,
    pub(crate) path: Option<String>,
}

pub(crate) fn launch(
    ground: &Ground,
    pod: &Pod,
    container: &Container,
    place: Place,
    sources: &Sources,
    volumes: &Volumes,
) -> Result<Launch, Fault> {
    let user = user(pod, container, ground.rights)?;
    let mut base = base_variables(ground, pod, &user);
    if ground.rights == Rights::User && is_weft(container) {
        base.push((MARK_VARIABLE.to_string(), PROXY_MARK.to_string()));
    }
    let vars = env::variables(pod, container, place, sources, base)?;
    let program = program(pod, container, &vars)?;
    Ok(Launch {
        rights: ground.rights,
        stage: ground.stage.clone(),
        weft: ground.weft.clone(),
        working_dir: container.working_dir.as_deref().filter(|d| !d.is_empty()).unwrap_or("/").into(),
        etc: etc_files(ground, pod, place),
        mounts: volumes.mounts(pod, container, &vars)?,
        read_only_root: container.security_context.as_ref().and_then(|s| s.read_only_root_filesystem)
            == Some(true),
        env: vars,
        program,
        user,
    })
}

fn base_variables(ground: &Ground, pod: &Pod, user: &User) -> Vec<(String, String)> {
    let path = ground.path.as_deref().filter(|p| !p.is_empty()).unwrap_or(USUAL_PATH);
    [
        ("PATH", format!("{path}:{WEFT_DIR}")),
        ("HOSTNAME", hostname(pod)),
        ("HOME", if user.uid == 0 { "/root".into() } else { "/".into() }),
        ("KUBERNETES_SERVICE_HOST", ground.network.api_service_ip().to_string()),
        ("KUBERNETES_SERVICE_PORT", "443".into()),
    ]
    .map(|(k, v)| (k.to_string(), v))
    .to_vec()
}

fn program(pod: &Pod, container: &Container, vars: &[(String, String)]) -> Result<Program, Fault> {
    let args = env::expand_all(container.args.as_deref().unwrap_or_default(), vars);
    let command = env::expand_all(container.command.as_deref().unwrap_or_default(), vars);
    if !command.is_empty() {
        return Ok(Program::Command([command, args].concat()));
    }
    if is_weft(container) {
        return Ok(Program::Weft(args));
    }
    let key = format!("{COMMAND_ANNOTATION}{}", container.name);
    let annotation = pod.metadata.annotations.as_ref().and_then(|a| a.get(&key));
    let Some(text) = annotation else {
        return Err(Fault::new(Code::NoCommand)
            .in_phase(Phase::Start)
            .about(&container.name)
            .fact("image", container.image.as_deref().unwrap_or_default())
            .fact("annotation", key));
    };
    let words = words(text).filter(|w| !w.is_empty()).ok_or_else(|| {
        Fault::new(Code::BadManifest).in_phase(Phase::Start).about(&container.name).fact("annotation", &key)
    })?;
    Ok(Program::Command([env::expand_all(&words, vars), args].concat()))
}

/// Words of a command line: blanks separate, quotes and backslashes join. `None` if a quote is not closed.
pub(crate) fn words(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\'' | '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next()? {
                        end if end == c => break,
                        '\\' if c == '"' => word.push(chars.next()?),
                        other => word.push(other),
                    }
                }
            }
            '\\' => word.get_or_insert_default().push(chars.next()?),
            c if c.is_whitespace() => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Some(words)
}

/// The pod's host name.
pub(crate) fn hostname(pod: &Pod) -> String {
    let spec = pod.spec.as_ref();
    let name =
        spec.and_then(|s| s.hostname.clone()).or_else(|| pod.metadata.name.clone()).unwrap_or_default();
    name.chars().take(63).collect::<String>().trim_end_matches(['-', '.']).to_string()
}

fn etc_files(ground: &Ground, pod: &Pod, place: Place) -> Vec<(String, String)> {
    let spec = pod.spec.as_ref();
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let host = hostname(pod);
    let domain = &ground.cluster_domain;
    let mut hosts = String::from("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n");
    match spec.and_then(|s| s.subdomain.as_deref()).filter(|s| !s.is_empty()) {
        Some(sub) => {
            hosts.push_str(&format!("{}\t{host}.{sub}.{namespace}.svc.{domain}\t{host}\n", place.pod_ip));
        }
        None => hosts.push_str(&format!("{}\t{host}\n", place.pod_ip)),
    }
    for alias in spec.iter().flat_map(|s| s.host_aliases.iter().flatten()) {
        let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
        hosts.push_str(&format!("{}\t{names}\n", alias.ip));
    }
    vec![
        ("hosts".to_string(), hosts),
        ("hostname".to_string(), format!("{host}\n")),
        ("resolv.conf".to_string(), resolv_conf(ground, pod, namespace)),
    ]
}

fn resolv_conf(ground: &Ground, pod: &Pod, namespace: &str) -> String {
    let spec = pod.spec.as_ref();
    let own = spec.and_then(|s| s.dns_config.as_ref());
    let (mut servers, mut search, mut options) = (Vec::new(), Vec::new(), Vec::new());
    // `Default` means the node's resolvers, which are behind our responder here.
    if spec.and_then(|s| s.dns_policy.as_deref()) != Some("None") {
        let domain = &ground.cluster_domain;
        servers.push(ground.network.dns_ip().to_string());
        search.extend([format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.clone()]);
        options.push("ndots:5".to_string());
    }
    if let Some(own) = own {
        servers.extend(own.nameservers.iter().flatten().cloned());
        search.extend(own.searches.iter().flatten().cloned());
        for option in own.options.iter().flatten() {
            let Some(name) = &option.name else { continue };
            options.retain(|o| o.split(':').next() != Some(name));
            options.push(option.value.as_ref().map_or_else(|| name.clone(), |v| format!("{name}:{v}")));
        }
    }
    let mut out: String = servers.iter().map(|s| format!("nameserver {s}\n")).collect();
    if !search.is_empty() {
        out.push_str(&format!("search {}\n", search.join(" ")));
    }
    if !options.is_empty() {
        out.push_str(&format!("options {}\n", options.join(" ")));
    }
    out
}

/// The path of the program that runs now, if it is still there.
pub(crate) fn this_program() -> PathBuf {
    std::env::current_exe().unwrap_or_else(|_| Path::new("/proc/self/exe").to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::net::Ipv4Addr;

    fn ground() -> Ground {
        Ground {
            rights: Rights::Root,
            network: Network::usual(),
            cluster_domain: "cluster.local".into(),
            stage: "/s".into(),
            weft: "/w".into(),
            path: None,
        }
    }

    fn pod(container: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "shop", "annotations": {"weft.dev/command.web": "/bin/web 'a b' --x=\"$(HOSTNAME)\""}},
            "spec": {"containers": [container], "hostname": "h", "subdomain": "s",
                     "dnsConfig": {"options": [{"name": "ndots", "value": "2"}], "searches": ["corp"]},
                     "hostAliases": [{"ip": "192.0.2.9", "hostnames": ["a", "b"]}]}
        }))
        .unwrap()
    }

    fn plan(container: Value) -> Result<Launch, Fault> {
        plan_on(&ground(), container)
    }

    fn plan_on(ground: &Ground, container: Value) -> Result<Launch, Fault> {
        let pod = pod(container);
        let place = Place { pod_ip: Ipv4Addr::new(10, 77, 0, 9), host_ip: Ipv4Addr::new(10, 77, 0, 1) };
        let volumes = Volumes::new(Path::new("/v"), place);
        launch(ground, &pod, &pod.spec.as_ref().unwrap().containers[0], place, &Sources::default(), &volumes)
    }

    #[test]
    fn programs() {
        let command = |c: Value| plan(c).map(|l| l.program);
        let got =
            command(json!({"name": "c", "command": ["sh", "-c"], "args": ["echo $(HOSTNAME)"]})).unwrap();
        assert_eq!(got, Program::Command(vec!["sh".into(), "-c".into(), "echo h".into()]));
        let got = command(json!({"name": "web", "image": "shop/web:1", "args": ["-v"]})).unwrap();
        assert_eq!(got, Program::Command(["/bin/web", "a b", "--x=h", "-v"].map(String::from).to_vec()));
        let got = command(json!({"name": "linkerd-proxy", "image": "weft.dev/weft:v1", "args": ["proxy"]}))
            .unwrap();
        assert_eq!(got, Program::Weft(vec!["proxy".into()]));
        let fault = command(json!({"name": "api", "image": "shop/api:1"})).unwrap_err();
        assert_eq!(fault.code(), Code::NoCommand);
        assert!(fault.to_string().contains("annotation=weft.dev/command.api"), "{fault}");
    }

    #[test]
    fn without_root_the_redirect_and_the_proxy_know_the_mark() {
        let mark = |rights, container| {
            let env = plan_on(&Ground { rights, ..ground() }, container).unwrap().env;
            env.into_iter().find(|(name, _)| name == MARK_VARIABLE).map(|(_, mark)| mark)
        };
        let proxy = || json!({"name": "linkerd-proxy", "image": "weft.dev/weft:v1"});
        assert_eq!(mark(Rights::User, proxy()), Some(PROXY_MARK.to_string()));
        assert_eq!(mark(Rights::Root, proxy()), None);
        assert_eq!(mark(Rights::User, json!({"name": "app", "command": ["x"]})), None);
    }

    #[test]
    fn command_lines() {
        assert_eq!(words(" a  'b c'\\ d \"e\\\"f\" ''").unwrap(), ["a", "b c d", "e\"f", ""]);
        assert_eq!(words("a 'b"), None);
        assert_eq!(words("  ").unwrap(), Vec::<String>::new());
    }

    #[test]
    fn files_of_etc() {
        let launch = plan(json!({"name": "c", "command": ["x"]})).unwrap();
        let file = |name: &str| launch.etc.iter().find(|(n, _)| n == name).unwrap().1.clone();
        assert_eq!(
            file("resolv.conf"),
            "nameserver 10.78.0.10\nsearch shop.svc.cluster.local svc.cluster.local cluster.local corp\noptions ndots:2\n"
        );
        assert!(file("hosts").contains("10.77.0.9\th.s.shop.svc.cluster.local\th\n192.0.2.9\ta\tb\n"));
        assert_eq!(file("hostname"), "h\n");
    }
}
