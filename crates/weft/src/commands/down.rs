//! `weft down`: ends a mesh and sweeps what a killed one left.

use crate::borrowed::Brought;
use anyhow::Result;
use std::process::ExitCode;
use weft_local::state::place::root_of;

/// End the mesh that runs on this machine, and remove whatever it left
#[derive(clap::Args, Debug)]
#[command(after_help = "Also sweeps after a mesh whose process was killed, or after a reboot.

Example:
  weft down")]
pub(crate) struct Down {
    /// Name of the mesh.
    #[arg(long = "name", alias = "mesh", default_value = "weft", value_name = "NAME")]
    mesh: String,
}

impl Down {
    pub(crate) fn run(self) -> Result<()> {
        if let Some(brought) = Brought::of(&self.mesh)? {
            // What the API refuses to give back does not keep the mesh on this machine.
            let mut refused = None;
            crate::on_runtime(async {
                refused = brought.take_out(&self.mesh).await.err();
                Ok(ExitCode::SUCCESS)
            })?;
            weft_local::up::down(&root_of(&self.mesh)?, &self.mesh)?;
            if let Some(error) = refused {
                return Err(
                    error.context("the mesh has ended, but not everything of it was taken out of the API")
                );
            }
            println!("{} is down, nothing is left but CustomResourceDefinitions", self.mesh);
            return Ok(());
        }
        weft_local::up::down(&root_of(&self.mesh)?, &self.mesh)?;
        println!("{} is down, nothing is left", self.mesh);
        Ok(())
    }
}
