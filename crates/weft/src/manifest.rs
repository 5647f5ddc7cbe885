//! The YAML that `weft up` is given: Kubernetes objects, each with its place in a file.
//!
//! Reading refuses early what could not work later, and names file, line and remedy: a fault in a file is cheapest
//! while the file is still open in the editor.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::Spanned;
use std::{
    fmt, fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
};
use weft_fault::{Code, Fault};
use weft_kube::fetch::{fetch, is_url};
use weft_local::api::left_out;

/// No single file may be larger: manifests are text written by people.
const MAX_FILE_BYTES: u64 = 8 << 20;

/// One object and where it stands.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) object: Value,
    pub(crate) file: PathBuf,
    tree: Spanned<Tree>,
}

/// A YAML value that remembers the line of each of its parts.
#[derive(Debug)]
enum Tree {
    Leaf(Value),
    List(Vec<Spanned<Tree>>),
    Map(Vec<(String, Spanned<Tree>)>),
}

/// A step into a document.
#[derive(Clone, Copy)]
pub(crate) enum Step<'a> {
    Key(&'a str),
    Index(usize),
}

impl Document {
    /// The line of the innermost part of `path` that exists.
    pub(crate) fn line(&self, path: &[Step<'_>]) -> u64 {
        let mut node = &self.tree;
        for step in path {
            let next = match (&node.value, step) {
                (Tree::Map(entries), Step::Key(key)) => {
                    entries.iter().find(|(k, _)| k == key).map(|(_, v)| v)
                }
                (Tree::List(items), Step::Index(index)) => items.get(*index),
                _ => None,
            };
            match next {
                Some(next) => node = next,
                None => break,
            }
        }
        node.referenced.line()
    }

    /// The line of a field written as the API writes it, like `spec.containers[0].image`.
    pub(crate) fn line_of(&self, field: &str) -> u64 {
        let mut steps = Vec::new();
        for part in field.split('.') {
            let mut pieces = part.split('[');
            steps.extend(pieces.next().map(Step::Key));
            for piece in pieces {
                let piece = piece.trim_end_matches(']');
                steps.push(piece.parse().map_or(Step::Key(piece), Step::Index));
            }
        }
        self.line(&steps)
    }

    pub(crate) fn kind(&self) -> &str {
        self.object["kind"].as_str().unwrap_or_default()
    }
    pub(crate) fn api_version(&self) -> &str {
        self.object["apiVersion"].as_str().unwrap_or_default()
    }
    pub(crate) fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or_default()
    }
    pub(crate) fn namespace(&self) -> Option<&str> {
        self.object["metadata"]["namespace"].as_str()
    }

    /// `deployment/web (shop.yaml:12)`.
    pub(crate) fn title(&self) -> String {
        format!("{}/{} ({}:{})", self.kind().to_lowercase(), self.name(), self.file.display(), self.line(&[]))
    }

    fn fault(&self, code: Code, path: &[Step<'_>]) -> Fault {
        Fault::new(code).about(format!("{}:{}", self.file.display(), self.line(path)))
    }
}

/// Reads files and folders (`*.yaml`, `*.yml`, `*.json`, by name, not recursive), in the order in which objects have
/// to be created. Every problem found is returned, not only the first.
pub(crate) fn load(paths: &[PathBuf]) -> Result<Vec<Document>, Vec<Fault>> {
    let mut documents = Vec::new();
    let mut faults = Vec::new();
    for path in paths {
        match files(path) {
            Ok(files) if files.is_empty() => {
                faults.push(unreadable(path, "the folder holds no .yaml, .yml or .json file"));
            }
            Ok(files) => {
                for file in files {
                    match read(&file) {
                        Ok(text) => parse(&file, &text, &mut documents, &mut faults),
                        Err(error) => faults.push(unreadable(&file, error)),
                    }
                }
            }
            Err(error) => faults.push(unreadable(path, error)),
        }
    }
    for document in &documents {
        check(document, &mut faults);
    }
    check_duplicates(&documents, &mut faults);
    if documents.is_empty() && faults.is_empty() {
        faults.push(Fault::new(Code::BadManifest).fact("problem", "the files hold no object"));
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    documents.sort_by_key(|d| creation_order(d.kind())); // stable: the file's order within a kind
    Ok(documents)
}

/// Reads files, folders and addresses of the web, or standard input for `-`, as they are: for commands that change text
/// and ask no cluster.
pub(crate) async fn read_all(paths: &[PathBuf]) -> Result<Vec<Document>, Fault> {
    let mut documents = Vec::new();
    let mut faults = Vec::new();
    for path in paths {
        if let Some(url) = path.to_str().filter(|path| is_url(path)) {
            let limit = usize::try_from(MAX_FILE_BYTES).unwrap_or(usize::MAX);
            let bytes = fetch(url, limit).await.map_err(|error| unreadable(path, error))?;
            let text = std::str::from_utf8(&bytes).map_err(|error| unreadable(path, error))?;
            parse(path, text, &mut documents, &mut faults);
            continue;
        }
        if path.as_os_str() == "-" {
            let text = text_of(io::stdin().lock()).map_err(|error| unreadable(path, error))?;
            parse(Path::new("standard input"), &text, &mut documents, &mut faults);
            continue;
        }
        for file in files(path).map_err(|error| unreadable(path, error))? {
            let text = read(&file).map_err(|error| unreadable(&file, error))?;
            parse(&file, &text, &mut documents, &mut faults);
        }
    }
    match faults.into_iter().next() {
        Some(fault) => Err(fault),
        None => Ok(documents),
    }
}

fn unreadable(path: &Path, problem: impl fmt::Display) -> Fault {
    Fault::new(Code::BadManifest).about(path.display()).fact("problem", problem)
}

fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let file = entry?.path();
        let known =
            file.extension().and_then(|e| e.to_str()).is_some_and(|e| matches!(e, "yaml" | "yml" | "json"));
        if known && file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

fn read(file: &Path) -> io::Result<String> {
    text_of(fs::File::open(file)?)
}

fn text_of(source: impl io::Read) -> io::Result<String> {
    let mut text = String::new();
    // Counted as they come: pipes and devices have no length.
    source.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::other(format!(
            "it has more than the {MAX_FILE_BYTES} bytes a manifest may have"
        )));
    }
    Ok(text)
}

fn parse(file: &Path, text: &str, documents: &mut Vec<Document>, faults: &mut Vec<Fault>) {
    // As kubectl reads them: `0644` is octal. Booleans are YAML 1.2's, so that a pod may be called `n`.
    let options = serde_saphyr::options! { strict_booleans: true, legacy_octal_numbers: true };
    let trees: Vec<Spanned<Tree>> = match serde_saphyr::from_multiple_with_options(text, options) {
        Ok(trees) => trees,
        Err(error) => {
            let place = match error.location() {
                Some(location) => format!("{}:{}:{}", file.display(), location.line(), location.column()),
                None => file.display().to_string(),
            };
            let problem = error.without_snippet().to_string();
            faults.push(Fault::new(Code::BadManifest).about(place).fact("problem", problem));
            return;
        }
    };
    for tree in trees {
        let object = tree.value.to_json();
        // `kind: List` and the typed lists that kubectl prints hold objects of their own.
        let is_list =
            object["kind"].as_str().is_some_and(|k| k.ends_with("List")) && object["items"].is_array();
        if object.is_null() {
            continue;
        }
        if !is_list {
            documents.push(Document { object, file: file.to_path_buf(), tree });
            continue;
        }
        let Tree::Map(entries) = tree.value else { continue };
        let items = entries.into_iter().find(|(key, _)| key == "items").map(|(_, v)| v.value);
        if let Some(Tree::List(items)) = items {
            documents.extend(items.into_iter().map(|tree| Document {
                object: tree.value.to_json(),
                file: file.to_path_buf(),
                tree,
            }));
        }
    }
}

/// What `weft up` can tell from the object alone.
fn check(document: &Document, faults: &mut Vec<Fault>) {
    for field in ["apiVersion", "kind"] {
        if document.object[field].as_str().is_none_or(str::is_empty) {
            faults.push(document.fault(Code::BadManifest, &[]).fact("missing", field));
            return;
        }
    }
    let metadata = &document.object["metadata"];
    if metadata["name"].as_str().is_none_or(str::is_empty)
        && metadata["generateName"].as_str().is_none_or(str::is_empty)
    {
        faults.push(
            document.fault(Code::BadManifest, &[Step::Key("metadata")]).fact("missing", "metadata.name"),
        );
        return;
    }
    check_commands(document, faults);
}

/// What of the documents a mesh with an API of its own does not run.
pub(crate) fn not_run(documents: &[Document]) -> Vec<Fault> {
    let found = documents.iter().filter_map(|document| {
        let (_, instead) = left_out::KINDS.iter().find(|(kind, _)| *kind == document.kind())?;
        let object = format!("{}/{}", document.kind().to_lowercase(), document.name());
        Some(document.fault(Code::KindNotEnforced, &[]).fact("object", object).fact("instead", instead))
    });
    found.collect()
}

/// Containers run as processes here, so each needs a command: its own, or one from an annotation.
fn check_commands(document: &Document, faults: &mut Vec<Fault>) {
    let template: &[&str] = match document.kind() {
        "Pod" => &[],
        "Deployment" | "ReplicaSet" | "Job" | "StatefulSet" | "DaemonSet" => &["spec", "template"],
        _ => return,
    };
    let pod = template.iter().fold(&document.object, |value, key| &value[*key]);
    for list in ["initContainers", "containers"] {
        let containers = pod["spec"][list].as_array().map(Vec::as_slice).unwrap_or_default();
        for (index, container) in containers.iter().enumerate() {
            let name = container["name"].as_str().unwrap_or_default();
            let has_command = container["command"].as_array().is_some_and(|c| !c.is_empty());
            let annotation = format!("weft.dev/command.{name}");
            let annotated = pod["metadata"]["annotations"][&annotation].is_string();
            let ours = container["image"].as_str().is_some_and(|i| i.starts_with("weft.dev/weft"));
            if has_command || annotated || ours {
                continue;
            }
            let mut path: Vec<Step<'_>> = template.iter().map(|key| Step::Key(key)).collect();
            path.extend([Step::Key("spec"), Step::Key(list), Step::Index(index)]);
            let mut fault = document
                .fault(Code::NoCommand, &path)
                .fact("object", format!("{}/{}", document.kind().to_lowercase(), document.name()))
                .fact("container", name);
            if let Some(image) = container["image"].as_str() {
                fault = fault.fact("image", image);
            }
            faults.push(fault.fact("annotation", format!("{annotation}: \"PROGRAM ARG …\"")));
        }
    }
}

fn check_duplicates(documents: &[Document], faults: &mut Vec<Fault>) {
    let mut seen = std::collections::HashMap::new();
    for document in documents.iter().filter(|d| !d.name().is_empty()) {
        let group = document.api_version().rsplit_once('/').map_or("", |(group, _)| group);
        let key = (group, document.kind(), document.namespace().unwrap_or("default"), document.name());
        if let Some(first) = seen.insert(key, document.title()) {
            faults.push(
                document.fault(Code::BadManifest, &[]).fact("problem", format!("{first} has the same name")),
            );
        }
    }
}

/// What others refer to comes first; whatever starts processes comes last, so that the first connection already meets
/// its policy.
fn creation_order(kind: &str) -> u8 {
    match kind {
        "Namespace" => 0,
        "CustomResourceDefinition" => 1,
        "ServiceAccount" => 2,
        "ConfigMap" | "Secret" => 3,
        "Service" | "EndpointSlice" => 4,
        "Pod" | "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" => 8,
        "Job" => 9,
        _ => 6,
    }
}

impl Tree {
    fn to_json(&self) -> Value {
        match self {
            Tree::Leaf(value) => value.clone(),
            Tree::List(items) => Value::Array(items.iter().map(|i| i.value.to_json()).collect()),
            Tree::Map(entries) => Value::Object(
                entries
                    .iter()
                    .map(|(key, value)| (key.clone(), value.value.to_json()))
                    .collect::<Map<_, _>>(),
            ),
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }
    fn visit_bool<E>(self, v: bool) -> Result<Tree, E> {
        Ok(Tree::Leaf(v.into()))
    }
    fn visit_i64<E>(self, v: i64) -> Result<Tree, E> {
        Ok(Tree::Leaf(v.into()))
    }
    fn visit_u64<E>(self, v: u64) -> Result<Tree, E> {
        Ok(Tree::Leaf(v.into()))
    }
    fn visit_f64<E: serde::de::Error>(self, v: f64) -> Result<Tree, E> {
        let number = Number::from_f64(v).ok_or_else(|| E::custom("JSON has no such number"))?;
        Ok(Tree::Leaf(Value::Number(number)))
    }
    fn visit_str<E>(self, v: &str) -> Result<Tree, E> {
        Ok(Tree::Leaf(v.into()))
    }
    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Leaf(Value::Null))
    }
    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree::Leaf(Value::Null))
    }
    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Tree::List(items))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut entries: Vec<(String, Spanned<Tree>)> = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Tree::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load_text(text: &str) -> Result<Vec<Document>, Vec<Fault>> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("app.yaml");
        fs::write(&file, text).expect("write");
        load(&[folder.path().to_path_buf()])
    }

    fn shown(faults: Vec<Fault>) -> String {
        faults.iter().map(|f| format!("{f}\n")).collect()
    }

    #[test]
    fn an_image_without_a_command_names_file_line_and_annotation() {
        let faults = load_text(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  template:\n    spec:\n      \
             containers:\n      - name: app\n        command: [sh]\n      - name: side\n        image: nginx:1\n",
        )
        .unwrap_err();
        let shown = shown(faults);
        assert!(shown.starts_with("CFG-003"), "{shown}");
        assert!(shown.contains("app.yaml:10"), "{shown}");
        assert!(shown.contains("weft.dev/command.side"), "{shown}");
        assert_eq!(shown.lines().count(), 1, "{shown}");
    }

    #[test]
    fn an_annotation_supplies_the_command() {
        let documents = load_text(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  annotations: {weft.dev/command.x: 'sleep 1'}\nspec:\n  \
             containers: [{name: x, image: y}]\n",
        )
        .unwrap();
        assert_eq!(documents[0].kind(), "Pod");
    }

    #[test]
    fn kinds_that_nothing_runs_are_refused() {
        let of = |version: &str, kind: &str| {
            let text = format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: a}}\nspec: {{}}\n");
            shown(not_run(&load_text(&text).unwrap()))
        };
        let shown = of("networking.k8s.io/v1", "Ingress");
        assert!(shown.contains("CFG-004") && shown.contains("app.yaml:1"), "{shown}");
        assert_eq!(of("networking.k8s.io/v1", "NetworkPolicy"), "");
    }

    #[test]
    fn broken_yaml_names_the_line() {
        let shown = shown(load_text("apiVersion: v1\nkind: [\nmetadata: {}\n").unwrap_err());
        assert!(shown.contains("CFG-002") && shown.contains("app.yaml:"), "{shown}");
    }

    #[test]
    fn all_problems_are_told_at_once() {
        let shown = shown(
            load_text("kind: Pod\n---\napiVersion: v1\nkind: Pod\nmetadata: {}\n---\n---\n{}\n").unwrap_err(),
        );
        assert_eq!(shown.lines().count(), 3, "{shown}");
    }

    #[test]
    fn lists_are_taken_apart_and_policies_precede_processes() {
        let documents = load_text(
            "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: \
             [{name: c, command: [x]}]}}\n- {apiVersion: policy.linkerd.io/v1beta3, kind: Server, metadata: {name: s}}\n- \
             {apiVersion: v1, kind: Namespace, metadata: {name: n}}\n",
        )
        .unwrap();
        let kinds: Vec<_> = documents.iter().map(Document::kind).collect();
        assert_eq!(kinds, ["Namespace", "Server", "Pod"]);
    }

    #[test]
    fn scalars_are_read_as_kubectl_reads_them() {
        let document = &load_text(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: n}\ndata: {a: 0644, b: '0644', c: null, d: 1.5, e: yes}\n",
        )
        .unwrap()[0];
        assert_eq!(
            document.object["data"],
            serde_json::json!({"a": 420, "b": "0644", "c": null, "d": 1.5, "e": "yes"})
        );
    }

    #[test]
    fn the_same_object_twice_is_an_error() {
        let one = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";
        let shown = shown(load_text(&format!("{one}---\n{one}")).unwrap_err());
        assert!(shown.contains("same name"), "{shown}");
    }
}
