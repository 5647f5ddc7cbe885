//! Finding the mesh that runs on this machine, and talking to its API.

use anyhow::{Context, Result};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use weft_fault::{Code, Fault};
use weft_local::state::{ROOT, is_running};

/// Which cluster a command talks to.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Target {
    /// Kubeconfig of the cluster; without it, the mesh that `weft up` started on this machine.
    #[arg(long, env = "WEFT_KUBECONFIG", value_name = "FILE", global = true)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Name of the local mesh.
    #[arg(long, default_value = "weft", value_name = "NAME", global = true)]
    pub(crate) mesh: String,
}

impl Target {
    /// Where the kubeconfig is.
    pub(crate) fn kubeconfig_path(&self) -> Result<PathBuf> {
        if let Some(path) = &self.kubeconfig {
            return Ok(path.clone());
        }
        let path = Path::new(ROOT).join(&self.mesh).join("kubeconfig");
        let missing = Fault::new(Code::NotRunning).about(&self.mesh);
        if !path.exists() {
            return Err(missing.fact("looked-for", path.display()).into());
        }
        if !is_running(Path::new(ROOT), &self.mesh) {
            return Err(missing.fact("left", "files of a mesh that was killed").into());
        }
        Ok(path)
    }

    pub(crate) async fn client(&self) -> Result<Client> {
        let path = self.kubeconfig_path()?;
        let config = Kubeconfig::read_from(&path).with_context(|| format!("reading {}", path.display()))?;
        client_from(config).await
    }
}

pub(crate) async fn client_from(kubeconfig: Kubeconfig) -> Result<Client> {
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.connect_timeout = Some(Duration::from_secs(5));
    // Watches and followed logs are silent for as long as nothing happens.
    config.read_timeout = None;
    Ok(Client::try_from(config)?)
}
