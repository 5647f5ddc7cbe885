//! Why something is not known, and what would change that.

use std::fmt;
use weft_kube::api::ApiError;

/// A question that got no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unread {
    /// The user may not ask.
    Forbidden(Right),
    /// A policy of the pod does not let its admin port be read.
    ByPolicy,
    /// Nobody answered, or nothing that could be read.
    Silent(String),
    /// It was not asked, since something else is missing.
    NotAsked(&'static str),
}

/// What RBAC grants.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// Who lacks it, if that was said.
    pub user: String,
    pub verb: String,
    /// With a subresource, if any: `pods/proxy`.
    pub resource: String,
    pub group: String,
    /// Empty: in the whole cluster.
    pub namespace: String,
}

impl From<&Unread> for Unread {
    fn from(unread: &Unread) -> Self {
        unread.clone()
    }
}

impl From<ApiError> for Unread {
    fn from(error: ApiError) -> Self {
        match &error {
            ApiError::Status { code: 403, message, .. } => match Right::refused_by(message) {
                Some(right) => Unread::Forbidden(right),
                None if message.contains("is forbidden") => Unread::Silent(message.clone()),
                None => Unread::ByPolicy,
            },
            ApiError::Status { message, .. } if !message.is_empty() => Unread::Silent(message.clone()),
            other => {
                let cause = std::error::Error::source(other).map(|cause| format!(": {cause}"));
                Unread::Silent(format!("{other}{}", cause.unwrap_or_default()))
            }
        }
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unread::Forbidden(right) => {
                let whole = format!("in namespace {}", right.namespace);
                let place = if right.namespace.is_empty() { "in the whole cluster" } else { &whole };
                write!(f, "RBAC does not let you {} {} {place}; ", right.verb, right.named())?;
                write!(f, "whoever may can grant it:\n  {}", right.commands().join("\n  "))
            }
            Unread::ByPolicy => f.write_str(
                "a Server of that pod has its admin port (4191), and no authorization lets it be read",
            ),
            Unread::Silent(why) => f.write_str(why),
            Unread::NotAsked(why) => f.write_str(why),
        }
    }
}

impl Right {
    /// The right that the API server's refusal says is missing.
    fn refused_by(message: &str) -> Option<Right> {
        // …: User "jane" cannot list resource "secrets" in API group "" in the namespace "linkerd"
        let (_, said) = message.split_once("User \"")?;
        let (user, said) = said.split_once("\" cannot ")?;
        let (verb, said) = said.split_once(" resource \"")?;
        let (resource, said) = said.split_once('"')?;
        let quoted = |before: &str| {
            let (_, after) = said.split_once(before)?;
            after.split_once('"').map(|(text, _)| text.to_owned())
        };
        Some(Right {
            user: user.to_owned(),
            verb: verb.to_owned(),
            resource: resource.to_owned(),
            group: quoted("API group \"").unwrap_or_default(),
            namespace: quoted("namespace \"").unwrap_or_default(),
        })
    }

    /// As `kubectl --resource` takes it.
    pub fn named(&self) -> String {
        match (self.group.is_empty(), self.resource.split_once('/')) {
            (true, _) => self.resource.clone(),
            (false, Some((resource, sub))) => format!("{resource}.{}/{sub}", self.group),
            (false, None) => format!("{}.{}", self.resource, self.group),
        }
    }

    /// What an administrator would type to grant it.
    fn commands(&self) -> [String; 2] {
        let verbs = match self.verb.as_str() {
            "get" | "list" if !self.resource.contains('/') => "get,list",
            verb => verb,
        };
        let role = format!("weft-check-{}", self.resource.replace('/', "-"));
        let user = if self.user.is_empty() { "USER" } else { &self.user };
        let subject = match user.strip_prefix("system:serviceaccount:") {
            Some(account) => format!("--serviceaccount={account}"),
            None => format!("--user={user}"),
        };
        let (kind, binding, place) = match self.namespace.as_str() {
            "" => ("clusterrole", "clusterrolebinding", String::new()),
            namespace => ("role", "rolebinding", format!(" -n {namespace}")),
        };
        [
            format!("kubectl create {kind} {role}{place} --verb={verbs} --resource={}", self.named()),
            format!("kubectl create {binding} {role}{place} --{kind}={role} {subject}"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(message: &str) -> String {
        let error = ApiError::Status {
            code: 403,
            reason: "Forbidden".into(),
            message: message.into(),
            retry_after: None,
        };
        Unread::from(error).to_string()
    }

    #[test]
    fn a_missing_right_says_how_it_is_granted() {
        let said = refused(
            "secrets \"linkerd-identity-issuer\" is forbidden: User \"jane\" cannot get resource \"secrets\" \
             in API group \"\" in the namespace \"linkerd\"",
        );
        assert!(said.starts_with("RBAC does not let you get secrets in namespace linkerd"), "{said}");
        for command in [
            "kubectl create role weft-check-secrets -n linkerd --verb=get,list --resource=secrets",
            "kubectl create rolebinding weft-check-secrets -n linkerd --role=weft-check-secrets --user=jane",
        ] {
            assert!(said.contains(command), "{said}");
        }
        let said = refused(
            "servers.policy.linkerd.io is forbidden: User \"system:serviceaccount:ops:bot\" cannot list resource \
             \"servers\" in API group \"policy.linkerd.io\" at the cluster scope",
        );
        assert!(said.contains("--resource=servers.policy.linkerd.io"), "{said}");
        assert!(said.contains("--clusterrole=weft-check-servers --serviceaccount=ops:bot"), "{said}");
        let said = refused(
            "pods \"a\" is forbidden: User \"jane\" cannot get resource \"pods/proxy\" in API group \"\" in the namespace \"a\"",
        );
        assert!(said.contains("--verb=get --resource=pods/proxy"), "{said}");
    }

    #[test]
    fn a_refusal_of_the_pod_itself_is_told_apart() {
        assert!(refused("POL-001\n").contains("4191"));
        assert!(refused("x is forbidden: violates PodSecurity").contains("PodSecurity"));
    }
}
