//! The sample programs alone, for images and measurements that should hold nothing of the mesh.

use clap::Parser;
use std::{error::Error as _, process::ExitCode};

#[derive(Parser)]
#[command(name = "weft-sample", version, about = "The programs of weft's example shop and benchmark")]
struct Cli {
    #[command(subcommand)]
    role: weft_sample::SampleCommand,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Err(error) = weft_sample::run(Cli::parse().role).await else { return ExitCode::SUCCESS };
    eprintln!("error: {error}");
    let mut next = error.source();
    while let Some(cause) = next {
        eprintln!("  because: {cause}");
        next = cause.source();
    }
    ExitCode::FAILURE
}
