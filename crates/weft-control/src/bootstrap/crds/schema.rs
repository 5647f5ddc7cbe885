//! Structural schemas, written so that a kind reads as a list of its fields.

use serde_json::{Map, Value, json};

#[derive(Clone, Debug)]
pub(super) struct Schema {
    pub(super) json: Value,
    required: bool,
}

pub(super) type Field = (&'static str, Schema);

fn of(kind: &str, says: &str) -> Schema {
    Schema { json: json!({"type": kind, "description": says}), required: false }
}

pub(super) fn text(says: &str) -> Schema {
    of("string", says)
}

pub(super) fn flag(says: &str) -> Schema {
    of("boolean", says)
}

pub(super) fn integer(says: &str, from: i64, to: i64) -> Schema {
    of("integer", says)
        .with("format", if to > i64::from(i32::MAX) { "int64" } else { "int32" })
        .range(from, to)
}

/// One that only its type bounds. An API server reads boundaries as floating-point numbers, and refuses every value where
/// the largest integer, rounded up, is one.
pub(super) fn count(says: &str) -> Schema {
    of("integer", says).with("format", "int64").with("minimum", 0)
}

pub(super) fn port(says: &str) -> Schema {
    integer(says, 1, 65_535)
}

pub(super) fn number(says: &str) -> Schema {
    of("number", says)
}

pub(super) fn int_or_string(says: &str) -> Schema {
    Schema { json: json!({"x-kubernetes-int-or-string": true, "description": says}), required: false }
}

pub(super) fn object(says: &str, fields: impl IntoIterator<Item = Field>) -> Schema {
    let mut required = Vec::new();
    let mut properties = Map::new();
    for (name, field) in fields {
        if field.required {
            required.push(name);
        }
        properties.insert(name.to_owned(), field.json);
    }
    let schema = of("object", says).with("properties", properties);
    if required.is_empty() { schema } else { schema.with("required", required) }
}

/// Any names, all with values of one form.
pub(super) fn map(says: &str, value: &Schema) -> Schema {
    of("object", says).with("additionalProperties", value.json.clone())
}

/// Fields that are nobody's business here.
pub(super) fn open(says: &str) -> Schema {
    of("object", says).open()
}

pub(super) fn list(says: &str, item: Schema) -> Schema {
    of("array", says).with("items", item.json)
}

impl Schema {
    pub(super) fn required(mut self) -> Self {
        self.required = true;
        self
    }

    pub(super) fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.json[key] = value.into();
        self
    }

    pub(super) fn default(self, value: impl Into<Value>) -> Self {
        self.with("default", value)
    }

    pub(super) fn one_of(self, values: &[&str]) -> Self {
        self.with("enum", values.to_vec())
    }

    pub(super) fn range(self, from: i64, to: i64) -> Self {
        self.with("minimum", from).with("maximum", to)
    }

    pub(super) fn not_empty(self) -> Self {
        let key = if self.json["type"] == "array" { "minItems" } else { "minLength" };
        self.with(key, 1)
    }

    pub(super) fn at_most(self, count: u32) -> Self {
        let key = if self.json["type"] == "array" { "maxItems" } else { "maxLength" };
        self.with(key, count)
    }

    /// Keeps fields that it does not know.
    pub(super) fn open(self) -> Self {
        self.with("x-kubernetes-preserve-unknown-fields", true)
    }

    /// Exactly one of these fields.
    pub(super) fn exactly_one(self, fields: &[&str]) -> Self {
        let each: Vec<Value> = fields.iter().map(|field| json!({"required": [field]})).collect();
        self.with("oneOf", each)
    }
}

// --- forms that many kinds share

pub(super) fn label_selector(says: &str) -> Schema {
    object(
        says,
        [
            ("matchLabels", map("Labels that must have these values.", &text("The label's value."))),
            (
                "matchExpressions",
                list(
                    "Requirements that must all hold.",
                    object(
                        "A requirement.",
                        [
                            ("key", text("The label.").required()),
                            (
                                "operator",
                                text("How the label relates to the values.")
                                    .one_of(&["In", "NotIn", "Exists", "DoesNotExist"])
                                    .required(),
                            ),
                            ("values", list("Values, for In and NotIn.", text("A value."))),
                        ],
                    ),
                ),
            ),
        ],
    )
}

/// A reference to an object by group, kind and name.
pub(super) fn reference(says: &str, kinds: &[&str], namespaced: bool) -> Schema {
    let mut fields = vec![
        ("group", text("The kind's API group; empty or core for the core group.").at_most(253).default("")),
        ("kind", text("The kind.").one_of(kinds).required()),
        ("name", text("The object's name.").not_empty().at_most(253).required()),
    ];
    if namespaced {
        fields.push(("namespace", text("The object's namespace, if not this one.").at_most(253)));
    }
    object(says, fields)
}

pub(super) fn duration(says: &str) -> Schema {
    text(says).with("pattern", "^([0-9]{1,5}(h|m|s|ms)){1,4}$")
}

pub(super) fn network(says: &str) -> Schema {
    object(
        says,
        [
            ("cidr", text("The network, such as 10.0.0.0/8, or one address.").required()),
            ("except", list("Networks within it that do not count.", text("A network, or one address."))),
        ],
    )
}

/// A status of conditions.
pub(super) fn conditions() -> Schema {
    object("What the controller says about it.", [("conditions", condition_list())])
}

pub(super) fn condition_list() -> Schema {
    list(
        "What holds and what does not.",
        object(
            "A condition.",
            [
                ("type", text("What is said something about.").required()),
                ("status", text("Whether it holds.").one_of(&["True", "False", "Unknown"]).required()),
                ("reason", text("Why, in one word.").required()),
                ("message", text("Why, for people.").required()),
                ("observedGeneration", count("The generation of the object that this is about.")),
                (
                    "lastTransitionTime",
                    text("Since when the status is as it is.").with("format", "date-time").required(),
                ),
            ],
        ),
    )
    .with("x-kubernetes-list-type", "map")
    .with("x-kubernetes-list-map-keys", vec!["type"])
}
