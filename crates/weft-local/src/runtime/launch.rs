//! What the agent tells a container's first process, and that process's answer.

use crate::rights::Rights;
use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use weft_net::namespace::Credentials;

/// One container to start. Sent to the container's process 1, which builds the root directory and runs the program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Launch {
    pub(crate) rights: Rights,
    /// An empty directory to build the root on.
    pub(crate) stage: PathBuf,
    /// The program that `weft` is inside the container.
    pub(crate) weft: PathBuf,
    pub(crate) program: Program,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) working_dir: PathBuf,
    pub(crate) user: User,
    /// Files of `/etc` and their content.
    pub(crate) etc: Vec<(String, String)>,
    pub(crate) mounts: Vec<VolumeMount>,
    pub(crate) read_only_root: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Program {
    /// A command of this machine. weft stays process 1 and reaps for it.
    Command(Vec<String>),
    /// weft itself, with these arguments, as process 1.
    Weft(Vec<String>),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct VolumeMount {
    pub(crate) source: PathBuf,
    pub(crate) target: PathBuf,
    pub(crate) read_only: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// `None`: those of whoever ran `weft up`.
    pub(crate) groups: Option<Vec<u32>>,
    /// Capabilities that root keeps, as the kernel's bits.
    pub(crate) bounding: u64,
    /// Capabilities that another user has.
    pub(crate) ambient: u64,
}

impl User {
    pub(crate) fn credentials(&self) -> Credentials {
        Credentials {
            uid: self.uid,
            gid: self.gid,
            groups: self.groups.clone(),
            bounding: CapabilitySet::from_bits_retain(self.bounding),
            ambient: CapabilitySet::from_bits_retain(self.ambient),
        }
    }
}

/// Sent back if the program could not be started; otherwise the socket just closes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LaunchFailed {
    pub(crate) step: String,
    pub(crate) error: String,
}
