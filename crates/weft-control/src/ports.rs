//! Lists of ports as annotations and settings write them: numbers, ranges, and names of container ports.

use std::fmt;

/// `25,587,4000-4010,metrics`. What cannot be read is left out: an annotation must not fail as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortSet {
    ranges: Vec<(u16, u16)>,
    names: Vec<String>,
}

impl PortSet {
    pub fn parse(text: &str) -> PortSet {
        let mut set = PortSet::default();
        for item in text.split(',').map(str::trim).filter(|i| !i.is_empty()) {
            if let Ok(port) = item.parse() {
                set.ranges.push((port, port));
            } else if let Some((low, high)) =
                item.split_once('-').and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?)))
            {
                set.ranges.push((low, high));
            } else if item.bytes().any(|b| b.is_ascii_alphabetic()) {
                set.names.push(item.to_owned());
            }
        }
        set.ranges.sort_unstable();
        set
    }

    /// `named` looks up the number of a named port.
    pub fn contains(&self, port: u16, named: impl Fn(&str) -> Option<u16>) -> bool {
        self.contains_number(port) || self.names.iter().any(|name| named(name) == Some(port))
    }

    pub fn contains_number(&self, port: u16) -> bool {
        self.ranges.iter().any(|(low, high)| (*low..=*high).contains(&port))
    }
}

impl fmt::Display for PortSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges = self.ranges.iter().map(|(low, high)| match low == high {
            true => low.to_string(),
            false => format!("{low}-{high}"),
        });
        let items: Vec<String> = ranges.chain(self.names.iter().cloned()).collect();
        f.write_str(&items.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_ranges_and_names() {
        let set = PortSet::parse("25, 4000-4002,db,,x-,70000");
        let named = |name: &str| (name == "db").then_some(5000);
        for (port, expected) in [(25, true), (4001, true), (4003, false), (5000, true), (26, false)] {
            assert_eq!(set.contains(port, named), expected, "{port}");
        }
        assert_eq!(PortSet::parse("8080,25,10-12").to_string(), "10-12,25,8080");
    }
}
