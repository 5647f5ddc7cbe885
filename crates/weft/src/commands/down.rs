//! `weft down`: ends a mesh and sweeps what a killed one left.

use anyhow::Result;
use std::path::Path;

/// End the mesh that runs on this machine, and remove whatever it left
#[derive(clap::Args, Debug)]
#[command(after_help = "Also sweeps after a mesh whose process was killed, or after a reboot.

Example:
  weft down")]
pub(crate) struct Down {
    /// Name of the mesh.
    #[arg(long, default_value = "weft", value_name = "NAME")]
    mesh: String,
}

impl Down {
    pub(crate) fn run(self) -> Result<()> {
        weft_local::up::down(Path::new(weft_local::state::ROOT), &self.mesh)?;
        println!("{} is down, nothing is left", self.mesh);
        Ok(())
    }
}
