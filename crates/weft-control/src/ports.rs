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

    /// A list of ports that the redirect leaves alone: it knows numbers and TCP only. Says what of it is something else.
    pub fn numbers(text: &str) -> Result<PortSet, String> {
        let set = PortSet::parse(text);
        let number = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0);
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let range = item.split_once('-').and_then(|(a, b)| Some((number(a)?, number(b)?)));
            if number(item).is_some() || range.is_some_and(|(low, high)| low <= high) {
                continue;
            }
            let lower = item.to_ascii_lowercase();
            return Err(match lower.contains("udp") {
                true => format!("{item}: UDP always goes past the proxy; only TCP ports can be skipped"),
                false => format!("{item} is neither a port nor a range such as 8000-8010"),
            });
        }
        Ok(set)
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
        assert!(PortSet::numbers(" 25, 4000-4002,").is_ok());
        for (bad, why) in [
            ("53/udp", "only TCP"),
            ("UDP:53", "only TCP"),
            ("http", "neither"),
            ("0", "neither"),
            ("9-x", "neither"),
            ("9-8", "neither"),
        ] {
            let said = PortSet::numbers(&format!("80,{bad}")).unwrap_err();
            assert!(said.contains(bad) && said.contains(why), "{said}");
        }
        assert_eq!(PortSet::parse("8080,25,10-12").to_string(), "10-12,25,8080");
    }
}
