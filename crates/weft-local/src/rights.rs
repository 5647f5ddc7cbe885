//! With whose rights a mesh runs on this machine.

use serde::{Deserialize, Serialize};

/// What a container's user can be, and how the machine inside reaches the one outside, follows from this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rights {
    /// Root's: every user can be taken on, and a link leads to the mesh.
    #[default]
    Root,
    /// An ordinary user's, in a user namespace that knows that one user, as 0.
    User,
}

impl Rights {
    /// Root from which too much was taken, as in many containers, is an ordinary user.
    pub fn of_this_process() -> Self {
        if weft_net::user_namespace::is_privileged() { Rights::Root } else { Rights::User }
    }
}

/// `SO_MARK` of proxies' connections where they cannot have a user of their own: the number that the user would have.
pub(crate) const PROXY_MARK: u32 = 2102;
