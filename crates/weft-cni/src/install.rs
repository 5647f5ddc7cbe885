//! `weft-cni install`: keeps plugin, credentials and configuration on a node as they should be, and takes them back.
//!
//! Everything is looked at once a second and compared by content: directories mounted from the host, tokens that are
//! replaced behind symbolic links, and a network provider that rewrites its configuration need no further care.

use crate::{
    chain::{self, NotACniConfiguration, TYPE},
    told_to_end, unable,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};
use weft_fault::{Code, Fault, Phase};

const EVERY: Duration = Duration::from_secs(1);
const KUBECONFIG: &str = "ZZZ-linkerd-cni-kubeconfig";
/// What a `.conf` is kept as while a `.conflist` stands for it. Runtimes do not read files of this ending.
const KEPT: &str = "before-linkerd-cni";
/// Configurations and tokens are a few kilobytes.
const FILE_LIMIT: u64 = 4 << 20;

/// Keep the plugin installed on this node until told to end; then take it out of the configuration
#[derive(clap::Args, Debug)]
pub(crate) struct Install {
    /// Where the host's root, or what is needed of it, is mounted.
    #[arg(long, default_value = "/host", value_name = "DIR")]
    host_root: PathBuf,
    /// The runtime's directory of plugins, on the host.
    #[arg(long, default_value = "/opt/cni/bin", value_name = "DIR")]
    bin_dir: PathBuf,
    /// The runtime's directory of configurations, on the host.
    #[arg(long, default_value = "/etc/cni/net.d", value_name = "DIR")]
    net_dir: PathBuf,
    /// The plugin's own settings: a JSON object as it stands under `linkerd` in the configuration.
    #[arg(long, value_name = "FILE")]
    settings: PathBuf,
    /// The service account's directory with `token` and `ca.crt`.
    #[arg(long, default_value = "/var/run/secrets/kubernetes.io/serviceaccount", value_name = "DIR")]
    account: PathBuf,
    /// The API server as the node reaches it.
    #[arg(long, env = "KUBERNETES_SERVICE_HOST", value_name = "HOST")]
    api_host: String,
    #[arg(long, env = "KUBERNETES_SERVICE_PORT", default_value_t = 443, value_name = "PORT")]
    api_port: u16,
}

impl Install {
    pub(crate) async fn run(self) -> Result<(), Fault> {
        let mut keeper = Keeper::new(self);
        // A directory that cannot be written ends the container, visibly; later the node may be in between.
        keeper.pass()?.iter().for_each(|line| println!("{line}"));
        let mut tick = tokio::time::interval(EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let end = told_to_end();
        tokio::pin!(end);
        loop {
            tokio::select! {
                ended = &mut end => {
                    ended?;
                    keeper.revert()?.iter().for_each(|line| println!("{line}"));
                    return Ok(());
                }
                _ = tick.tick() => match keeper.pass() {
                    Ok(done) => done.iter().for_each(|line| println!("{line}")),
                    Err(fault) => eprintln!("{fault:?}"),
                },
            }
        }
    }
}

/// What one node has, and what was said about it.
struct Keeper {
    install: Install,
    /// Files that are no configurations, with the reason, so that each is told once.
    told: BTreeMap<PathBuf, String>,
}

impl Keeper {
    fn new(install: Install) -> Self {
        Keeper { install, told: BTreeMap::new() }
    }

    fn on_host(&self, path: &Path) -> PathBuf {
        self.install.host_root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Brings everything to what it should be; says what was changed. The configuration comes last: from then on pods
    /// need the rest.
    fn pass(&mut self) -> Result<Vec<String>, Fault> {
        let mut done = Vec::new();
        let bin = self.on_host(&self.install.bin_dir).join(TYPE);
        // By the open file, whatever became of the path it was started from.
        let own = fs::read("/proc/self/exe").map_err(|e| unable("read the plugin's own program", e))?;
        if changed(&bin, own.len(), 0o755) || fs::read(&bin).ok().as_deref() != Some(&own[..]) {
            write(&bin, &own, 0o755)?;
            done.push(format!("installed {}", bin.display()));
        }
        let kubeconfig = self.on_host(&self.install.net_dir).join(KUBECONFIG);
        let wanted = self.kubeconfig()?;
        if fs::read(&kubeconfig).ok().as_deref() != Some(wanted.as_bytes()) {
            write(&kubeconfig, wanted.as_bytes(), 0o600)?;
            done.push(format!("wrote {}", kubeconfig.display()));
        }
        let plugin = self.plugin()?;
        for file in self.configurations()? {
            match put_in(&file, &plugin) {
                Ok(true) => done.push(format!("added {TYPE} to {}", file.display())),
                Ok(false) => {}
                Err(Left::NotOurs(why)) => {
                    if self.told.insert(file.clone(), why.0.clone()).as_ref() != Some(&why.0) {
                        done.push(format!("left {} alone: {}", file.display(), why.0));
                    }
                }
                Err(Left::Failed(fault)) => return Err(fault),
            }
        }
        Ok(done)
    }

    /// Takes the plugin out of every configuration, and the credentials away. The program stays: runtimes remember
    /// with which plugins a running pod was made, and call them when it ends.
    fn revert(&self) -> Result<Vec<String>, Fault> {
        let mut done = Vec::new();
        for file in self.configurations()? {
            let Some(text) = read(&file).ok().and_then(|t| chain::without(&t)) else { continue };
            let kept = kept_as(&file.with_extension("conf"));
            if file.extension().is_some_and(|e| e == "conflist") && kept.is_file() {
                // The `.conf` first: between the two steps pods still find a network.
                fs::rename(&kept, file.with_extension("conf")).map_err(|e| unable("put a .conf back", e))?;
                fs::remove_file(&file).map_err(|e| unable("remove a .conflist", e))?;
            } else {
                write(&file, text.as_bytes(), mode(&file))?;
            }
            done.push(format!("took {TYPE} out of {}", file.display()));
        }
        let kubeconfig = self.on_host(&self.install.net_dir).join(KUBECONFIG);
        match fs::remove_file(&kubeconfig) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(unable("remove the kubeconfig", e)),
            _ => Ok(done),
        }
    }

    fn kubeconfig(&self) -> Result<String, Fault> {
        let account = |name: &str| {
            read(&self.install.account.join(name))
                .map_err(|e| unable(format!("read the account's {name}"), e))
        };
        let (token, roots) = (account("token")?, account("ca.crt")?);
        let host = &self.install.api_host;
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "local", "cluster": {
                "server": format!("https://{host}:{}", self.install.api_port),
                "certificate-authority-data": STANDARD.encode(roots),
            }}],
            "users": [{"name": TYPE, "user": {"token": token.trim()}}],
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": TYPE}}],
            "current-context": "local",
        });
        Ok(format!("{config:#}\n"))
    }

    fn plugin(&self) -> Result<Value, Fault> {
        let bad =
            || Fault::new(Code::BadManifest).in_phase(Phase::Start).about(self.install.settings.display());
        let text = read(&self.install.settings).map_err(|e| bad().because(e))?;
        let settings: Value = serde_json::from_str(&text).map_err(|e| bad().because(e))?;
        if !settings.is_object() {
            return Err(bad().fact("expected", "a JSON object"));
        }
        Ok(json!({
            "type": TYPE,
            "kubernetes": {"kubeconfig": self.install.net_dir.join(KUBECONFIG)},
            "linkerd": settings,
        }))
    }

    /// The configurations, in the order in which runtimes read them.
    fn configurations(&self) -> Result<Vec<PathBuf>, Fault> {
        let dir = self.on_host(&self.install.net_dir);
        let listed = |e| unable(format!("list {}", dir.display()), e);
        let mut files = Vec::new();
        for entry in fs::read_dir(&dir).map_err(listed)? {
            let path = entry.map_err(listed)?.path();
            if path.extension().is_some_and(|e| e == "conf" || e == "conflist" || e == "json") {
                files.push(path);
            }
        }
        files.sort();
        Ok(files)
    }
}

/// Why a configuration was not changed.
enum Left {
    NotOurs(NotACniConfiguration),
    Failed(Fault),
}

/// Adds the plugin to a configuration; whether that was needed.
fn put_in(file: &Path, plugin: &Value) -> Result<bool, Left> {
    let text = read(file).map_err(|e| Left::NotOurs(NotACniConfiguration(e.to_string())))?;
    let failed = |step| move |e| Left::Failed(unable(step, e));
    if file.extension().is_some_and(|e| e == "conflist") {
        let Some(list) = chain::into_list(&text, plugin).map_err(Left::NotOurs)? else { return Ok(false) };
        write(file, list.as_bytes(), mode(file)).map_err(Left::Failed)?;
        return Ok(true);
    }
    let list = chain::to_list(&text, plugin).map_err(Left::NotOurs)?;
    write(&file.with_extension("conflist"), list.as_bytes(), mode(file)).map_err(Left::Failed)?;
    fs::rename(file, kept_as(&file.with_extension("conf"))).map_err(failed("set a .conf aside"))?;
    Ok(true)
}

fn kept_as(conf: &Path) -> PathBuf {
    let mut name = conf.as_os_str().to_owned();
    name.push(".");
    name.push(KEPT);
    name.into()
}

fn changed(file: &Path, length: usize, mode: u32) -> bool {
    fs::metadata(file).map_or(true, |m| m.len() != length as u64 || m.permissions().mode() & 0o777 != mode)
}

fn mode(file: &Path) -> u32 {
    fs::metadata(file).map_or(0o600, |m| m.permissions().mode() & 0o777)
}

fn read(file: &Path) -> io::Result<String> {
    use io::Read as _;
    let mut text = String::new();
    fs::File::open(file)?.take(FILE_LIMIT).read_to_string(&mut text)?;
    Ok(text)
}

/// Writes a file whole: a runtime that reads meanwhile sees the old one or the new one.
fn write(file: &Path, bytes: &[u8], mode: u32) -> Result<(), Fault> {
    let failed = |e| unable(format!("write {}", file.display()), e);
    let mut name = file.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let written = fs::write(&new, bytes)
        .and_then(|()| fs::set_permissions(&new, fs::Permissions::from_mode(mode)))
        .and_then(|()| fs::rename(&new, file));
    written.map_err(|e| {
        // What is half written must not stay; that it may not be there is no further failure.
        let _ = fs::remove_file(&new);
        failed(e)
    })
}

#[cfg(test)]
mod tests;
