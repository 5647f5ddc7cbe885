//! The proxy alone, and the programs beside it: what a pod's images run. Configured by `LINKERD2_PROXY_*`.

use std::{env, process::ExitCode};
use weft_proxy::{pod, runtime};

/// EX_USAGE.
const EXIT_USAGE: u8 = 64;

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        None | Some("proxy") => runtime::main(),
        Some("--version") => {
            println!("weft-proxy {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        Some(other) => pod::run(&args).unwrap_or_else(|| {
            let known: Vec<&str> = ["proxy"].into_iter().chain(pod::names()).collect();
            eprintln!("weft-proxy: no program {other:?}; there are {}", known.join(", "));
            ExitCode::from(EXIT_USAGE)
        }),
    }
}
