//! `weft inject` and `weft uninject`: manifests in, manifests out, a report on stderr.

use crate::{
    cluster,
    commands::install::{Form, checked, print, recognised},
    manifest::{self, Document},
    mesh::Target,
};
use anyhow::Result;
use serde_json::Value;
use std::{path::PathBuf, process::ExitCode};
use weft_control::{
    admission::{
        decide::{Annotations, CONFIG_PREFIX, INJECT},
        inject::About,
        manifest::{Outcome, annotate, inject_pods, udp_ports, uninject},
    },
    bootstrap::IdentityFiles,
    config::ControllerConfig,
    install::{settings::controller_config, values::Values},
    ports::PortSet,
};
use weft_fault::{Code, Fault};
use weft_tls::certificate::sha256_hex;

/// Add the mesh to manifests: annotations that the cluster's injector acts on, or the proxies themselves
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Each flag but --manual and its like is an annotation on the pods, config.linkerd.io/NAME.

Examples:
  weft inject deploy.yaml | kubectl apply -f -
  kubectl get deploy -o yaml | weft inject - | kubectl apply -f -
  weft inject --opaque-ports 3306,9000-9010 manifests/ | kubectl apply -f -
  weft inject --manual deploy.yaml             the proxies' containers, with the cluster's settings
  weft inject --manual --ignore-cluster x.yaml the same with default settings, without identity

Exit codes: 0 printed, 1 printed and some workload cannot be injected, 2 something cannot be read."
)]
pub(crate) struct Inject {
    #[command(flatten)]
    target: Target,
    /// Files, folders and http(s) addresses; `-` is standard input.
    #[arg(required = true, value_name = "FILE|DIR|URL|-")]
    paths: Vec<PathBuf>,
    /// Write the proxies' containers, instead of asking the injector to.
    #[arg(long)]
    manual: bool,
    /// With --manual: ask no cluster.
    #[arg(long, requires = "manual")]
    ignore_cluster: bool,
    /// The workload is an ingress: connections go where `l5d-dst-override` says.
    #[arg(long)]
    ingress: bool,
    #[command(flatten)]
    settings: Settings,
    /// YAML or JSON.
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
}

/// Flags that are annotations.
#[derive(clap::Args, Debug, Default)]
struct Settings {
    /// A container with tshark beside the application.
    #[arg(long)]
    enable_debug_sidecar: bool,
    /// Whether the proxy is a native sidecar.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    native_sidecar: Option<bool>,
    /// Kernel's timeout of CLOSE_WAIT, such as 3600s.
    #[arg(long, value_name = "DURATION")]
    close_wait_timeout: Option<String>,
    /// Ports that carry no HTTP.
    #[arg(long, value_name = "PORTS")]
    opaque_ports: Option<String>,
    /// Ports that reach the application without the proxy.
    #[arg(long, value_name = "PORTS", value_parser = tcp_ports)]
    skip_inbound_ports: Option<String>,
    /// Ports that the application reaches without the proxy.
    #[arg(long, value_name = "PORTS", value_parser = tcp_ports)]
    skip_outbound_ports: Option<String>,
    /// Networks whose connections reach the application without the proxy.
    #[arg(long, value_name = "CIDRS")]
    skip_subnets: Option<String>,
    /// Ports that take meshed callers only.
    #[arg(long, value_name = "PORTS")]
    require_identity_on_inbound_ports: Option<String>,
    /// Who may call where nothing says so.
    #[arg(long, value_name = "POLICY")]
    default_inbound_policy: Option<String>,
    /// Seconds that the proxy waits before it ends.
    #[arg(long, value_name = "SECONDS")]
    wait_before_exit_seconds: Option<u32>,
    /// How long open connections may last after SIGTERM.
    #[arg(long, value_name = "DURATION")]
    shutdown_grace_period: Option<String>,
    /// Form of the access log.
    #[arg(long, value_parser = ["apache", "json"])]
    access_log: Option<String>,
    /// Log filter of the proxy.
    #[arg(long, value_name = "FILTER")]
    proxy_log_level: Option<String>,
    /// Image of the proxy.
    #[arg(long, value_name = "IMAGE")]
    proxy_image: Option<String>,
    /// Its tag.
    #[arg(long, value_name = "TAG")]
    proxy_version: Option<String>,
    /// CPU that the proxy requests.
    #[arg(long, value_name = "AMOUNT")]
    proxy_cpu_request: Option<String>,
    /// Its limit of CPU.
    #[arg(long, value_name = "AMOUNT")]
    proxy_cpu_limit: Option<String>,
    /// Memory that the proxy requests.
    #[arg(long, value_name = "AMOUNT")]
    proxy_memory_request: Option<String>,
    /// Its limit of memory.
    #[arg(long, value_name = "AMOUNT")]
    proxy_memory_limit: Option<String>,
}

/// A list that the redirect is set up with: it knows TCP and numbers.
fn tcp_ports(text: &str) -> Result<String, String> {
    match PortSet::numbers(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(why) => Err(why),
    }
}

impl Settings {
    fn annotations(&self) -> Annotations {
        let seconds = self.wait_before_exit_seconds.map(|s| s.to_string());
        let native = self.native_sidecar.map(|b| b.to_string());
        let debug = self.enable_debug_sidecar.then(|| "true".to_owned());
        let mut all: Annotations = [
            ("enable-debug-sidecar", &debug),
            ("proxy-enable-native-sidecar", &native),
            ("close-wait-timeout", &self.close_wait_timeout),
            ("opaque-ports", &self.opaque_ports),
            ("skip-inbound-ports", &self.skip_inbound_ports),
            ("skip-outbound-ports", &self.skip_outbound_ports),
            ("skip-subnets", &self.skip_subnets),
            ("proxy-require-identity-inbound-ports", &self.require_identity_on_inbound_ports),
            ("default-inbound-policy", &self.default_inbound_policy),
            ("shutdown-grace-period", &self.shutdown_grace_period),
            ("access-log", &self.access_log),
            ("proxy-log-level", &self.proxy_log_level),
            ("proxy-image", &self.proxy_image),
            ("proxy-version", &self.proxy_version),
            ("proxy-cpu-request", &self.proxy_cpu_request),
            ("proxy-cpu-limit", &self.proxy_cpu_limit),
            ("proxy-memory-request", &self.proxy_memory_request),
            ("proxy-memory-limit", &self.proxy_memory_limit),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((format!("{CONFIG_PREFIX}{name}"), value.clone()?)))
        .collect();
        all.extend(seconds.map(|s| ("config.alpha.linkerd.io/proxy-wait-before-exit-seconds".to_owned(), s)));
        all
    }
}

impl Inject {
    pub(crate) async fn run(self) -> Result<ExitCode> {
        let documents = manifest::read_all(&self.paths).await?;
        let mut wanted = self.settings.annotations();
        let mode = if self.ingress { "ingress" } else { "enabled" };
        if !self.manual || self.ingress {
            wanted.insert(INJECT.to_owned(), mode.to_owned());
        }
        let by_hand = match self.manual {
            true => Some(self.by_hand().await?),
            false => None,
        };
        change(documents, "injected", self.output, |object| match &by_hand {
            None => (annotate(object, &wanted), Vec::new()),
            Some((config, roots)) => {
                let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default").to_owned();
                let about = About {
                    namespace: &namespace,
                    owner: None,
                    roots,
                    roots_sha256: &sha256_hex(roots.as_bytes()),
                    by: "cli",
                };
                inject_pods(object, &wanted, config, &about)
            }
        })
    }

    /// The settings and trust anchors that proxies are made with.
    async fn by_hand(&self) -> Result<(ControllerConfig, String)> {
        let namespace = &self.target.linkerd_namespace;
        if self.ignore_cluster {
            let config = controller_config(&Values::defaults(false), namespace);
            let roots = IdentityFiles::generate(&config)?.trust_roots;
            anstream::eprintln!(
                "weft: no cluster was asked: the trust anchors are made up, and no proxy will find an issuer"
            );
            return Ok((config, roots));
        }
        let client = self.target.cluster().await?;
        let overrides = recognised(&cluster::settings(&client, namespace).await?);
        let roots = cluster::identity(&client, namespace).await?.trust_roots;
        if roots.is_empty() {
            return Err(Fault::new(Code::NotInstalled).about(namespace).into());
        }
        Ok((controller_config(&checked(&overrides, false)?, namespace), roots))
    }
}

/// Take the mesh out of manifests: proxies, annotations and labels
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft uninject deploy.yaml | kubectl apply -f -
  kubectl get deploy -o yaml | weft uninject - | kubectl apply -f -

Exit codes: 0 printed, 2 something cannot be read.")]
pub(crate) struct Uninject {
    /// Files, folders and http(s) addresses; `-` is standard input.
    #[arg(required = true, value_name = "FILE|DIR|URL|-")]
    paths: Vec<PathBuf>,
    /// YAML or JSON.
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
}

impl Uninject {
    pub(crate) async fn run(self) -> Result<ExitCode> {
        let documents = manifest::read_all(&self.paths).await?;
        change(documents, "uninjected", self.output, |object| (uninject(object), Vec::new()))
    }
}

/// Changes every object, prints all of them, and reports on each.
fn change(
    documents: Vec<Document>,
    done: &str,
    output: Form,
    change: impl Fn(&mut Value) -> (Outcome, Vec<String>),
) -> Result<ExitCode> {
    let mut objects = Vec::with_capacity(documents.len());
    let mut refused = false;
    for document in documents {
        let title = document.title();
        let mut object = document.object;
        let udp = udp_ports(&object);
        let (outcome, warnings) = change(&mut object);
        match outcome {
            Outcome::Changed => anstream::eprintln!("{title} {done}"),
            Outcome::Unchanged(why) => anstream::eprintln!("{title} skipped: {why}"),
            Outcome::Refused(why) => {
                refused = true;
                anstream::eprintln!(
                    "weft: {:?}",
                    Fault::new(Code::NotInjectable).about(title).fact("why", why)
                );
            }
        }
        for warning in warnings {
            anstream::eprintln!("  {warning}");
        }
        if !udp.is_empty() && done == "injected" {
            let ports: Vec<String> = udp.iter().map(ToString::to_string).collect();
            anstream::eprintln!(
                "  UDP ports {} go past the proxy: they are neither encrypted nor authorized",
                ports.join(", ")
            );
        }
        objects.push(object);
    }
    let printed = print(&objects, output)?;
    Ok(if refused { ExitCode::from(1) } else { printed })
}
