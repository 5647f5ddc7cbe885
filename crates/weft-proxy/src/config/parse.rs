//! The forms that values take, and the collection of every mistake.

use super::table::{self, full};
use std::{
    collections::BTreeSet, ffi::OsString, fmt, net::IpAddr, net::SocketAddr, str::FromStr, time::Duration,
};
use weft_fault::{Code, Fault, Phase};
use weft_model::identity::Identity;

/// Reads variables by their name without the prefix and remembers each one that cannot be used.
pub(super) struct Vars<'a> {
    lookup: &'a dyn Fn(&str) -> Option<OsString>,
    faults: Vec<Fault>,
    /// What was asked for; the tests compare it with the table.
    read: BTreeSet<String>,
}

impl<'a> Vars<'a> {
    pub(super) fn new(lookup: &'a dyn Fn(&str) -> Option<OsString>) -> Self {
        Vars { lookup, faults: Vec::new(), read: BTreeSet::new() }
    }

    /// What a whole reading asks for, when nothing is set.
    #[cfg(test)]
    pub(super) fn names_read() -> BTreeSet<String> {
        let mut vars = Vars::new(&|_| None);
        drop(super::env::read(&mut vars));
        std::mem::take(&mut vars.read)
    }

    /// The value, unless something was wrong.
    pub(super) fn finish<T>(self, value: Option<T>) -> Result<T, Vec<Fault>> {
        match value {
            Some(value) if self.faults.is_empty() => Ok(value),
            _ => Err(self.faults),
        }
    }

    /// Records that `name` is unusable.
    pub(super) fn reject(&mut self, name: &str, value: &str, expected: &str) {
        // Values are shown so that they can be found; trust anchors and the like are long and say little.
        let shown: String = value.chars().take(120).collect();
        let shown = if shown.len() < value.len() { format!("{shown}…") } else { shown };
        self.faults.push(
            Fault::new(Code::BadVariable)
                .in_phase(Phase::Start)
                .about(full(name))
                .fact("value", format!("{shown:?}"))
                .fact("expected", expected),
        );
    }

    pub(super) fn missing(&mut self, name: &str, expected: &str) {
        self.faults.push(
            Fault::new(Code::BadVariable)
                .in_phase(Phase::Start)
                .about(full(name))
                .fact("value", "(not set)")
                .fact("expected", expected),
        );
    }

    /// The text that is set; unset and empty are the same.
    pub(super) fn set(&mut self, name: &str) -> Option<String> {
        self.read.insert(name.to_owned());
        let value = (self.lookup)(&full(name))?;
        match value.into_string() {
            Ok(text) => {
                let trimmed = text.trim();
                (!trimmed.is_empty()).then(|| trimmed.to_string())
            }
            Err(raw) => {
                self.reject(name, &raw.to_string_lossy(), "UTF-8 text");
                None
            }
        }
    }

    /// The text that is set, else the default.
    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        let default = Some(declared(name).default).filter(|text| !text.is_empty());
        self.set(name).or_else(|| default.map(str::to_owned))
    }

    pub(super) fn required(&mut self, name: &str) -> String {
        let found = self.text(name);
        if found.is_none() {
            self.missing(name, declared(name).form.says());
        }
        found.unwrap_or_default()
    }

    /// The value that is set, or the default. `None` without either, and for a text that does not parse, which is
    /// recorded.
    pub(super) fn parse<T>(&mut self, name: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let text = self.text(name)?;
        let parsed = parse(&text);
        if parsed.is_none() {
            self.reject(name, &text, declared(name).form.says());
        }
        parsed
    }

    pub(super) fn duration(&mut self, name: &str) -> Option<Duration> {
        self.parse(name, duration)
    }

    pub(super) fn number<T: FromStr + fmt::Debug>(&mut self, name: &str) -> Option<T> {
        self.parse(name, |text| text.parse().ok())
    }

    pub(super) fn ratio(&mut self, name: &str) -> Option<f32> {
        self.parse(name, |text| text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio)))
    }

    pub(super) fn flag(&mut self, name: &str) -> Option<bool> {
        self.parse(name, |text| text.to_ascii_lowercase().parse().ok())
    }

    pub(super) fn name(&mut self, name: &str) -> Option<Identity> {
        self.parse(name, |text| Identity::parse(text).ok())
    }

    pub(super) fn socket(&mut self, name: &str) -> Option<SocketAddr> {
        self.parse(name, |text| text.parse().ok())
    }

    /// A comma-separated list; empty items are skipped.
    fn list<T>(&mut self, name: &str, parse: impl Fn(&str) -> Option<T>) -> Option<Vec<T>> {
        self.parse(name, |text| {
            text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(parse).collect()
        })
    }

    /// Ports and ranges: `80,8000-8010`.
    pub(super) fn ports(&mut self, name: &str) -> BTreeSet<u16> {
        let ranges = self.list(name, |item| {
            let (from, to) = item.split_once('-').unwrap_or((item, item));
            let (from, to): (u16, u16) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
            (from <= to && from > 0).then_some(from..=to)
        });
        ranges.into_iter().flatten().flatten().collect()
    }

    pub(super) fn ips(&mut self, name: &str) -> BTreeSet<IpAddr> {
        self.list(name, |item| item.parse().ok()).into_iter().flatten().collect()
    }

    pub(super) fn networks(&mut self, name: &str) -> Vec<ipnet::IpNet> {
        let network = |item: &str| -> Option<ipnet::IpNet> {
            item.parse().ok().or_else(|| item.parse::<IpAddr>().ok().map(ipnet::IpNet::from))
        };
        self.list(name, network).unwrap_or_default()
    }

    /// DNS suffixes in the form in which names are compared.
    pub(super) fn suffixes(&mut self, name: &str) -> Vec<String> {
        let suffix = |text: &str| {
            let text = text.trim_matches('.').to_ascii_lowercase();
            (!text.is_empty() && !text.contains([' ', '/', ':'])).then_some(text)
        };
        self.list(name, suffix).unwrap_or_default()
    }
}

fn declared(name: &str) -> &'static table::Variable {
    table::find(name).expect("every variable that is read is in the table: the tests read them all")
}

/// `10s`, `500ms`, `2m`, `1h`, `365d`; the unit may be left out of 0 only.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    if text.bytes().all(|b| b == b'0') && !text.is_empty() {
        return Some(Duration::ZERO);
    }
    let split = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().ok()?;
    let seconds = |per: u64| number.checked_mul(per).map(Duration::from_secs);
    let duration = match unit {
        "ms" => Some(Duration::from_millis(number)),
        "s" => seconds(1),
        "m" => seconds(60),
        "h" => seconds(3_600),
        "d" => seconds(86_400),
        _ => None,
    };
    duration.filter(|duration| *duration <= LONGEST)
}

/// 1,000 years. What is far longer could not be added to a moment.
const LONGEST: Duration = Duration::from_secs(1_000 * 366 * 86_400);

/// `host:port`, the host lower case and without its trailing dot; IPv6 in brackets.
pub(super) fn authority(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let port: u16 = port.parse().ok().filter(|port| *port != 0)?;
    (!host.is_empty() && !host.contains(['/', ' '])).then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(duration("10s"), Some(Duration::from_secs(10)));
        assert_eq!(duration("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(duration("365d"), Some(Duration::from_secs(365 * 86_400)));
        assert_eq!(duration("0"), Some(Duration::ZERO));
        for bad in ["", "10", "s", "-1s", "1.5s", "1w", "99999999999999999999s", "18446744073709551615d"] {
            assert_eq!(duration(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn authorities_have_a_port() {
        assert_eq!(
            authority("linkerd-dst-headless.linkerd.svc.cluster.local.:8086"),
            Some(("linkerd-dst-headless.linkerd.svc.cluster.local".into(), 8086))
        );
        assert_eq!(authority("[::1]:8086"), Some(("::1".into(), 8086)));
        for bad in ["localhost", "localhost:", ":80", "a:0", "a:65536"] {
            assert_eq!(authority(bad), None, "{bad:?}");
        }
    }
}
