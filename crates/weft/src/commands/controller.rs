//! `weft controller`: the control plane on a cluster, as its Deployment runs it.

use crate::log;
use anyhow::{Context as _, Result};
use std::{path::PathBuf, process::ExitCode};
use tokio::signal::unix::{SignalKind, signal};
use weft_control::install::{objects::CONFIG_MAP, settings::controller_config, values::Values, yaml};
use weft_fault::{Code, Fault};
use weft_kube::{api, core::node::ConfigMap, kind::Kind};

/// Run the control plane of a cluster; `weft install` prints the Deployment that does
#[derive(clap::Args, Debug)]
#[command(after_help = "Its settings are the ConfigMap linkerd-config; a change of it starts new pods.

Example:
  weft controller --kubeconfig ~/.kube/config --log-level debug      outside of the cluster, to look at it")]
pub(crate) struct Controller {
    /// Kubeconfig; without it, the pod's service account.
    #[arg(long, env = "WEFT_KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Namespace of the control plane.
    #[arg(short = 'L', long, default_value = "linkerd", value_name = "NAME")]
    linkerd_namespace: String,
    /// Address to listen on; every one without it.
    #[arg(long, value_name = "IP")]
    bind: Option<std::net::IpAddr>,
    /// Log filter.
    #[arg(long, default_value = "info", value_name = "FILTER")]
    log_level: String,
    /// Form of the log.
    #[arg(long, default_value = "plain", value_parser = ["plain", "json"])]
    log_format: String,
}

impl Controller {
    pub(crate) async fn run(self) -> Result<ExitCode> {
        self.log()?;
        let client = api::connect(self.kubeconfig.as_deref()).await?;
        let path = format!("{}/{CONFIG_MAP}", ConfigMap::path(Some(&self.linkerd_namespace)));
        let config_map: ConfigMap = api::get(&client, &path)
            .await
            .map_err(Fault::from)
            .with_context(|| format!("reading ConfigMap {}/{CONFIG_MAP}", self.linkerd_namespace))?;
        let text = config_map.data.get("values").map_or("", String::as_str);
        let tree = yaml::parse(text)
            .map_err(|why| Fault::new(Code::BadManifest).about(CONFIG_MAP).fact("problem", why))?;
        let (values, problems) = Values::with_known(&tree);
        for problem in problems {
            tracing::warn!("{CONFIG_MAP}: {problem}; it is ignored");
        }
        let mut config = controller_config(&values, &self.linkerd_namespace);
        config.bind = self.bind.unwrap_or(config.bind);
        let mut term = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let stopped = async move {
            tokio::select! {
                _ = term.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            namespace = self.linkerd_namespace,
            "weft controller"
        );
        weft_control::controller::run(config, client, stopped).await?;
        Ok(ExitCode::SUCCESS)
    }

    fn log(&self) -> Result<()> {
        let filter = log::filter(&self.log_level)
            .map_err(|e| Fault::new(Code::BadFlag).about("--log-level").because(e))?;
        let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
        match self.log_format.as_str() {
            "json" => builder.json().init(),
            _ => builder.init(),
        }
        Ok(())
    }
}
