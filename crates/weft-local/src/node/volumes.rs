//! Volumes: what each source puts on disk, and how it is exchanged under running containers.

use super::env::{Place, pod_field, resource_field};
use crate::runtime::launch::VolumeMount;
use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::{
        authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
        core::v1::{
            ConfigMap, Container, DownwardAPIVolumeFile, HostPathVolumeSource, KeyToPath, Pod, Secret,
            ServiceAccount, Volume, VolumeProjection,
        },
    },
};
use kube::{Api, Client, api::PostParams};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Component, Path, PathBuf},
    time::Duration,
};
use weft_fault::{Code, Fault, Phase};

/// The files of a volume by relative path.
pub(crate) type Payload = BTreeMap<String, PayloadFile>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PayloadFile {
    pub(crate) bytes: Vec<u8>,
    pub(crate) mode: u32,
}

/// The volumes of one pod on disk.
#[derive(Debug)]
pub(crate) struct Volumes {
    dir: PathBuf,
    place: Place,
    /// What was last written, so that nothing is touched in vain.
    written: BTreeMap<String, Payload>,
    tokens: BTreeMap<(String, String), Token>,
}

#[derive(Clone, Debug)]
struct Token {
    text: String,
    renew_at: Timestamp,
}

impl Volumes {
    /// `dir` is the pod's own, on a file system in memory.
    pub(crate) fn new(dir: &Path, place: Place) -> Self {
        Volumes { dir: of(dir), place, written: BTreeMap::new(), tokens: BTreeMap::new() }
    }

    /// Makes every volume of the pod, or brings those with sources up to date.
    pub(crate) async fn sync(&mut self, client: &Client, pod: &Pod) -> Result<(), Fault> {
        for volume in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
            let dir = self.dir.join(&volume.name);
            if let Some(payload) = self.payload(client, pod, volume).await? {
                if self.written.get(&volume.name) != Some(&payload) {
                    write_atomically(&dir, &payload).map_err(|e| unusable(volume, e))?;
                    self.written.insert(volume.name.clone(), payload);
                }
            } else if volume.empty_dir.is_some() {
                empty_dir(&dir, volume).map_err(|e| unusable(volume, e))?;
            } else if let Some(host) = &volume.host_path {
                host_path(host).map_err(|e| unusable(volume, e).fact("path", &host.path))?;
            } else {
                return Err(Fault::new(Code::BadManifest)
                    .in_phase(Phase::Start)
                    .about(&volume.name)
                    .fact("volume", "of a type that one machine does not have"));
            }
        }
        Ok(())
    }

    /// When something must be done again; sources are looked at this often, tokens renewed in time.
    pub(crate) fn next_sync(&self) -> Duration {
        const LOOK: Duration = Duration::from_secs(5);
        let now = Timestamp::now();
        let token = self.tokens.values().map(|t| t.renew_at.duration_since(now)).min();
        token
            .and_then(|left| Duration::try_from(left).ok())
            .map_or(LOOK, |left| left.clamp(Duration::from_secs(1), LOOK))
    }

    /// The files of a volume that has sources; `None` for the other types.
    async fn payload(
        &mut self,
        client: &Client,
        pod: &Pod,
        volume: &Volume,
    ) -> Result<Option<Payload>, Fault> {
        let mut payload = Payload::new();
        if let Some(source) = &volume.config_map {
            let data = config_map(client, pod, &source.name).await?;
            let from = Keys::new("ConfigMap", &source.name, source.optional, source.items.as_deref());
            project(&mut payload, data, &from, mode(source.default_mode))?;
        } else if let Some(source) = &volume.secret {
            let name = source.secret_name.clone().unwrap_or_default();
            let data = secret(client, pod, &name).await?;
            let from = Keys::new("Secret", &name, source.optional, source.items.as_deref());
            project(&mut payload, data, &from, mode(source.default_mode))?;
        } else if let Some(source) = &volume.downward_api {
            downward(&mut payload, pod, self.place, source.items.as_deref(), mode(source.default_mode))?;
        } else if let Some(source) = &volume.projected {
            for part in source.sources.iter().flatten() {
                self.projected(&mut payload, client, pod, part, mode(source.default_mode)).await?;
            }
        } else {
            return Ok(None);
        }
        Ok(Some(payload))
    }

    async fn projected(
        &mut self,
        payload: &mut Payload,
        client: &Client,
        pod: &Pod,
        part: &VolumeProjection,
        mode: u32,
    ) -> Result<(), Fault> {
        if let Some(source) = &part.config_map {
            let data = config_map(client, pod, &source.name).await?;
            let from = Keys::new("ConfigMap", &source.name, source.optional, source.items.as_deref());
            project(payload, data, &from, mode)?;
        }
        if let Some(source) = &part.secret {
            let data = secret(client, pod, &source.name).await?;
            let from = Keys::new("Secret", &source.name, source.optional, source.items.as_deref());
            project(payload, data, &from, mode)?;
        }
        if let Some(source) = &part.downward_api {
            downward(payload, pod, self.place, source.items.as_deref(), mode)?;
        }
        if let Some(source) = &part.service_account_token {
            let audience = source.audience.clone().unwrap_or_default();
            let bytes = self.token(client, pod, &audience, source.expiration_seconds).await?.into_bytes();
            insert(payload, &source.path, PayloadFile { bytes, mode })?;
        }
        Ok(())
    }

    /// The pod's token for an audience, new at 80 % of its life.
    async fn token(
        &mut self,
        client: &Client,
        pod: &Pod,
        audience: &str,
        seconds: Option<i64>,
    ) -> Result<String, Fault> {
        let seconds = seconds.unwrap_or(3600);
        let key = (audience.to_string(), seconds.to_string());
        let now = Timestamp::now();
        if let Some(token) = self.tokens.get(&key).filter(|t| now < t.renew_at) {
            return Ok(token.text.clone());
        }
        let account = pod
            .spec
            .as_ref()
            .and_then(|s| s.service_account_name.clone())
            .unwrap_or_else(|| "default".into());
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: Some(audience).filter(|a| !a.is_empty()).map(str::to_string).into_iter().collect(),
                expiration_seconds: Some(seconds),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("Pod".into()),
                    name: pod.metadata.name.clone(),
                    uid: pod.metadata.uid.clone(),
                }),
            },
            ..TokenRequest::default()
        };
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace(pod));
        let answer = accounts
            .create_token_request(&account, &PostParams::default(), &request)
            .await
            .map_err(|e| source_failed("ServiceAccount", &account, e))?;
        let Some(status) = answer.status else {
            return Err(Fault::new(Code::AnswerInvalid)
                .in_phase(Phase::Start)
                .fact("TokenRequest", "no status"));
        };
        let life = Duration::try_from(status.expiration_timestamp.0.duration_since(now)).unwrap_or_default();
        let renew_at = now + life.mul_f64(0.8);
        self.tokens.insert(key, Token { text: status.token.clone(), renew_at });
        Ok(status.token)
    }

    /// What to mount where for one container.
    pub(crate) fn mounts(
        &self,
        pod: &Pod,
        container: &Container,
        vars: &[(String, String)],
    ) -> Result<Vec<VolumeMount>, Fault> {
        let volumes: BTreeMap<&str, &Volume> =
            pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()).map(|v| (v.name.as_str(), v)).collect();
        let mut mounts = Vec::new();
        for mount in container.volume_mounts.iter().flatten() {
            let refuse = |what: &str| {
                let fault = Fault::new(Code::BadManifest).in_phase(Phase::Start).about(&container.name);
                fault.fact("volumeMount", &mount.name).fact("problem", what)
            };
            let volume = volumes.get(mount.name.as_str()).ok_or_else(|| refuse("no such volume"))?;
            let base = match &volume.host_path {
                Some(host) => fs::canonicalize(&host.path).map_err(|e| unusable(volume, e))?,
                None => self.dir.join(&volume.name),
            };
            let sub = match (&mount.sub_path, &mount.sub_path_expr) {
                (Some(sub), _) => sub.clone(),
                (None, Some(expr)) => super::env::expand_all(std::slice::from_ref(expr), vars).remove(0),
                (None, None) => String::new(),
            };
            let source = below(&base, &sub, volume.empty_dir.is_some()).map_err(|e| unusable(volume, e))?;
            // Sources that the agent rewrites are never writable.
            let fed = volume.host_path.is_none() && volume.empty_dir.is_none();
            let read_only = fed || mount.read_only == Some(true);
            mounts.push(VolumeMount { source, target: PathBuf::from(&mount.mount_path), read_only });
        }
        // Outer before inner, or the outer hides the inner.
        mounts.sort_by_key(|m| m.target.components().count());
        Ok(mounts)
    }
}

/// `sub` within `base`, which it may not leave, not even by symbolic links.
fn below(base: &Path, sub: &str, create: bool) -> io::Result<PathBuf> {
    if sub.is_empty() {
        return Ok(base.to_path_buf());
    }
    let outside = || io::Error::new(io::ErrorKind::InvalidInput, format!("subPath {sub} leaves the volume"));
    if !Path::new(sub).components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir)) {
        return Err(outside());
    }
    let path = base.join(sub);
    if create && !path.exists() {
        fs::create_dir_all(&path)?;
    }
    let (base, path) = (fs::canonicalize(base)?, fs::canonicalize(path)?);
    if path.starts_with(&base) { Ok(path) } else { Err(outside()) }
}

fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or("default")
}

fn mode(mode: Option<i32>) -> u32 {
    mode.and_then(|m| u32::try_from(m).ok()).unwrap_or(0o644)
}

async fn config_map(
    client: &Client,
    pod: &Pod,
    name: &str,
) -> Result<Option<BTreeMap<String, Vec<u8>>>, Fault> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace(pod));
    let found = api.get_opt(name).await.map_err(|e| source_failed("ConfigMap", name, e))?;
    Ok(found.map(|m| config_map_data(&m)))
}

/// The keys of a ConfigMap, text and binary.
pub(crate) fn config_map_data(map: &ConfigMap) -> BTreeMap<String, Vec<u8>> {
    let text = map.data.iter().flatten().map(|(k, v)| (k.clone(), v.clone().into_bytes()));
    let binary = map.binary_data.iter().flatten().map(|(k, ByteString(v))| (k.clone(), v.clone()));
    text.chain(binary).collect()
}

async fn secret(client: &Client, pod: &Pod, name: &str) -> Result<Option<BTreeMap<String, Vec<u8>>>, Fault> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace(pod));
    let found = api.get_opt(name).await.map_err(|e| source_failed("Secret", name, e))?;
    Ok(found.map(|s| s.data.into_iter().flatten().map(|(k, ByteString(v))| (k, v)).collect()))
}

pub(crate) fn source_failed(kind: &'static str, name: &str, error: kube::Error) -> Fault {
    Fault::new(Code::VolumeMissing).in_phase(Phase::Start).fact(kind, name).because(error)
}

/// Which keys of a source go where.
struct Keys<'a> {
    kind: &'static str,
    name: &'a str,
    optional: bool,
    items: Option<&'a [KeyToPath]>,
}

impl<'a> Keys<'a> {
    fn new(
        kind: &'static str,
        name: &'a str,
        optional: Option<bool>,
        items: Option<&'a [KeyToPath]>,
    ) -> Self {
        Keys { kind, name, optional: optional == Some(true), items }
    }
    fn missing(&self) -> Fault {
        Fault::new(Code::VolumeMissing).in_phase(Phase::Start).fact(self.kind, self.name)
    }
}

fn project(
    payload: &mut Payload,
    data: Option<BTreeMap<String, Vec<u8>>>,
    from: &Keys<'_>,
    default_mode: u32,
) -> Result<(), Fault> {
    let Some(data) = data else {
        return if from.optional { Ok(()) } else { Err(from.missing()) };
    };
    let Some(items) = from.items.filter(|i| !i.is_empty()) else {
        for (key, bytes) in data {
            insert(payload, &key, PayloadFile { bytes, mode: default_mode })?;
        }
        return Ok(());
    };
    for item in items {
        match data.get(&item.key) {
            Some(bytes) => {
                let mode = item.mode.and_then(|m| u32::try_from(m).ok()).unwrap_or(default_mode);
                insert(payload, &item.path, PayloadFile { bytes: bytes.clone(), mode })?;
            }
            None if from.optional => {}
            None => return Err(from.missing().fact("key", &item.key)),
        }
    }
    Ok(())
}

fn downward(
    payload: &mut Payload,
    pod: &Pod,
    place: Place,
    items: Option<&[DownwardAPIVolumeFile]>,
    default_mode: u32,
) -> Result<(), Fault> {
    for item in items.unwrap_or_default() {
        let text = match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => pod_field(pod, place, field)?,
            (None, Some(resource)) => resource_field(pod, &Container::default(), resource),
            (None, None) => continue,
        };
        let mode = item.mode.and_then(|m| u32::try_from(m).ok()).unwrap_or(default_mode);
        insert(payload, &item.path, PayloadFile { bytes: text.into_bytes(), mode })?;
    }
    Ok(())
}

fn insert(payload: &mut Payload, path: &str, file: PayloadFile) -> Result<(), Fault> {
    let inside = !path.is_empty()
        && !path.starts_with("..")
        && Path::new(path).components().all(|c| matches!(c, Component::Normal(_)));
    if !inside {
        let fault = Fault::new(Code::BadManifest).in_phase(Phase::Start);
        return Err(fault.fact("path", path).fact("problem", "it must be relative and stay in the volume"));
    }
    payload.insert(path.to_string(), file);
    Ok(())
}

fn unusable(volume: &Volume, error: io::Error) -> Fault {
    Fault::new(Code::VolumeMissing).in_phase(Phase::Start).fact("volume", &volume.name).because(error)
}

/// An `emptyDir`: everything of the pod's is in memory anyway, so a size limit is all that sets one apart.
/// Where a pod's volumes are.
fn of(pod_dir: &Path) -> PathBuf {
    pod_dir.join("volumes")
}

/// Unmounts the volumes of a pod that have a file system of their own.
pub(super) fn unmount(pod_dir: &Path) {
    for volume in fs::read_dir(of(pod_dir)).into_iter().flatten().flatten() {
        // Refused where nothing is mounted.
        let _ = weft_net::mount::detach(&volume.path());
    }
}

fn empty_dir(dir: &Path, volume: &Volume) -> io::Result<()> {
    if dir.exists() {
        return Ok(());
    }
    fs::create_dir_all(dir)?;
    let limit = volume.empty_dir.as_ref().and_then(|e| e.size_limit.as_ref()).map(|q| q.0.as_str());
    if let Some(bytes) = limit.and_then(super::env::quantity).filter(|b| *b >= 1.0) {
        weft_net::mount::tmpfs(dir, &format!("mode=777,size={bytes:.0}"))?;
    }
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777))
}

fn host_path(source: &HostPathVolumeSource) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    let path = Path::new(&source.path);
    let kind = source.type_.as_deref().unwrap_or_default();
    match kind {
        "DirectoryOrCreate" => fs::create_dir_all(path)?,
        "FileOrCreate" if !path.exists() => drop(fs::File::create(path)?),
        _ => {}
    }
    let meta = fs::metadata(path)?;
    let fits = match kind {
        "Directory" | "DirectoryOrCreate" => meta.is_dir(),
        "File" | "FileOrCreate" => meta.is_file(),
        "Socket" => meta.file_type().is_socket(),
        "CharDevice" => meta.file_type().is_char_device(),
        "BlockDevice" => meta.file_type().is_block_device(),
        _ => true,
    };
    if fits { Ok(()) } else { Err(io::Error::other(format!("it is not of type {kind}"))) }
}

/// Writes the files so that a reader sees all old or all new ones: the entries are links through `..data`, itself a link,
/// which one rename exchanges. (The layout is kubelet's; programs watch for `..data`.)
pub(crate) fn write_atomically(dir: &Path, payload: &Payload) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
    let data = dir.join("..data");
    let old = fs::read_link(&data).ok();
    let number =
        old.as_ref().and_then(|o| o.to_str()?.strip_prefix("..")?.parse::<u64>().ok()).map_or(0, |n| n + 1);
    let version = format!("..{number}");
    let new = dir.join(&version);
    // Left by a run that was cut short.
    if new.exists() {
        fs::remove_dir_all(&new)?;
    }
    fs::create_dir(&new)?;
    for (path, file) in payload {
        let path = new.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&path, &file.bytes)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(file.mode))?;
    }
    let next = dir.join("..data_next");
    let _ = fs::remove_file(&next);
    symlink(&version, &next)?;
    fs::rename(&next, &data)?;

    let entries: BTreeSet<&str> = payload.keys().filter_map(|p| p.split('/').next()).collect();
    for entry in &entries {
        let link = dir.join(entry);
        if fs::symlink_metadata(&link).is_err() {
            symlink(Path::new("..data").join(entry), link)?;
        }
    }
    for found in fs::read_dir(dir)?.flatten() {
        let name = found.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with("..") && !entries.contains(name.as_ref()) {
            fs::remove_file(found.path())?;
        }
    }
    match old {
        Some(old) => fs::remove_dir_all(dir.join(old)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn payload(files: &[(&str, &str)]) -> Payload {
        files
            .iter()
            .map(|(p, t)| (p.to_string(), PayloadFile { bytes: t.as_bytes().to_vec(), mode: 0o640 }))
            .collect()
    }

    #[test]
    fn updates_exchange_all_files_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("v");
        write_atomically(&dir, &payload(&[("a", "1"), ("sub/b", "2"), ("gone", "x")])).unwrap();
        assert_eq!(fs::read_to_string(dir.join("sub/b")).unwrap(), "2");
        assert_eq!(fs::metadata(dir.join("a")).unwrap().permissions().mode() & 0o777, 0o640);
        let before = fs::read_link(dir.join("..data")).unwrap();
        write_atomically(&dir, &payload(&[("a", "3"), ("sub/c", "4")])).unwrap();
        assert_eq!(fs::read_to_string(dir.join("a")).unwrap(), "3");
        assert!(!dir.join("gone").exists() && !dir.join("sub/b").exists());
        assert!(!dir.join(before).exists());
        let left: Vec<_> = fs::read_dir(&dir).unwrap().flatten().map(|e| e.file_name()).collect();
        assert_eq!(left.len(), 4, "a, sub, ..data and its directory: {left:?}");
    }

    #[test]
    fn items_modes_optional_and_missing_keys() {
        let data =
            || Some(BTreeMap::from([("k".to_string(), b"v".to_vec()), ("l".to_string(), b"w".to_vec())]));
        let items: Vec<KeyToPath> =
            serde_json::from_value(json!([{"key": "k", "path": "x/y", "mode": 256}])).unwrap();
        let mut p = Payload::new();
        project(&mut p, data(), &Keys::new("Secret", "s", None, Some(&items)), 0o644).unwrap();
        assert_eq!(p["x/y"], PayloadFile { bytes: b"v".to_vec(), mode: 0o400 });
        assert_eq!(p.len(), 1);
        let absent: Vec<KeyToPath> = serde_json::from_value(json!([{"key": "n", "path": "n"}])).unwrap();
        let fault =
            project(&mut p, data(), &Keys::new("Secret", "s", None, Some(&absent)), 0o644).unwrap_err();
        assert!(fault.to_string().contains("key=n"), "{fault}");
        project(&mut p, data(), &Keys::new("Secret", "s", Some(true), Some(&absent)), 0o644).unwrap();
        project(&mut p, None, &Keys::new("Secret", "s", Some(true), None), 0o644).unwrap();
        assert!(project(&mut p, None, &Keys::new("Secret", "s", None, None), 0o644).is_err());
        assert!(insert(&mut p, "../x", PayloadFile { bytes: vec![], mode: 0 }).is_err());
        assert!(insert(&mut p, "/x", PayloadFile { bytes: vec![], mode: 0 }).is_err());
    }

    #[test]
    fn sub_paths_stay_inside() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("in")).unwrap();
        symlink("/etc", dir.path().join("out")).unwrap();
        assert!(below(dir.path(), "in", false).is_ok());
        assert!(below(dir.path(), "made/deep", true).is_ok());
        for bad in ["out", "../x", "/etc", "in/../../x", "absent"] {
            assert!(below(dir.path(), bad, false).is_err(), "{bad}");
        }
    }
}
