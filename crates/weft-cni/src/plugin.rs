//! The plugin proper: one call of the container runtime, one answer.

use crate::{
    config::{self, NEWEST, NetConf, PodName, VERSIONS},
    decide::{self, Namespace, Pod},
    error::{CniError, Kind},
};
use serde_json::{Value, json};
use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read as _},
    os::fd::AsFd as _,
    process::ExitCode,
};
use weft_kube::api;
use weft_net::{
    namespace::{Enter, enter},
    redirect::{
        Redirect,
        set_up::{Backend, backends, describe, in_place, set_up},
    },
};

/// The most of a configuration that is read; real ones have a few kilobytes.
const CONFIG_LIMIT: u64 = 4 << 20;
/// A runtime often calls plugins with an empty `PATH`.
const USUAL_PATH: &str = "/usr/sbin:/sbin:/usr/bin:/bin";

/// Answers the call that `CNI_COMMAND` and standard input make.
pub(crate) fn run(command: &str) -> ExitCode {
    let mut text = Vec::new();
    let read = io::stdin().lock().take(CONFIG_LIMIT).read_to_end(&mut text);
    // An error is told in the version of the caller where that is known.
    let version = serde_json::from_slice::<Value>(&text)
        .ok()
        .and_then(|v| v["cniVersion"].as_str().map(str::to_owned))
        .unwrap_or_else(|| NEWEST.to_owned());
    let answered = match read {
        Ok(_) => answer(command, &text, &version),
        Err(e) => Err(CniError::new(Kind::Io, "standard input cannot be read").details(e.to_string())),
    };
    match answered {
        Ok(Some(result)) => println!("{result}"),
        Ok(None) => {}
        Err(error) => {
            println!("{}", error.json(&version));
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn answer(command: &str, text: &[u8], version: &str) -> Result<Option<Value>, CniError> {
    match command {
        "VERSION" => Ok(Some(json!({"cniVersion": version, "supportedVersions": VERSIONS}))),
        "ADD" => {
            let conf = config::read(text)?;
            let mut result = previous(&conf)?;
            if let Some((pod, redirect)) = wanted(&conf)? {
                add(&conf, &pod, &redirect)?;
            }
            result["cniVersion"] = json!(conf.cni_version);
            Ok(Some(result))
        }
        "CHECK" => {
            let conf = config::read(text)?;
            previous(&conf)?;
            if let Some((pod, redirect)) = wanted(&conf)?
                && !conf.linkerd.simulate
            {
                check(&conf, &pod, &redirect)?;
            }
            Ok(None)
        }
        // The rules go with the network namespace. A pod must be removable whatever state the configuration is in.
        "DEL" | "GC" => Ok(None),
        "STATUS" => {
            let conf = config::read(text)?;
            runtime()?
                .block_on(api::connect(Some(&conf.kubernetes.kubeconfig)))
                .map(|_| None)
                .map_err(|fault| CniError::of(Kind::NotAvailable, &fault))
        }
        other => Err(CniError::new(
            Kind::InvalidEnvironment,
            format!("CNI_COMMAND `{other}` is none of ADD, CHECK, DEL, GC, STATUS and VERSION"),
        )),
    }
}

/// What the plugins before this one did. Without them the pod would have no network to redirect.
fn previous(conf: &NetConf) -> Result<Value, CniError> {
    conf.prev_result.clone().filter(Value::is_object).ok_or_else(|| {
        CniError::new(
            Kind::InvalidConfig,
            "there is no prevResult: linkerd-cni must stand in a list, after the plugin that makes the interface",
        )
    })
}

/// The pod and its redirect, if it is one that this plugin redirects.
fn wanted(conf: &NetConf) -> Result<Option<(PodName, Redirect)>, CniError> {
    let Some(name) = config::pod_name(&std::env::var("CNI_ARGS").unwrap_or_default()) else {
        return Ok(None);
    };
    let failed = |fault| CniError::of(Kind::TryAgain, &fault);
    runtime()?.block_on(async {
        let client = api::connect(Some(&conf.kubernetes.kubeconfig)).await.map_err(failed)?;
        let base = format!("/api/v1/namespaces/{}", name.namespace);
        let pod: Pod =
            api::get(&client, &format!("{base}/pods/{}", name.name)).await.map_err(|e| failed(e.into()))?;
        if !decide::concerns(&pod) {
            return Ok(None);
        }
        let namespace: Namespace = api::get(&client, &base).await.map_err(|e| failed(e.into()))?;
        Ok(Some((name, decide::redirect(&conf.linkerd, &pod, &namespace)?)))
    })
}

fn add(conf: &NetConf, pod: &PodName, redirect: &Redirect) -> Result<(), CniError> {
    let backends = ways(conf)?;
    // The runtime's log has what plugins write to standard error.
    if conf.linkerd.simulate {
        if let Some(first) = backends.first() {
            eprintln!("{}/{}: by {first}\n{}", pod.namespace, pod.name, describe(redirect, first));
        }
        return Ok(());
    }
    let done = inside(|| set_up(redirect, &backends))?;
    for fault in &done.passed_over {
        eprintln!("passed over: {fault:?}");
    }
    eprintln!("{}/{} is redirected, by {}", pod.namespace, pod.name, done.backend);
    Ok(())
}

fn check(conf: &NetConf, pod: &PodName, redirect: &Redirect) -> Result<(), CniError> {
    let backends = ways(conf)?;
    if inside(|| Ok(in_place(redirect, &backends)))? {
        return Ok(());
    }
    let message = format!("the rules that redirect {}/{} are not there", pod.namespace, pod.name);
    Err(CniError::new(Kind::Rules, message))
}

fn ways(conf: &NetConf) -> Result<Vec<Backend>, CniError> {
    let path = std::env::var_os("PATH").filter(|p| !p.is_empty());
    let path = path.as_deref().unwrap_or(OsStr::new(USUAL_PATH));
    backends(conf.linkerd.mode()?, None, path).map_err(|fault| CniError::of(Kind::InvalidConfig, &fault))
}

/// Does `work` in the pod's network namespace.
fn inside<T: Send>(work: impl FnOnce() -> Result<T, weft_fault::Fault> + Send) -> Result<T, CniError> {
    let file = std::env::var_os("CNI_NETNS")
        .filter(|f| !f.is_empty())
        .ok_or_else(|| CniError::new(Kind::InvalidEnvironment, "CNI_NETNS names no network namespace"))?;
    let net = File::open(&file).map_err(|e| {
        let message = format!("the network namespace {} cannot be opened", file.display());
        CniError::new(Kind::Io, message).details(e.to_string())
    })?;
    enter(Enter { net: Some(net.as_fd()), ..Enter::default() }, || Ok(work()))
        .and_then(|worked| worked)
        .map_err(|fault| CniError::of(Kind::Rules, &fault))
}

fn runtime() -> Result<tokio::runtime::Runtime, CniError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| CniError::new(Kind::Io, "a runtime cannot be started").details(e.to_string()))
}
