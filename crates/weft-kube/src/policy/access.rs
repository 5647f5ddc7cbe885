//! The policies that need no object: cluster default, annotation and `accessPolicy` of a Server.

/// What a port allows when nothing more exact says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Allow {
        /// Only callers with a mesh identity.
        authenticated: bool,
        /// Only callers in the cluster's networks.
        cluster_only: bool,
    },
    Deny,
    /// Allows everything and records what `deny` would have refused.
    Audit,
}

impl Access {
    pub const NAMES: [&'static str; 6] = [
        "deny",
        "audit",
        "all-authenticated",
        "all-unauthenticated",
        "cluster-authenticated",
        "cluster-unauthenticated",
    ];

    pub fn parse(text: &str) -> Option<Access> {
        Some(match text {
            "all-unauthenticated" => Access::Allow { authenticated: false, cluster_only: false },
            "all-authenticated" => Access::Allow { authenticated: true, cluster_only: false },
            "cluster-unauthenticated" => Access::Allow { authenticated: false, cluster_only: true },
            "cluster-authenticated" => Access::Allow { authenticated: true, cluster_only: true },
            "deny" => Access::Deny,
            "audit" => Access::Audit,
            _ => return None,
        })
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Access::Allow { authenticated: false, cluster_only: false } => "all-unauthenticated",
            Access::Allow { authenticated: true, cluster_only: false } => "all-authenticated",
            Access::Allow { authenticated: false, cluster_only: true } => "cluster-unauthenticated",
            Access::Allow { authenticated: true, cluster_only: true } => "cluster-authenticated",
            Access::Deny => "deny",
            Access::Audit => "audit",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_linkerds() {
        for name in Access::NAMES {
            assert_eq!(Access::parse(name).unwrap().as_str(), name);
        }
        assert_eq!(Access::parse("allow"), None);
    }
}
