//! A machine to try things on by hand.

use super::lab;
use std::{path::PathBuf, process::ExitCode};
use weft_local::state::place::root_of;

pub(crate) fn up(files: &[&str]) -> ExitCode {
    super::super::tracing_to_stderr();
    let root = std::env::var_os("WEFT_STATE").map(PathBuf::from);
    let root = root.unwrap_or_else(|| root_of("dev").expect("a place for its state"));
    let mesh = lab::start("dev", &root);
    println!("{:#?}", mesh.info());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = lab::client(&mesh).await;
        for file in files {
            lab::apply(&client, &std::fs::read_to_string(file).expect(file)).await;
        }
        println!("KUBECONFIG={}", mesh.info().kubeconfig.display());
        let supervisor = mesh.supervisor().expect("the supervisor");
        let mut terminate =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).expect("signals");
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
            _ = supervisor.ended() => eprintln!("the supervisor ended"),
        }
    });
    match mesh.stop(weft_local::STOP_GRACE) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("{fault:?}");
            ExitCode::FAILURE
        }
    }
}
