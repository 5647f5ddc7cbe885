//! A whole machine without a mesh: pods, services, names and logs with real processes. Root runs it twice, the second time as
//! an ordinary user.
//!
//! `cargo test -p weft-local --test machine -- up FILE…` starts one with the objects of YAML files and keeps it until Ctrl-C.

mod machine {
    pub(crate) mod agent;
    pub(crate) mod clusters;
    pub(crate) mod dev;
    pub(crate) mod forward;
    pub(crate) mod kubectl;
    pub(crate) mod lab;
    pub(crate) mod policies;
    pub(crate) mod tests;
    pub(crate) mod tool;
}

use std::process::ExitCode;

fn main() -> ExitCode {
    if weft_local::entry::is_hidden() {
        tracing_to_stderr();
    }
    // No mesh: the controller's seat stays empty.
    let nobody = |mut seat: weft_local::controller::Seat| -> futures_util::future::BoxFuture<'static, _> {
        Box::pin(async move {
            (seat.has_furnished)();
            let _ = seat.stop.wait_for(Option::is_some).await;
            Ok(())
        })
    };
    if let Some(code) = weft_local::entry::hidden(Box::new(nobody)) {
        return code;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["up", files @ ..] => machine::dev::up(files),
        ["tool", words @ ..] => machine::tool::run(words),
        filter => machine::tests::run(filter),
    }
}

fn tracing_to_stderr() {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
}
