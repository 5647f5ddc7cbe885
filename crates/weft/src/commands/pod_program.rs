//! The programs of a pod's images: the proxy's crate reads their flags, which are Linkerd's.

use anyhow::{Result, bail};
use std::process::ExitCode;

/// Flags as they are.
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct PodProgram {
    /// `--help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FLAGS")]
    flags: Vec<String>,
}

impl PodProgram {
    pub(crate) fn run(self, name: &str) -> Result<ExitCode> {
        let args: Vec<String> = [name.to_owned()].into_iter().chain(self.flags).collect();
        match weft_proxy::pod::run(&args) {
            Some(code) => Ok(code),
            None => bail!("the proxy has no program {name}"),
        }
    }
}
