//! The trust anchors in force: a text that came with the environment, or a file that is followed as it changes.
//!
//! In Kubernetes the file is a ConfigMap's, which kubelet replaces by exchanging a symbolic link. Events of files get lost, and
//! this one changes a few times in a mesh's life; so it is read every few seconds, and its content compared.

use crate::record::Recorder;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::sync::watch;
use weft_fault::{Code, Fault, Phase};
use weft_tls::bundle::{TrustBundle, foreign_domain};

/// How soon a change is seen.
pub(crate) const EVERY: Duration = Duration::from_secs(2);
const FILE_BYTES: u64 = 1 << 20;

/// Clones see the same anchors.
#[derive(Clone, Debug)]
pub struct Anchors(watch::Receiver<TrustBundle>);

impl Anchors {
    /// Anchors that stay as they are.
    pub fn fixed(bundle: TrustBundle) -> Anchors {
        Anchors(watch::channel(bundle).1)
    }

    /// The file's content, or the text where there is none yet.
    pub(crate) fn first(file: Option<&Path>, text: &str) -> Result<TrustBundle, Fault> {
        match file {
            // Whoever gives both wants to come up before the file is there.
            Some(file) if text.is_empty() || file.exists() => bundle(file),
            _ => TrustBundle::parse(text).map_err(|why| {
                let about = "LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS";
                Fault::new(Code::BadVariable).in_phase(Phase::Start).about(about).because(why)
            }),
        }
    }

    /// Follows a file. Content that cannot be used changes nothing and is told once.
    pub(crate) fn follow(
        file: PathBuf,
        first: TrustBundle,
        every: Duration,
        recorder: Arc<Recorder>,
    ) -> Anchors {
        let (publish, anchors) = watch::channel(first);
        tokio::spawn(async move {
            let mut told: Option<String> = None;
            let mut seen = file.exists();
            loop {
                tokio::time::sleep(every).await;
                if publish.is_closed() {
                    return;
                }
                match bundle(&file) {
                    Ok(bundle) => {
                        (told, seen) = (None, true);
                        if publish.send_if_modified(|held| replace(held, &bundle)) {
                            let text = format!("{} trust anchors are in force now", bundle.anchors().len());
                            tracing::info!(file = %file.display(), anchors = bundle.anchors().len(), "trust anchors changed");
                            bundle
                                .warnings()
                                .iter()
                                .for_each(|warning| tracing::warn!("trust anchors: {warning}"));
                            recorder.note("identity", text, None);
                        }
                    }
                    // The controller gives a namespace its copy once it has a meshed pod; until then the text holds.
                    Err(_) if !seen && !file.exists() => {}
                    Err(fault) => {
                        let text = fault.to_string();
                        if told.as_ref() != Some(&text) {
                            tracing::warn!("the trust anchors stay as they are: {fault:?}");
                            recorder.note(
                                "identity",
                                "the trust anchors stay as they are".into(),
                                Some(&fault),
                            );
                            told = Some(text);
                        }
                    }
                }
            }
        });
        Anchors(anchors)
    }

    pub(crate) fn current(&self) -> TrustBundle {
        self.0.borrow().clone()
    }

    /// Waits until they are others than when this value was made, cloned or last waited on.
    pub(crate) async fn changed(&mut self) -> TrustBundle {
        if self.0.changed().await.is_err() {
            // Nobody will change them any more.
            std::future::pending::<()>().await;
        }
        self.0.borrow_and_update().clone()
    }
}

fn replace(held: &mut TrustBundle, bundle: &TrustBundle) -> bool {
    let other = held != bundle;
    if other {
        held.clone_from(bundle);
    }
    other
}

/// The anchors of a file, and those of other trust domains in the files beside it.
fn bundle(file: &Path) -> Result<TrustBundle, Fault> {
    let parse = |file: &Path| {
        let unusable = |why| {
            Fault::new(Code::AnchorsUnusable).in_phase(Phase::Certify).about(file.display()).because(why)
        };
        TrustBundle::parse(&read(file)?).map_err(unusable)
    };
    let mut bundle = parse(file)?;
    let beside = file.parent().and_then(|dir| std::fs::read_dir(dir).ok());
    for entry in beside.into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(domain) = name.to_str().and_then(foreign_domain) else { continue };
        let unusable =
            |why| Fault::new(Code::AnchorsUnusable).in_phase(Phase::Certify).about(domain).because(why);
        bundle = bundle.with_foreign(domain, parse(&entry.path())?).map_err(unusable)?;
    }
    Ok(bundle)
}

fn read(file: &Path) -> Result<String, Fault> {
    let unusable = || Fault::new(Code::AnchorsUnusable).in_phase(Phase::Certify).about(file.display());
    let size = std::fs::metadata(file).map_err(|e| unusable().because(e))?.len();
    if size > FILE_BYTES {
        return Err(unusable().fact("bytes", size).fact("allowed", FILE_BYTES));
    }
    std::fs::read_to_string(file).map_err(|e| unusable().because(e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_testkit::pki::Pki;

    #[test]
    fn a_file_wins_and_one_that_cannot_be_used_is_named() {
        let (here, there, dir) = (Pki::new(), Pki::new(), tempfile::tempdir().unwrap());
        let file = dir.path().join("ca-bundle.crt");
        let text = here.anchors_pem();
        // It is not there yet.
        assert_eq!(Anchors::first(Some(&file), &text).unwrap(), here.anchors());
        let fault = Anchors::first(Some(&file), "").unwrap_err();
        assert_eq!(fault.code(), Code::AnchorsUnusable);
        assert!(fault.record().subject.unwrap().ends_with("ca-bundle.crt"));

        std::fs::write(&file, there.anchors_pem()).unwrap();
        assert_eq!(Anchors::first(Some(&file), &text).unwrap(), there.anchors());
        // Half of a file is no reason to trust something else without a word.
        std::fs::write(&file, "-----BEGIN CERTIFICATE-----\nMII").unwrap();
        assert_eq!(Anchors::first(Some(&file), &text).unwrap_err().code(), Code::AnchorsUnusable);
        std::fs::File::create(&file).unwrap().set_len(FILE_BYTES + 1).unwrap();
        assert_eq!(read(&file).unwrap_err().code(), Code::AnchorsUnusable);

        // Another trust domain's, in a file beside it.
        std::fs::write(&file, &text).unwrap();
        let east = dir.path().join(weft_tls::bundle::foreign_key("east.example"));
        std::fs::write(&east, there.anchors_pem()).unwrap();
        let both = Anchors::first(Some(&file), "").unwrap();
        assert_eq!(both.foreign().map(|(domain, _)| domain).collect::<Vec<_>>(), ["east.example"]);
        std::fs::write(&east, "nonsense").unwrap();
        let fault = Anchors::first(Some(&file), "").unwrap_err();
        assert!(fault.record().subject.unwrap().ends_with("foreign.east.example.crt"));
    }
}
