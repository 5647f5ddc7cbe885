//! Which labels are meant (Kubernetes label selectors).

use std::{collections::BTreeMap, fmt};

pub type Labels = BTreeMap<String, String>;

/// All of its requirements must hold; without any, everything is selected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    pub requirements: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    pub key: String,
    pub operator: Operator,
    pub values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    In,
    /// Also where there is no such label.
    NotIn,
    Exists,
    DoesNotExist,
}

impl Selector {
    pub fn selects(&self, labels: &Labels) -> bool {
        self.unmet(labels).next().is_none()
    }

    /// The requirements that these labels do not meet.
    pub fn unmet(&self, labels: &Labels) -> impl Iterator<Item = &Requirement> {
        self.requirements.iter().filter(|r| !r.holds(labels.get(&r.key)))
    }
}

/// As `kubectl -l` takes it: `app=web`, `tier in (a,b)`, `!debug`.
impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, values) = (&self.key, self.values.join(","));
        match self.operator {
            Operator::In if self.values.len() == 1 => write!(f, "{key}={values}"),
            Operator::In => write!(f, "{key} in ({values})"),
            Operator::NotIn if self.values.len() == 1 => write!(f, "{key}!={values}"),
            Operator::NotIn => write!(f, "{key} notin ({values})"),
            Operator::Exists => write!(f, "{key}"),
            Operator::DoesNotExist => write!(f, "!{key}"),
        }
    }
}

impl Requirement {
    fn holds(&self, value: Option<&String>) -> bool {
        match self.operator {
            Operator::In => value.is_some_and(|v| self.values.contains(v)),
            Operator::NotIn => value.is_none_or(|v| !self.values.contains(v)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}
