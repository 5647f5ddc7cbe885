//! `weft completion`: for shells.

use crate::Cli;
use anyhow::Result;
use clap::CommandFactory as _;
use std::io::Write as _;

/// Print a completion script for a shell
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  source <(weft completion bash)
  weft completion zsh > \"${fpath[1]}/_weft\"
  weft completion fish > ~/.config/fish/completions/weft.fish")]
pub(crate) struct Completion {
    /// The shell.
    shell: clap_complete::Shell,
}

impl Completion {
    pub(crate) fn run(self) -> Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "weft", &mut script);
        std::io::stdout().lock().write_all(&script)?;
        Ok(())
    }
}
