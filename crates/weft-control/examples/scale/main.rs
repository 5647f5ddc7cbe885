//! A controller under load: 5,000 services, 100,000 endpoints, 2,000 subscribed streams. `bench/scale.py` runs it.
//!
//! This process is the Kubernetes API (objects made up on the way out, so that the API's memory and the controller's are
//! not one) and all the subscribers; the controller is a process of its own, reached as proxies reach it.

mod load;
mod objects;
mod source;

use objects::Shape;
use serde_json::json;
use std::{path::PathBuf, time::Duration};
use weft_control::{
    config::{ControllerConfig, Ports},
    controller::Controller,
};
use weft_kube::api;

fn main() {
    let mut args = std::env::args().skip(1);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    match args.next().as_deref() {
        Some("controller") => runtime.block_on(controller(PathBuf::from(args.next().expect("a kubeconfig")))),
        Some("run") => {
            let number = |name: &str, default: usize| {
                let all: Vec<String> = std::env::args().collect();
                let at = all.iter().position(|a| a == name);
                at.map_or(default, |at| all[at + 1].parse().expect("a number"))
            };
            let shape = Shape { services: number("--services", 5000), each: number("--endpoints", 20) };
            let plan = load::Plan {
                streams: number("--streams", 2000),
                watched: number("--watched", 100),
                single_changes: number("--changes", 200),
                rate: number("--rate", 100),
                lasts: Duration::from_secs(number("--seconds", 120) as u64),
            };
            let figures = runtime.block_on(load::run(shape, plan));
            println!("{figures:#}");
        }
        _ => eprintln!(
            "usage: scale run [--services N --endpoints N --streams N --watched N --rate N --seconds N]"
        ),
    }
}

fn config() -> ControllerConfig {
    let networks = vec!["10.0.0.0/8".parse().expect("a network")];
    let mut config = ControllerConfig::new("127.0.0.1".parse().expect("an address"), networks);
    config.ports = Ports { destination: 0, policy: 0, identity: 0, webhook: 0, admin: 0 };
    config
}

/// The controller alone. Says where it listens and serves until killed.
async fn controller(kubeconfig: PathBuf) {
    let client = api::connect(Some(&kubeconfig)).await.expect("a client");
    let controller = Controller::bind(config(), client).await.expect("a controller");
    println!("{}", json!({"destination": controller.addresses.destination}));
    std::future::pending::<()>().await;
}
