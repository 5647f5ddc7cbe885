//! The Helm charts, made from the same templates as what `weft install` prints.

use super::{
    crds, objects,
    template::helm,
    values::table::{Row, TABLE},
    yaml,
};
use serde_json::Value;
use std::fmt::Write as _;

/// Path below `charts/`, and text, of every file.
pub fn files() -> Vec<(&'static str, String)> {
    vec![
        ("weft/Chart.yaml", chart("weft", "The control plane of weft, a service mesh")),
        ("weft/values.yaml", values(|row| row.default)),
        ("weft/values-ha.yaml", high_availability()),
        ("weft/templates/control-plane.yaml", templates()),
        ("weft/templates/checks.yaml", checks()),
        ("weft-crds/Chart.yaml", chart("weft-crds", "CustomResourceDefinitions of weft")),
        ("weft-crds/values.yaml", CRDS_VALUES.to_owned()),
        ("weft-crds/templates/crds.yaml", yaml::documents(&crds(false))),
        ("weft-crds/templates/gateway.yaml", gateway()),
    ]
}

const MADE: &str = "# Made from crates/weft-control/src/install: WEFT_WRITE_DOCS=1 cargo test -p weft-control --lib install\n";

const CRDS_VALUES: &str = "# Install the definitions of the Gateway API's routes, where the cluster has none from elsewhere.\ninstallGatewayAPI: false\n";

fn chart(name: &str, says: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "apiVersion: v2\nname: {name}\ndescription: {says}\ntype: application\nversion: {version}\nappVersion: {version:?}\nkubeVersion: \">=1.30.0-0\"\n"
    )
}

fn templates() -> String {
    let objects = objects::control_plane();
    let texts = objects.iter().map(|object| format!("---\n{}", helm(object)));
    format!("{MADE}{}", texts.collect::<String>())
}

/// What only a person can give to a chart.
fn checks() -> String {
    let mut text = MADE.to_owned();
    for (condition, path) in [
        ("not .Values.identity.externalCA", "identityTrustAnchorsPEM"),
        ("eq .Values.identity.issuer.scheme \"linkerd.io/tls\"", "identity.issuer.tls.crtPEM"),
        ("eq .Values.identity.issuer.scheme \"linkerd.io/tls\"", "identity.issuer.tls.keyPEM"),
    ] {
        // Writing to a string cannot fail.
        let _written = writeln!(
            text,
            "{{{{- if {condition} }}}}{{{{- $_ := required \"{path} must be given: see docs/kubernetes.md\" .Values.{path} }}}}{{{{- end }}}}"
        );
    }
    text
}

fn gateway() -> String {
    format!(
        "{{{{- if .Values.installGatewayAPI }}}}\n{}{{{{- end }}}}\n",
        yaml::documents(&super::gateway_crds())
    )
}

fn high_availability() -> String {
    let mut tree = Value::Null;
    for row in TABLE {
        if let Some(default) = row.ha {
            super::values::place(&mut tree, row.path, default);
        }
    }
    format!(
        "# For `helm install -f values-ha.yaml`: what `weft install --ha` changes.\n{MADE}{}",
        yaml::to_string(&tree)
    )
}

/// `values.yaml`: every value with what it does, maps by their indentation.
fn values(default: impl Fn(&Row) -> &'static str) -> String {
    let mut text = MADE.to_owned();
    let mut open: Vec<&str> = Vec::new();
    for row in TABLE.iter().filter(|row| row.without_effect.is_none()) {
        let mut keys: Vec<&str> = row.path.split('.').collect();
        let last = keys.pop().unwrap_or_default();
        let common = open.iter().zip(&keys).take_while(|(a, b)| a == b).count();
        open.truncate(common);
        for key in &keys[common..] {
            let _written = writeln!(text, "{}{key}:", "  ".repeat(open.len()));
            open.push(key);
        }
        let indent = "  ".repeat(open.len());
        if !row.says.is_empty() {
            let _written = writeln!(text, "{indent}# {}", row.says);
        }
        let _written = writeln!(text, "{indent}{last}: {}", default(row));
    }
    text
}

/// The reference page of all values.
pub fn page() -> String {
    let mut page = String::from(
        "# Values of an installation\n\n\
         `weft install` takes them with `--set` and `-f`, the chart as Helm does. Names, forms and meanings are Linkerd's. A name\n\
         that is not here is refused, with the nearest one that is; those of the last table are accepted and do nothing.\n\n\
         Made from `crates/weft-control/src/install/values/table.rs`: `WEFT_WRITE_DOCS=1 cargo test -p weft-control --lib install`.\n\n\
         | value | default | with `--ha` | form | meaning |\n|---|---|---|---|---|\n",
    );
    let shown = |text: &str| {
        if matches!(text, r#""""# | "null") {
            "–".to_owned()
        } else {
            format!("`{}`", text.replace('|', "\\|"))
        }
    };
    for row in TABLE.iter().filter(|row| row.without_effect.is_none()) {
        let ha = row.ha.map(shown).unwrap_or_default();
        let _written = writeln!(
            page,
            "| `{}` | {} | {ha} | {} | {} |",
            row.path,
            shown(row.default),
            row.form.says(),
            row.says
        );
    }
    page.push_str("\n## Without effect\n\n| value of Linkerd's | why |\n|---|---|\n");
    for row in TABLE {
        if let Some(why) = row.without_effect {
            let _written = writeln!(page, "| `{}` | {why} |", row.path);
        }
    }
    page
}

#[cfg(test)]
mod helm_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install::values::Values;
    use std::{env, fs, path::Path};

    fn repository() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
    }

    #[test]
    fn charts_and_page_are_those_of_the_table() {
        let mut all: Vec<_> =
            files().into_iter().map(|(path, text)| (repository().join("charts").join(path), text)).collect();
        all.push((repository().join("docs/values.md"), page()));
        for (path, text) in all {
            #[allow(
                clippy::disallowed_methods,
                reason = "whether to write the files is no setting of the program"
            )]
            if env::var_os("WEFT_WRITE_DOCS").is_some() {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(&path, &text).unwrap();
            }
            let committed = fs::read_to_string(&path).unwrap_or_default();
            assert!(committed == text, "{} is out of date: WEFT_WRITE_DOCS=1 writes it", path.display());
        }
    }

    #[test]
    fn the_charts_values_are_the_defaults() {
        for (ha, name) in [(false, "weft/values.yaml"), (true, "weft/values-ha.yaml")] {
            let text = files().into_iter().find(|(path, _)| *path == name).unwrap().1;
            let values = Values::with(&yaml::parse(&text).unwrap(), false).unwrap();
            assert_eq!(values, Values::defaults(ha), "{name}");
        }
    }
}
