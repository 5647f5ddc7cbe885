//! `examples/shop` holds together: programs understand the flags they are given, and names lead somewhere.

use clap::Parser;
use serde_json::Value;
use std::{collections::BTreeSet, fs, path::Path};

#[derive(Parser)]
#[command(no_binary_name = true)]
struct Cli {
    #[command(subcommand)]
    _role: weft_sample::SampleCommand,
}

fn objects() -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/shop");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    let objects = files.iter().flat_map(|path| {
        let text = fs::read_to_string(path).unwrap();
        serde_saphyr::from_multiple::<Value>(&text)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    });
    objects.filter(|object| !object.is_null()).collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn pod(object: &Value) -> Option<&Value> {
    matches!(text(&object["kind"]), "Deployment" | "Job").then(|| &object["spec"]["template"])
}

#[test]
fn every_program_understands_its_flags() {
    let mut programs = 0;
    for object in objects() {
        let Some(pod) = pod(&object) else { continue };
        for container in list(&pod["spec"]["containers"]) {
            let probes = ["startupProbe", "readinessProbe", "livenessProbe"];
            let commands = probes.iter().map(|probe| list(&container[*probe]["exec"]["command"]).to_vec());
            let main = [list(&container["command"]), list(&container["args"])].concat();
            for command in
                commands.chain([main]).filter(|command| command.first().is_some_and(|c| c == "weft"))
            {
                let words: Vec<&str> = command.iter().map(text).collect();
                assert_eq!(words[..2], ["weft", "sample"]);
                if let Err(error) = Cli::try_parse_from(&words[2..]) {
                    panic!("{}: {words:?}: {error}", object["metadata"]["name"]);
                }
                programs += 1;
            }
        }
    }
    assert_eq!(programs, 10, "eight workloads and the store's two probes");
}

#[test]
fn names_lead_somewhere() {
    let objects = objects();
    let known: BTreeSet<(&str, &str)> =
        objects.iter().map(|object| (text(&object["kind"]), text(&object["metadata"]["name"]))).collect();
    assert_eq!(known.len(), objects.len(), "two objects of one kind have one name");
    let exists = |from: &Value, kind: &str, name: &str| {
        assert!(
            known.contains(&(kind, name)),
            "{} {} names {kind} {name}",
            from["kind"],
            from["metadata"]["name"]
        );
    };
    let labels: BTreeSet<&str> =
        objects.iter().filter_map(|o| Some(text(&pod(o)?["metadata"]["labels"]["app"]))).collect();

    for object in &objects {
        let spec = &object["spec"];
        for reference in list(&spec["requiredAuthenticationRefs"]).iter().chain(list(&spec["identityRefs"])) {
            exists(object, text(&reference["kind"]), text(&reference["name"]));
        }
        for reference in list(&spec["parentRefs"]).iter().chain(spec.get("targetRef")) {
            exists(object, text(&reference["kind"]), text(&reference["name"]));
        }
        let selected = match text(&object["kind"]) {
            "Server" => Some(&spec["podSelector"]["matchLabels"]["app"]),
            "Service" => Some(&spec["selector"]["app"]),
            "Deployment" => Some(&spec["selector"]["matchLabels"]["app"]),
            _ => None,
        };
        if let Some(app) = selected {
            assert!(labels.contains(text(app)), "{} selects {app}", object["metadata"]["name"]);
        }
        let Some(pod) = pod(object) else { continue };
        exists(object, "ServiceAccount", text(&pod["spec"]["serviceAccountName"]));
        for volume in list(&pod["spec"]["volumes"]) {
            if let Some(name) = volume["configMap"]["name"].as_str() {
                exists(object, "ConfigMap", name);
            }
            if let Some(name) = volume["secret"]["secretName"].as_str() {
                exists(object, "Secret", name);
            }
        }
    }
}

/// The callers that are there to be refused stay outside of every authorization.
#[test]
fn the_intruders_are_not_let_in() {
    let allowed =
        objects().into_iter().filter(|object| object["kind"] == "MeshTLSAuthentication").flat_map(|object| {
            let names = list(&object["spec"]["identityRefs"])
                .iter()
                .map(|reference| text(&reference["name"]).to_string());
            names
                .chain(list(&object["spec"]["identities"]).iter().map(|id| text(id).to_string()))
                .collect::<Vec<_>>()
        });
    let allowed: Vec<String> = allowed.collect();
    assert!(allowed.len() >= 6, "{allowed:?}");
    for name in &allowed {
        assert!(
            !name.starts_with("snoop") && !name.starts_with("load") && !name.starts_with('*'),
            "{name} is let in"
        );
    }
}
