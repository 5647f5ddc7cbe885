//! Lines that tell of the same failure, as one.

use super::Told;
use serde::Serialize;

/// A failure that lines tell of, however often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Group {
    pub count: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_unix_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_unix_ms: Option<u64>,
    /// The first line that told of it.
    pub told: Told,
}

/// Groups, those that tell most first.
pub fn group(lines: Vec<Told>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for told in lines {
        match groups.iter_mut().find(|group| same(&group.told, &told)) {
            Some(group) => {
                group.count += 1;
                group.first_unix_ms = group.first_unix_ms.into_iter().chain(told.at_unix_ms).min();
                group.last_unix_ms = group.last_unix_ms.max(told.at_unix_ms);
            }
            None => {
                let (first_unix_ms, last_unix_ms) = (told.at_unix_ms, told.at_unix_ms);
                groups.push(Group { count: 1, first_unix_ms, last_unix_ms, told });
            }
        }
    }
    groups.sort_by_key(|group| std::cmp::Reverse((weight(&group.told), group.count)));
    groups
}

fn same(a: &Told, b: &Told) -> bool {
    let key = |told: &Told| {
        (
            told.direction,
            told.codes.clone(),
            told.pod.clone(),
            told.client,
            told.server,
            told.authority.clone(),
        )
    };
    key(a) == key(b)
}

/// A code that stands there says more than a text that can mean several things, and one with both ends more than one without.
fn weight(told: &Told) -> (bool, bool, usize) {
    let ends = usize::from(told.client.is_some() || told.pod.is_some())
        + usize::from(told.server.is_some() || told.authority.is_some());
    (ends == 2, told.certain, usize::MAX - told.codes.len())
}
