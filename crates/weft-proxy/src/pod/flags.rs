//! Flags without a library: the images hold nothing that is not needed.

use super::Program;
use std::{fmt::Write as _, str::FromStr};
use weft_fault::{Code, Fault, nearest::nearest};

/// One flag.
pub(super) struct Flag {
    pub(super) name: &'static str,
    pub(super) short: Option<char>,
    /// What its value is; empty if it has none.
    pub(super) value: &'static str,
    pub(super) says: &'static str,
}

pub(super) const fn flag(name: &'static str, value: &'static str, says: &'static str) -> Flag {
    Flag { name, short: None, value, says }
}

impl Flag {
    pub(super) const fn short(mut self, short: char) -> Flag {
        self.short = Some(short);
        self
    }
}

/// The flags that were given, the later one in force.
#[derive(Debug)]
pub(super) struct Flags(Vec<(&'static str, String)>);

impl Flags {
    pub(super) fn parse(known: &'static [Flag], args: &[String]) -> Result<Flags, Fault> {
        let mut found = Vec::new();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let (name, value) = match arg.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (arg.as_str(), None),
            };
            let flag = known.iter().find(|flag| match name.strip_prefix("--") {
                Some(long) => flag.name == long,
                None => {
                    name.strip_prefix('-').is_some_and(|s| flag.short.is_some_and(|c| s == c.to_string()))
                }
            });
            let Some(flag) = flag else {
                let fault = Fault::new(Code::BadFlag).about(name).fact("problem", "there is no such flag");
                let meant = nearest(name.trim_start_matches('-'), known.iter().map(|flag| flag.name));
                return Err(meant
                    .into_iter()
                    .fold(fault, |f, meant| f.fact("nearest", format!("--{meant}"))));
            };
            let value = match (flag.value, value) {
                ("", None) => "true".to_owned(),
                (_, Some(value)) => value,
                (_, None) => args.next().cloned().ok_or_else(|| bad(flag.name, "", flag.value))?,
            };
            found.push((flag.name, value));
        }
        Ok(Flags(found))
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(n, _)| *n == name).map(|(_, v)| v.as_str()).filter(|v| !v.is_empty())
    }

    pub(super) fn value<T: FromStr>(&self, name: &'static str, wanted: &str) -> Result<Option<T>, Fault> {
        self.text(name).map(|text| text.trim().parse().map_err(|_| bad(name, text, wanted))).transpose()
    }

    /// Values separated by commas; the flag may be repeated.
    pub(super) fn list<T: FromStr>(&self, name: &'static str, wanted: &str) -> Result<Vec<T>, Fault> {
        let texts = self.0.iter().filter(|(n, _)| *n == name).flat_map(|(_, v)| v.split(','));
        let items = texts.map(str::trim).filter(|item| !item.is_empty());
        items.map(|item| item.parse().map_err(|_| bad(name, item, wanted))).collect()
    }

    pub(super) fn is_set(&self, name: &str) -> bool {
        self.text(name).is_some_and(|value| value != "false")
    }
}

pub(super) fn bad(name: &str, found: &str, wanted: &str) -> Fault {
    Fault::new(Code::BadFlag).about(format!("--{name}")).fact("found", found).fact("expected", wanted)
}

pub(super) fn help(program: &Program) -> String {
    let mut text = format!("{}\n\nUsage: {} [FLAGS]\n", program.says, program.names[0]);
    for flag in program.flags {
        let short = flag.short.map_or("   ".to_owned(), |c| format!("-{c},"));
        let left = format!("  {short} --{} {}", flag.name, flag.value);
        // Writing to a string cannot fail.
        let _written = write!(text, "\n{:<48} {}", left.trim_end(), flag.says);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[Flag] =
        &[flag("port", "PORT", "").short('p'), flag("dry", "", ""), flag("list", "ITEMS", "")];

    fn parse(args: &[&str]) -> Result<Flags, Fault> {
        Flags::parse(KNOWN, &args.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn every_form_of_a_flag() {
        for args in
            [&["--port", "80"][..], &["--port=80"], &["-p", "80"], &["-p=80"], &["--port=1", "-p", "80"]]
        {
            assert_eq!(parse(args).unwrap().value::<u16>("port", "").unwrap(), Some(80), "{args:?}");
        }
        let flags = parse(&["--dry", "--list=1,2", "--list", "3,"]).unwrap();
        assert!(flags.is_set("dry") && !flags.is_set("port"));
        assert_eq!(flags.list::<u16>("list", "").unwrap(), [1, 2, 3]);
        assert!(!parse(&["--dry=false"]).unwrap().is_set("dry"));
    }

    #[test]
    fn mistakes_are_named() {
        assert!(format!("{:?}", parse(&["--porr", "1"]).unwrap_err()).contains("--port"));
        assert!(parse(&["--port"]).is_err());
        assert!(parse(&["loose"]).is_err());
        let flags = parse(&["--port=x", "--list=1,y"]).unwrap();
        assert_eq!(flags.value::<u16>("port", "a port").unwrap_err().code(), Code::BadFlag);
        assert!(flags.list::<u16>("list", "").is_err());
    }
}
