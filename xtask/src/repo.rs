//! What the checks look at: the packages and the text files of the repository.

use crate::Result;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

pub(crate) struct Repo {
    pub(crate) root: PathBuf,
    pub(crate) packages: Vec<Package>,
    pub(crate) files: Vec<File>,
}

pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) license: Option<String>,
    /// May it be uploaded to a registry?
    pub(crate) published: bool,
    pub(crate) dependencies: Vec<Dependency>,
}

pub(crate) struct Dependency {
    pub(crate) name: String,
    /// Only for tests or build scripts.
    pub(crate) development: bool,
    /// One of our own packages.
    pub(crate) ours: bool,
}

pub(crate) struct File {
    /// From the root, with slashes.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Larger files are data, not text that people write.
const MAX_FILE: u64 = 2 * 1024 * 1024;

impl Repo {
    pub(crate) fn load() -> Result<Self> {
        let root =
            Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("xtask lies in the root")?.to_path_buf();
        let mut files = Vec::new();
        read(&root, &root, &mut files)?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Repo { packages: packages(&root)?, root, files })
    }

    pub(crate) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    pub(crate) fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.path.ends_with(".rs"))
    }
}

fn packages(root: &Path) -> Result<Vec<Package>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root)
        .output()?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let text = |value: &serde_json::Value| value.as_str().map(str::to_string);
    let list = |value: &serde_json::Value| value.as_array().cloned().unwrap_or_default();
    let packages = list(&metadata["packages"]).into_iter().map(|package| {
        let dependencies = list(&package["dependencies"]).into_iter().map(|dependency| Dependency {
            name: text(&dependency["name"]).unwrap_or_default(),
            development: !dependency["kind"].is_null(),
            ours: dependency["path"].is_string(),
        });
        Package {
            name: text(&package["name"]).unwrap_or_default(),
            license: text(&package["license"]),
            published: !package["publish"].as_array().is_some_and(Vec::is_empty),
            dependencies: dependencies.collect(),
        }
    });
    Ok(packages.collect())
}

fn read(root: &Path, folder: &Path, files: &mut Vec<File>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        let name = entry.file_name();
        if kind.is_dir() {
            if name != ".git" && name != "target" && name != "corpus" {
                read(root, &path, files)?;
            }
        } else if kind.is_file()
            && name != ".git"
            && name != "Cargo.lock"
            && entry.metadata()?.len() <= MAX_FILE
        {
            // What is not UTF-8 is data.
            if let Ok(text) = fs::read_to_string(&path) {
                let relative = path.strip_prefix(root)?.to_string_lossy().replace('\\', "/");
                files.push(File { path: relative, text });
            }
        }
    }
    Ok(())
}
