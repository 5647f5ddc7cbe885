//! Reading and writing the parts every object has.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

/// The string at a JSON pointer, or `""`.
pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}

/// The integer at a JSON pointer.
pub fn int(object: &Value, pointer: &str) -> Option<i64> {
    object.pointer(pointer).and_then(Value::as_i64)
}

/// The list at a JSON pointer, or an empty one.
pub fn items<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

pub fn namespace(object: &Value) -> &str {
    text(object, "/metadata/namespace")
}

pub fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

pub fn resource_version(object: &Value) -> &str {
    text(object, "/metadata/resourceVersion")
}

/// Whether deletion was asked for.
pub fn deleting(object: &Value) -> bool {
    !text(object, "/metadata/deletionTimestamp").is_empty()
}

pub fn finalizers(object: &Value) -> Vec<&str> {
    items(object, "/metadata/finalizers").iter().filter_map(Value::as_str).collect()
}

/// The label map, if there is one.
pub fn labels(object: &Value) -> Option<&Map<String, Value>> {
    object.pointer("/metadata/labels").and_then(Value::as_object)
}

/// The owner that controls the object.
pub fn controller_of(object: &Value) -> Option<&Value> {
    items(object, "/metadata/ownerReferences").iter().find(|owner| owner["controller"] == json!(true))
}

/// `object[key]` as an object, made if absent (or if it is something else: the caller has checked types before).
pub fn object_mut<'a>(object: &'a mut Value, key: &str) -> &'a mut Map<String, Value> {
    object_mut_self(&mut object[key])
}

/// The value as an object, made one if it is not.
pub fn object_mut_self(slot: &mut Value) -> &mut Map<String, Value> {
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    slot.as_object_mut().expect("made an object just above")
}

/// The metadata, made if absent.
pub fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    object_mut(object, "metadata")
}

/// Sets a key that has no value yet.
pub fn default(map: &mut Map<String, Value>, key: &str, value: impl Into<Value>) {
    if map.get(key).is_none_or(Value::is_null) {
        map.insert(key.to_owned(), value.into());
    }
}

/// `metav1.Time`: seconds.
pub fn now() -> String {
    time(Timestamp::now())
}

pub fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// `metav1.MicroTime`.
pub fn micro_now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// Parses a time as Kubernetes writes it.
pub fn parse_time(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

/// The alphabet of generated name suffixes: no vowels, and nothing easily mistaken.
const SUFFIX: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// `generateName` with five random characters, within the length a name may have.
pub fn generated_name(prefix: &str) -> String {
    let kept: String = prefix.chars().take(58).collect();
    format!("{kept}{}", random_suffix(5))
}

pub fn random_suffix(length: usize) -> String {
    (0..length).map(|_| char::from(SUFFIX[rand::random_range(0..SUFFIX.len())])).collect()
}

/// Ten characters that stand for a value: pod template hashes and the like.
pub fn stable_suffix(value: &Value) -> String {
    // FNV-1a: the hash ends up in object names, so it must not change between runs or versions of std.
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in value.to_string().bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    let base = SUFFIX.len() as u64;
    (0..10)
        .map(|_| {
            let at = usize::try_from(hash % base).expect("below the alphabet's length");
            hash /= base;
            char::from(SUFFIX[at])
        })
        .collect()
}
