//! `--set a.b=1,c={x,y},d[0].e=z`: helm's syntax for values on a command line.

use serde_json::{Map, Value};
use std::{iter::Peekable, str::Chars};

/// The most elements that an index may make a list have, as in helm.
const LONGEST_LIST: usize = 65_536;

/// How the texts after `=` are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Typing {
    /// `true`, `false`, `null` and whole numbers are what they look like.
    Guess,
    /// Everything is text.
    Text,
}

/// Puts every assignment of `text` into `into`.
pub fn assign(into: &mut Value, text: &str, typing: Typing) -> Result<(), String> {
    let mut reader = Reader { rest: text.chars().peekable(), typing };
    if text.trim().is_empty() {
        return Err("it is empty; KEY=VALUE is expected".to_owned());
    }
    while reader.rest.peek().is_some() {
        reader.assignment(into).map_err(|problem| format!("{text:?}: {problem}"))?;
    }
    Ok(())
}

struct Reader<'t> {
    rest: Peekable<Chars<'t>>,
    typing: Typing,
}

enum Step {
    Key(String),
    Index(usize),
}

impl Reader<'_> {
    /// One `path=value`, with the comma after it.
    fn assignment(&mut self, into: &mut Value) -> Result<(), String> {
        let mut place = into;
        loop {
            let (key, end) = self.word(&['.', '[', '=', ',']);
            let key = key.trim().to_owned();
            if key.is_empty() {
                return Err("a key is empty".to_owned());
            }
            place = step(place, Step::Key(key))?;
            let mut end = end;
            while end == Some('[') {
                let (index, closed) = self.word(&[']']);
                let index = index.trim().parse().map_err(|_| format!("[{index}] is no index"))?;
                if closed.is_none() {
                    return Err("a [ is not closed".to_owned());
                }
                place = step(place, Step::Index(index))?;
                end = self.rest.next();
            }
            match end {
                Some('.') => {}
                Some('=') => {
                    *place = self.value()?;
                    return Ok(());
                }
                _ => return Err("a key has no = after it".to_owned()),
            }
        }
    }

    fn value(&mut self) -> Result<Value, String> {
        if self.rest.peek() != Some(&'{') {
            let (word, _) = self.word(&[',']);
            return Ok(self.typed(word));
        }
        self.rest.next();
        let mut items = Vec::new();
        loop {
            let (word, end) = self.word(&[',', '}']);
            match end {
                Some(',') => items.push(self.typed(word)),
                Some(_) => {
                    if !(word.is_empty() && items.is_empty()) {
                        items.push(self.typed(word));
                    }
                    break;
                }
                None => return Err("a { is not closed".to_owned()),
            }
        }
        match self.rest.next() {
            None | Some(',') => Ok(Value::Array(items)),
            Some(other) => Err(format!("{other:?} follows a list")),
        }
    }

    fn typed(&self, word: String) -> Value {
        if self.typing == Typing::Text {
            return Value::String(word);
        }
        match word.as_str() {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            "null" => Value::Null,
            // A number with zeros in front is an identifier of somebody's.
            digits if digits == "0" || !digits.starts_with('0') => {
                digits.parse::<i64>().map_or(Value::String(word), Value::from)
            }
            _ => Value::String(word),
        }
    }

    /// The text up to one of the ends, which is taken too. A backslash makes the next character an ordinary one.
    fn word(&mut self, ends: &[char]) -> (String, Option<char>) {
        let mut word = String::new();
        while let Some(c) = self.rest.next() {
            match c {
                '\\' => word.extend(self.rest.next()),
                c if ends.contains(&c) => return (word, Some(c)),
                c => word.push(c),
            }
        }
        (word, None)
    }
}

fn step(place: &mut Value, step: Step) -> Result<&mut Value, String> {
    match step {
        Step::Key(key) => {
            if !place.is_object() {
                *place = Value::Object(Map::new());
            }
            Ok(place.as_object_mut().expect("it was just made an object").entry(key).or_insert(Value::Null))
        }
        Step::Index(index) if index < LONGEST_LIST => {
            if !place.is_array() {
                *place = Value::Array(Vec::new());
            }
            let list = place.as_array_mut().expect("it was just made a list");
            if list.len() <= index {
                list.resize(index + 1, Value::Null);
            }
            Ok(&mut list[index])
        }
        Step::Index(index) => Err(format!("[{index}] is beyond {LONGEST_LIST}")),
    }
}
