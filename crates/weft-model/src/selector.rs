//! Which labels are meant (Kubernetes label selectors).

use std::collections::BTreeMap;

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
        self.requirements.iter().all(|r| r.holds(labels.get(&r.key)))
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
