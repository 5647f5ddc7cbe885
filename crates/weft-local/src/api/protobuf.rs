//! Bodies in Kubernetes' protobuf form, for the few kinds that `kubectl create` and `kubectl auth` send in it.
//!
//! Answers are always JSON, which these clients accept. Other kinds in this form are refused with 415, and so is a field
//! that is set and not known here: the tables below hold what those commands set, not all that there is.

use base64::Engine;
use serde_json::{Map, Value, json};

/// What a field holds.
#[derive(Clone, Copy)]
enum Field {
    Text,
    Texts,
    Number,
    Flag,
    /// A map of texts.
    Map,
    /// A map of bytes, which JSON carries in base64.
    Bytes,
    /// A number or a text, as ports and shares are.
    Port,
    One(&'static Message),
    Many(&'static Message),
}

/// Field numbers, names and types.
type Message = [(u64, &'static str, Field)];

const LOCAL_REFERENCE: &Message = &[(1, "name", Field::Text)];

const OBJECT_REFERENCE: &Message = &[
    (1, "kind", Field::Text),
    (2, "namespace", Field::Text),
    (3, "name", Field::Text),
    (4, "uid", Field::Text),
    (5, "apiVersion", Field::Text),
];

const OWNER: &Message = &[
    (1, "kind", Field::Text),
    (3, "name", Field::Text),
    (4, "uid", Field::Text),
    (5, "apiVersion", Field::Text),
    (6, "controller", Field::Flag),
    (7, "blockOwnerDeletion", Field::Flag),
];

const METADATA: &Message = &[
    (1, "name", Field::Text),
    (2, "generateName", Field::Text),
    (3, "namespace", Field::Text),
    (5, "uid", Field::Text),
    (6, "resourceVersion", Field::Text),
    (11, "labels", Field::Map),
    (12, "annotations", Field::Map),
    (13, "ownerReferences", Field::Many(OWNER)),
    (14, "finalizers", Field::Texts),
];

const NAMESPACE: &Message = &[(1, "metadata", Field::One(METADATA))];

const CONFIG_MAP: &Message = &[
    (1, "metadata", Field::One(METADATA)),
    (2, "data", Field::Map),
    (3, "binaryData", Field::Bytes),
    (4, "immutable", Field::Flag),
];

const SECRET: &Message = &[
    (1, "metadata", Field::One(METADATA)),
    (2, "data", Field::Bytes),
    (3, "type", Field::Text),
    (4, "stringData", Field::Map),
    (5, "immutable", Field::Flag),
];

const SERVICE_ACCOUNT: &Message = &[
    (1, "metadata", Field::One(METADATA)),
    (2, "secrets", Field::Many(OBJECT_REFERENCE)),
    (3, "imagePullSecrets", Field::Many(LOCAL_REFERENCE)),
    (4, "automountServiceAccountToken", Field::Flag),
];

const DELETE_OPTIONS: &Message = &[
    (1, "gracePeriodSeconds", Field::Number),
    (2, "preconditions", Field::One(&[(1, "uid", Field::Text), (2, "resourceVersion", Field::Text)])),
    (3, "orphanDependents", Field::Flag),
    (4, "propagationPolicy", Field::Text),
    (5, "dryRun", Field::Texts),
];

const TOKEN_REQUEST: &Message = &[
    (1, "metadata", Field::One(METADATA)),
    (
        2,
        "spec",
        Field::One(&[
            (1, "audiences", Field::Texts),
            (
                3,
                "boundObjectRef",
                Field::One(&[
                    (1, "kind", Field::Text),
                    (2, "apiVersion", Field::Text),
                    (3, "name", Field::Text),
                    (4, "uid", Field::Text),
                ]),
            ),
            (4, "expirationSeconds", Field::Number),
        ]),
    ),
];

const LABEL_SELECTOR: &Message = &[(1, "matchLabels", Field::Map)];

const POD_TEMPLATE: &Message = &[
    (1, "metadata", Field::One(METADATA)),
    (
        2,
        "spec",
        Field::One(&[
            (
                2,
                "containers",
                Field::Many(&[
                    (1, "name", Field::Text),
                    (2, "image", Field::Text),
                    (3, "command", Field::Texts),
                    (4, "args", Field::Texts),
                    (6, "ports", Field::Many(&[(3, "containerPort", Field::Number)])),
                ]),
            ),
            (3, "restartPolicy", Field::Text),
            (8, "serviceAccountName", Field::Text),
        ]),
    ),
];

const DEPLOYMENT: &Message = &[
    (1, "metadata", Field::One(METADATA)),
    (
        2,
        "spec",
        Field::One(&[
            (1, "replicas", Field::Number),
            (2, "selector", Field::One(LABEL_SELECTOR)),
            (3, "template", Field::One(POD_TEMPLATE)),
        ]),
    ),
];

const JOB: &Message = &[
    (1, "metadata", Field::One(METADATA)),
    (
        2,
        "spec",
        Field::One(&[
            (1, "parallelism", Field::Number),
            (2, "completions", Field::Number),
            (6, "template", Field::One(POD_TEMPLATE)),
            (7, "backoffLimit", Field::Number),
        ]),
    ),
];

const SERVICE: &Message = &[
    (1, "metadata", Field::One(METADATA)),
    (
        2,
        "spec",
        Field::One(&[
            (
                1,
                "ports",
                Field::Many(&[
                    (1, "name", Field::Text),
                    (2, "protocol", Field::Text),
                    (3, "port", Field::Number),
                    (4, "targetPort", Field::Port),
                ]),
            ),
            (2, "selector", Field::Map),
            (3, "clusterIP", Field::Text),
            (4, "type", Field::Text),
            (10, "externalName", Field::Text),
        ]),
    ),
];

const ROLE: &Message = &[
    (1, "metadata", Field::One(METADATA)),
    (
        2,
        "rules",
        Field::Many(&[
            (1, "verbs", Field::Texts),
            (2, "apiGroups", Field::Texts),
            (3, "resources", Field::Texts),
            (4, "resourceNames", Field::Texts),
            (5, "nonResourceURLs", Field::Texts),
        ]),
    ),
];

const ROLE_BINDING: &Message = &[
    (1, "metadata", Field::One(METADATA)),
    (
        2,
        "subjects",
        Field::Many(&[
            (1, "kind", Field::Text),
            (2, "apiGroup", Field::Text),
            (3, "name", Field::Text),
            (4, "namespace", Field::Text),
        ]),
    ),
    (
        3,
        "roleRef",
        Field::One(&[(1, "apiGroup", Field::Text), (2, "kind", Field::Text), (3, "name", Field::Text)]),
    ),
];

const DISRUPTION_BUDGET: &Message = &[
    (1, "metadata", Field::One(METADATA)),
    (
        2,
        "spec",
        Field::One(&[
            (1, "minAvailable", Field::Port),
            (2, "selector", Field::One(LABEL_SELECTOR)),
            (3, "maxUnavailable", Field::Port),
            (4, "unhealthyPodEvictionPolicy", Field::Text),
        ]),
    ),
];

const SELF_RULES: &Message =
    &[(1, "metadata", Field::One(METADATA)), (2, "spec", Field::One(&[(1, "namespace", Field::Text)]))];

const SELF_REVIEW: &Message = &[(1, "metadata", Field::One(METADATA))];

const SELF_ACCESS: &Message = &[
    (1, "metadata", Field::One(METADATA)),
    (
        2,
        "spec",
        Field::One(&[
            (
                1,
                "resourceAttributes",
                Field::One(&[
                    (1, "namespace", Field::Text),
                    (2, "verb", Field::Text),
                    (3, "group", Field::Text),
                    (4, "version", Field::Text),
                    (5, "resource", Field::Text),
                    (6, "subresource", Field::Text),
                    (7, "name", Field::Text),
                ]),
            ),
            (2, "nonResourceAttributes", Field::One(&[(1, "path", Field::Text), (2, "verb", Field::Text)])),
        ]),
    ),
];

fn message_of(kind: &str) -> Option<&'static Message> {
    Some(match kind {
        "Namespace" => NAMESPACE,
        "ConfigMap" => CONFIG_MAP,
        "Secret" => SECRET,
        "ServiceAccount" => SERVICE_ACCOUNT,
        "Deployment" => DEPLOYMENT,
        "Job" => JOB,
        "Service" => SERVICE,
        "Role" | "ClusterRole" => ROLE,
        "RoleBinding" | "ClusterRoleBinding" => ROLE_BINDING,
        "PodDisruptionBudget" => DISRUPTION_BUDGET,
        "DeleteOptions" => DELETE_OPTIONS,
        "TokenRequest" => TOKEN_REQUEST,
        "SelfSubjectReview" => SELF_REVIEW,
        "SelfSubjectAccessReview" => SELF_ACCESS,
        "SelfSubjectRulesReview" => SELF_RULES,
        _ => return None,
    })
}

/// Decodes a body; `None` if it is broken or of a kind that is not known here.
pub(super) fn decode(body: &[u8]) -> Option<Value> {
    // The envelope: four magic bytes, then a type, the object's bytes, and their encodings.
    let envelope = body.strip_prefix(b"k8s\0")?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for (number, value) in fields(envelope)? {
        match (number, value) {
            (1, Wire::Bytes(bytes)) => {
                for (number, value) in fields(bytes)? {
                    match (number, value) {
                        (1, Wire::Bytes(text)) => api_version = String::from_utf8(text.to_vec()).ok()?,
                        (2, Wire::Bytes(text)) => kind = String::from_utf8(text.to_vec()).ok()?,
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let mut object = decode_message(message_of(&kind)?, raw)?;
    object.insert("apiVersion".into(), json!(api_version));
    object.insert("kind".into(), json!(kind));
    Some(Value::Object(object))
}

enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message. Nesting is bounded by the tables above, size by the body's.
fn fields(mut rest: &[u8]) -> Option<Vec<(u64, Wire<'_>)>> {
    let mut fields = Vec::new();
    while !rest.is_empty() {
        let key = varint(&mut rest)?;
        let value = match key & 7 {
            0 => Wire::Number(varint(&mut rest)?),
            1 => {
                rest = rest.get(8..)?;
                continue;
            }
            2 => {
                let length = usize::try_from(varint(&mut rest)?).ok()?;
                let bytes = rest.get(..length)?;
                rest = &rest[length..];
                Wire::Bytes(bytes)
            }
            5 => {
                rest = rest.get(4..)?;
                continue;
            }
            _ => return None,
        };
        fields.push((key >> 3, value));
    }
    Some(fields)
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn decode_message(message: &Message, raw: &[u8]) -> Option<Map<String, Value>> {
    let mut object = Map::new();
    for (number, value) in fields(raw)? {
        let Some((_, name, field)) = message.iter().find(|(known, _, _)| *known == number) else {
            if is_unset(&value, DEEPEST_UNSET) {
                continue;
            }
            return None;
        };
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        match (field, value) {
            // Unset texts are written as empty ones.
            (Field::Text, Wire::Bytes(b"")) => {}
            (Field::Text, Wire::Bytes(bytes)) => {
                object.insert((*name).to_owned(), json!(text(bytes)?));
            }
            (Field::Texts, Wire::Bytes(bytes)) => push(&mut object, name, json!(text(bytes)?)),
            (Field::Number, Wire::Number(number)) => {
                object.insert((*name).to_owned(), json!(number.cast_signed()));
            }
            (Field::Flag, Wire::Number(number)) => {
                object.insert((*name).to_owned(), json!(number != 0));
            }
            (Field::Map | Field::Bytes, Wire::Bytes(entry)) => {
                let (mut key, mut held) = (String::new(), &[][..]);
                for (number, value) in fields(entry)? {
                    match (number, value) {
                        (1, Wire::Bytes(bytes)) => key = text(bytes)?,
                        (2, Wire::Bytes(bytes)) => held = bytes,
                        _ => {}
                    }
                }
                let value = match field {
                    Field::Bytes => base64::engine::general_purpose::STANDARD.encode(held),
                    _ => text(held)?,
                };
                let map = object.entry((*name).to_owned()).or_insert_with(|| json!({}));
                map[key] = json!(value);
            }
            (Field::Port, Wire::Bytes(bytes)) => {
                let (mut named, mut number, mut name_of_port) = (false, 0, "");
                for (field, value) in fields(bytes)? {
                    match (field, value) {
                        (1, Wire::Number(form)) => named = form == 1,
                        (2, Wire::Number(given)) => number = given.cast_signed(),
                        (3, Wire::Bytes(given)) => name_of_port = std::str::from_utf8(given).ok()?,
                        _ => {}
                    }
                }
                let port = if named { json!(name_of_port) } else { json!(number) };
                object.insert((*name).to_owned(), port);
            }
            (Field::One(inner), Wire::Bytes(bytes)) => {
                object.insert((*name).to_owned(), Value::Object(decode_message(inner, bytes)?));
            }
            (Field::Many(inner), Wire::Bytes(bytes)) => {
                let item = Value::Object(decode_message(inner, bytes)?);
                push(&mut object, name, item);
            }
            _ => return None,
        }
    }
    Some(object)
}

/// How deep an empty structure within empty structures is looked into.
const DEEPEST_UNSET: usize = 8;

/// Whether this is how a field that is not set is written: as zero, an empty text, or a structure of such.
fn is_unset(value: &Wire<'_>, deepest: usize) -> bool {
    match value {
        Wire::Number(number) => *number == 0,
        Wire::Bytes(bytes) => {
            deepest > 0
                && fields(bytes).is_some_and(|all| all.iter().all(|(_, value)| is_unset(value, deepest - 1)))
        }
    }
}

fn push(object: &mut Map<String, Value>, name: &str, item: Value) {
    if let Some(list) = object.entry(name.to_owned()).or_insert_with(|| json!([])).as_array_mut() {
        list.push(item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A length-delimited field.
    fn field(number: u8, value: &[u8]) -> Vec<u8> {
        let mut bytes = vec![number << 3 | 2, u8::try_from(value.len()).unwrap()];
        bytes.extend_from_slice(value);
        bytes
    }

    #[test]
    fn a_config_map_is_read() {
        let entry = [field(1, b"k"), field(2, b"v")].concat();
        let metadata = [field(1, b"a"), field(3, b"")].concat();
        let object = [field(1, &metadata), field(2, &entry), vec![4 << 3, 1]].concat();
        let kind = [field(1, b"v1"), field(2, b"ConfigMap")].concat();
        let body = [b"k8s\0".to_vec(), field(1, &kind), field(2, &object)].concat();
        let expected = json!({
            "metadata": { "name": "a" }, "data": { "k": "v" }, "immutable": true, "apiVersion": "v1", "kind": "ConfigMap",
        });
        assert_eq!(decode(&body), Some(expected));
        for end in 0..body.len() {
            // Cut short anywhere, it is refused or read as what is left, never a panic.
            let _ = decode(&body[..end]);
        }
    }

    #[test]
    fn what_is_set_and_not_known_is_refused() {
        let body = |object: &[u8]| {
            let kind = [field(1, b"v1"), field(2, b"Service")].concat();
            [b"k8s\0".to_vec(), field(1, &kind), field(2, object)].concat()
        };
        let port =
            [vec![3 << 3, 80], field(4, &[1 << 3, 1, 2 << 3, 0, 3 << 3 | 2, 4, b'h', b't', b't', b'p'])];
        let spec = [field(1, &port.concat()), field(7, b"")].concat();
        // A status of empty structures is none.
        let service = [field(2, &spec), field(3, &field(1, b""))].concat();
        let ports = json!([{ "port": 80, "targetPort": "http" }]);
        assert_eq!(decode(&body(&service)).unwrap()["spec"]["ports"], ports);
        let affine = [field(1, &port.concat()), field(7, b"ClientIP")].concat();
        assert_eq!(decode(&body(&field(2, &affine))), None);
        // Structures that do not end are no reason for a deep recursion.
        let deep = (0..60).fold(Vec::new(), |inner, _| field(1, &inner));
        assert_eq!(decode(&body(&field(3, &deep))), None);
    }
}
