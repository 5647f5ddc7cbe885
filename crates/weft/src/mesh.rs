//! Finding the mesh that runs on this machine, and talking to its API.

use anyhow::{Context, Result};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use weft_control::install::yaml;
use weft_fault::{Code, Fault};
use weft_local::state::{is_running, place::root_of};

/// Which cluster a command talks to.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Target {
    /// Kubeconfig of the cluster; without it, the mesh that `weft up` started on this machine. `install` and its like
    /// take what kubectl would take.
    #[arg(long, env = "WEFT_KUBECONFIG", value_name = "FILE", global = true)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig.
    #[arg(long, value_name = "NAME", global = true)]
    pub(crate) context: Option<String>,
    /// User to act as.
    #[arg(long = "as", value_name = "USER", global = true)]
    pub(crate) as_user: Option<String>,
    /// Group to act as; may be repeated.
    #[arg(long = "as-group", value_name = "GROUP", global = true, requires = "as_user")]
    pub(crate) as_groups: Vec<String>,
    /// Namespace of the control plane.
    #[arg(
        short = 'L',
        long,
        env = "LINKERD_NAMESPACE",
        default_value = "linkerd",
        value_name = "NAME",
        global = true
    )]
    pub(crate) linkerd_namespace: String,
    /// Name of the local mesh, where several run.
    #[arg(long = "name", alias = "mesh", default_value = "weft", value_name = "NAME", global = true)]
    pub(crate) mesh: String,
}

impl Target {
    /// Where the local mesh's kubeconfig is.
    fn local_kubeconfig(&self) -> Result<PathBuf> {
        let root = root_of(&self.mesh)?;
        let path = root.join(&self.mesh).join("kubeconfig");
        let missing = Fault::new(Code::NotRunning).about(&self.mesh);
        if !path.exists() {
            return Err(missing.fact("looked-for", path.display()).into());
        }
        if !is_running(&root, &self.mesh) {
            return Err(missing.fact("left", "files of a mesh that was killed").into());
        }
        Ok(path)
    }

    /// The kubeconfig that [`client`](Self::client) uses, for programs that are started; none where it is kubectl's own.
    pub(crate) fn kubeconfig_path(&self) -> Option<PathBuf> {
        match (&self.kubeconfig, &self.context) {
            (Some(path), _) => Some(path.clone()),
            (None, Some(_)) => None,
            (None, None) => self.local_kubeconfig().ok(),
        }
    }

    /// The mesh on this machine, unless a kubeconfig or a context is named.
    pub(crate) async fn client(&self) -> Result<Client> {
        let config = match (&self.kubeconfig, &self.context) {
            (Some(path), _) => read(path)?,
            (None, Some(_)) => Kubeconfig::read().context("reading the kubeconfig")?,
            (None, None) => read(&self.local_kubeconfig()?)?,
        };
        self.client_from(config).await
    }

    /// The cluster that kubectl would talk to; the mesh on this machine if there is none.
    pub(crate) async fn cluster(&self) -> Result<Client> {
        let config = match &self.kubeconfig {
            Some(path) => read(path)?,
            None => match Kubeconfig::read() {
                Ok(config) => config,
                Err(error) => {
                    let local = self.local_kubeconfig().map_err(|_| error).context(
                        "no cluster: neither --kubeconfig nor KUBECONFIG nor ~/.kube/config names one (--ignore-cluster does without)",
                    )?;
                    read(&local)?
                }
            },
        };
        self.client_from(config).await
    }

    /// What of the kubeconfig in use must be shown to nobody.
    pub(crate) fn secrets(&self) -> Vec<String> {
        let path = self.kubeconfig.clone().or_else(|| self.local_kubeconfig().ok());
        let paths = path.map(|path| vec![path]).unwrap_or_else(|| {
            let named = std::env::var_os("KUBECONFIG").unwrap_or_default();
            std::env::split_paths(&named).collect()
        });
        paths
            .iter()
            .filter_map(|path| fs::read_to_string(path).ok())
            .flat_map(|text| secrets_of(&text))
            .collect()
    }

    /// The logs of the mesh on this machine, by name; none of a cluster.
    pub(crate) fn local_logs(&self) -> Vec<(&'static str, String)> {
        let Ok(kubeconfig) = self.local_kubeconfig() else { return Vec::new() };
        if self.kubeconfig.is_some() || self.context.is_some() {
            return Vec::new();
        }
        let read = |name: &'static str| {
            let bytes = fs::read(kubeconfig.with_file_name(name)).ok()?;
            Some((name, String::from_utf8_lossy(&bytes).into_owned()))
        };
        ["supervisor.log", "controller.log", "agent.log"].into_iter().filter_map(read).collect()
    }

    async fn client_from(&self, mut config: Kubeconfig) -> Result<Client> {
        for user in &mut config.auth_infos {
            if let Some(user) = user.auth_info.as_mut().filter(|_| self.as_user.is_some()) {
                user.impersonate = self.as_user.clone();
                user.impersonate_groups = (!self.as_groups.is_empty()).then(|| self.as_groups.clone());
            }
        }
        client_of(config, self.context.clone()).await
    }
}

/// Tokens, passwords and keys of a kubeconfig, as they stand there and as they are.
fn secrets_of(kubeconfig: &str) -> Vec<String> {
    let Ok(config) = yaml::parse(kubeconfig) else { return Vec::new() };
    let mut secrets = Vec::new();
    for user in config["users"].as_array().into_iter().flatten().map(|user| &user["user"]) {
        for field in ["token", "password", "client-key-data"] {
            secrets.extend(user[field].as_str().map(str::to_owned));
        }
        for field in ["tokenFile", "client-key"] {
            secrets.extend(user[field].as_str().and_then(|path| fs::read_to_string(path).ok()));
        }
        for variable in user["exec"]["env"].as_array().into_iter().flatten() {
            secrets.extend(variable["value"].as_str().map(str::to_owned));
        }
        for option in user["auth-provider"]["config"].as_object().into_iter().flatten() {
            secrets.extend(option.1.as_str().map(str::to_owned));
        }
    }
    let decoded =
        secrets.iter().filter_map(|text| String::from_utf8(STANDARD.decode(text.trim()).ok()?).ok());
    let decoded: Vec<String> = decoded.collect();
    secrets.extend(decoded);
    secrets
}

fn read(path: &Path) -> Result<Kubeconfig> {
    Kubeconfig::read_from(path).with_context(|| format!("reading {}", path.display()))
}

pub(crate) async fn client_from(kubeconfig: Kubeconfig) -> Result<Client> {
    client_of(kubeconfig, None).await
}

async fn client_of(kubeconfig: Kubeconfig, context: Option<String>) -> Result<Client> {
    let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    config.connect_timeout = Some(Duration::from_secs(5));
    // Watches and followed logs are silent for as long as nothing happens.
    config.read_timeout = None;
    Ok(Client::try_from(config)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_proves_who_asks_is_secret() {
        let kubeconfig = "users:\n- name: a\n  user: {token: abc, client-key-data: aHVzaA==}\n- name: b\n  user:\n    \
            exec: {command: x, env: [{name: K, value: v}]}\n    auth-provider: {config: {id-token: t}}\n";
        assert_eq!(secrets_of(kubeconfig), ["abc", "aHVzaA==", "v", "t", "hush"]);
        assert!(secrets_of("[").is_empty());
    }
}
