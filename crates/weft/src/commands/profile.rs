//! `weft profile`: a ServiceProfile from what describes a service already, or one to be filled in.

mod open_api;
mod proto;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use std::{
    fs,
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};
use weft_control::install::yaml;
use weft_kube::policy::service_profile::ServiceProfile;

/// The longest description that is read.
const FILE_BYTES: u64 = 16 << 20;

/// Write a ServiceProfile: a template, or the routes of an OpenAPI or protobuf description.
///
/// The result goes to the standard output, for `kubectl apply -f -`. Nothing is asked of a cluster.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft profile -n shop --open-api store.yaml store | kubectl apply -f -
  weft profile -n shop --proto store.proto store            one route for each method
  weft profile -n shop --template store > store-profile.yaml

In an OpenAPI description, `x-linkerd-retryable: true` and `x-linkerd-timeout: 300ms` at an operation make its route so.

Exit codes: 0 written, 2 the description cannot be used.")]
#[command(group(clap::ArgGroup::new("from").required(true)))]
pub(crate) struct Profile {
    /// Name of the Service.
    name: String,
    /// Its namespace.
    #[arg(short, long, default_value = "default")]
    namespace: String,
    /// Domain of the cluster, the end of the Service's name.
    #[arg(long, default_value = "cluster.local", value_name = "DOMAIN")]
    cluster_domain: String,
    /// Write one with an example of everything, to be filled in.
    #[arg(long, group = "from")]
    template: bool,
    /// Make routes of an OpenAPI (2 or 3) description, in YAML or JSON; `-` is the standard input.
    #[arg(long, value_name = "FILE", group = "from")]
    open_api: Option<PathBuf>,
    /// Make routes of a protobuf description's services; `-` is the standard input.
    #[arg(long, value_name = "FILE", group = "from")]
    proto: Option<PathBuf>,
    /// Accepted as Linkerd's command has it: no cluster is ever asked.
    #[arg(long, hide = true)]
    ignore_cluster: bool,
}

impl Profile {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let text = if let Some(path) = &self.open_api {
            let routes = open_api::routes(&read(path)?).with_context(|| path.display().to_string())?;
            self.written(routes)?
        } else if let Some(path) = &self.proto {
            let routes = proto::routes(&read(path)?).with_context(|| path.display().to_string())?;
            self.written(routes)?
        } else {
            debug_assert!(self.template, "one of the three is required");
            self.whole_template()?
        };
        write!(anstream::stdout().lock(), "{text}")?;
        Ok(ExitCode::SUCCESS)
    }

    fn full_name(&self) -> String {
        format!("{}.{}.svc.{}", self.name, self.namespace, self.cluster_domain)
    }

    fn written(&self, routes: Vec<Value>) -> Result<String> {
        if routes.is_empty() {
            bail!("it describes no route");
        }
        let profile = json!({
            "apiVersion": "linkerd.io/v1alpha2",
            "kind": "ServiceProfile",
            "metadata": {"name": self.full_name(), "namespace": self.namespace},
            "spec": {"routes": routes},
        });
        checked(&profile)?;
        Ok(yaml::to_string(&profile))
    }

    fn whole_template(&self) -> Result<String> {
        let text = TEMPLATE.replace("NAMESPACE", &self.namespace).replace("NAME", &self.full_name());
        checked(&yaml::parse(&text).map_err(anyhow::Error::msg)?)?;
        Ok(text)
    }
}

/// What the controller would refuse is not written.
fn checked(profile: &Value) -> Result<()> {
    let read: ServiceProfile = serde_json::from_value(profile.clone())?;
    match read.flaw() {
        Some(flaw) => bail!("the profile would have no effect: {flaw}"),
        None => Ok(()),
    }
}

fn read(path: &Path) -> Result<String> {
    let mut text = String::new();
    let reading = || format!("reading {}", path.display());
    if path == Path::new("-") {
        std::io::stdin().lock().take(FILE_BYTES).read_to_string(&mut text).with_context(reading)?;
    } else {
        fs::File::open(path)
            .with_context(reading)?
            .take(FILE_BYTES)
            .read_to_string(&mut text)
            .with_context(reading)?;
    }
    Ok(text)
}

/// Text of a path as a regular expression that matches it and nothing else.
fn literally(text: &str, regex: &mut String) {
    for c in text.chars() {
        if r"\.+*?()|[]{}^$".contains(c) {
            regex.push('\\');
        }
        regex.push(c);
    }
}

const TEMPLATE: &str = r#"# How clients treat a service: its routes, and what is retried. Remove what you do not need.
apiVersion: linkerd.io/v1alpha2
kind: ServiceProfile
metadata:
  # The service's whole name. The object is in the service's namespace, or in that of clients for which alone it holds.
  name: NAME
  namespace: NAMESPACE
spec:
  # Tried in order; the first whose condition holds is the request's route. Metrics are told apart by them.
  routes:
  - name: GET /authors/{id}
    condition:
      method: GET
      # Matches the whole path.
      pathRegex: /authors/\d+
    # Requests that fail are sent again, within the budget below. Only for requests that may safely be made twice.
    isRetryable: true
    # How long a request may take in all, retries included.
    timeout: 300ms
    # Which responses are failures. Without any, status 500 and above are.
    responseClasses:
    - condition:
        status:
          min: 500
          max: 599
      isFailure: true
  - name: anything else under /authors
    condition:
      # Conditions may be joined by all, any and not.
      all:
      - pathRegex: /authors/.*
      - not:
          method: GET
  # How many retries there may be.
  retryBudget:
    # Beside the original requests, as a share of them.
    retryRatio: 0.2
    # And so many per second in any case.
    minRetriesPerSecond: 10
    # Over so long a time.
    ttl: 10s
"#;

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(name: &str) -> Profile {
        Profile {
            name: name.into(),
            namespace: "shop".into(),
            cluster_domain: "example".into(),
            template: true,
            open_api: None,
            proto: None,
            ignore_cluster: false,
        }
    }

    #[test]
    fn the_template_is_a_profile_that_works() {
        let text = profile("store").whole_template().unwrap();
        let read = yaml::parse(&text).unwrap();
        assert_eq!(read["metadata"]["name"], "store.shop.svc.example");
        assert_eq!(read["metadata"]["namespace"], "shop");
    }

    #[test]
    fn what_would_have_no_effect_is_not_written() {
        let route = json!({"name": "x", "condition": {"pathRegex": "/x"}});
        assert!(profile("store").written(vec![route.clone()]).unwrap().contains("pathRegex: /x"));
        assert!(profile("No_Name").written(vec![route]).unwrap_err().to_string().contains("metadata.name"));
        assert!(profile("store").written(vec![]).unwrap_err().to_string().contains("no route"));
    }

    #[test]
    fn paths_are_taken_literally() {
        let mut regex = String::new();
        literally("/a.b/(c)+{d}", &mut regex);
        assert_eq!(regex, r"/a\.b/\(c\)\+\{d\}");
    }
}
