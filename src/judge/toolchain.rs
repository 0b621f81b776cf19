//! The programs that run candidates: the Python interpreter and the C++ compiler of this machine, found on the search
//! path.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::error::{Error, Result};

/// A Python 3 interpreter.
#[derive(Clone, Debug)]
pub struct Interpreter {
    /// The program itself, not a wrapper around it.
    pub path: PathBuf,
    pub version: String,
    /// Its library and installed packages.
    pub readable: Vec<PathBuf>,
    /// The folders of installed packages among `readable`, for an interpreter started without its `site` module.
    pub packages: Vec<String>,
}

/// A C++ compiler.
#[derive(Clone, Debug)]
pub struct CppCompiler {
    pub path: PathBuf,
    pub version: String,
}

/// What an interpreter reports about itself.
#[derive(Deserialize)]
struct InterpreterFacts {
    executable: PathBuf,
    version: String,
    folders: Vec<PathBuf>,
    packages: Vec<String>,
}

const ASK: &str = "import json, sys\n\
    print(json.dumps({'executable': sys.executable, 'version': sys.version.split()[0],\n\
    'folders': [sys.prefix, sys.base_prefix, *sys.path],\n\
    'packages': [path for path in sys.path if path.endswith(('site-packages', 'dist-packages'))]}))";

impl Interpreter {
    /// Finds the interpreter: `OFFSHOOT_PYTHON` if set, else `python3` on the search path, or `python` if that is
    /// Python 3.
    pub fn find() -> Result<Interpreter> {
        let said = match std::env::var_os("OFFSHOOT_PYTHON") {
            Some(named) => ask(Path::new(&named)).ok_or_else(|| {
                Error::value("OFFSHOOT_PYTHON", "a working Python 3", Path::new(&named).display().to_string())
            })?,
            None => ["python3", "python"]
                .into_iter()
                .filter_map(on_search_path)
                .find_map(|path| ask(&path))
                .ok_or_else(|| Error::value("Python", "a `python3` on the search path", "none"))?,
        };
        let mut readable: Vec<PathBuf> =
            said.folders.into_iter().filter(|folder| folder.is_absolute() && folder.exists()).collect();
        readable.sort();
        readable.dedup_by(|inner, outer| inner.starts_with(outer.as_path()));
        let path = std::fs::canonicalize(&said.executable).map_err(Error::io(&said.executable, "find"))?;
        Ok(Interpreter { path, version: said.version, readable, packages: said.packages })
    }
}

fn ask(path: &Path) -> Option<InterpreterFacts> {
    let output = Command::new(path).args(["-I", "-c", ASK]).stdin(Stdio::null()).output().ok()?;
    let said: InterpreterFacts = serde_json::from_slice(&output.stdout).ok()?;
    said.version.starts_with("3.").then_some(said)
}

impl CppCompiler {
    /// Finds `g++` or `clang++` on the search path.
    pub fn find() -> Result<CppCompiler> {
        let found = ["g++", "clang++"].into_iter().find_map(|name| {
            let path = on_search_path(name)?;
            let output = Command::new(&path).arg("--version").stdin(Stdio::null()).output().ok()?;
            let version = String::from_utf8_lossy(&output.stdout).lines().next()?.to_string();
            output.status.success().then_some(CppCompiler { path, version })
        });
        found.ok_or_else(|| Error::value("C++", "a `g++` or `clang++` on the search path", "none"))
    }
}

/// The first executable file of that name on the search path.
pub(super) fn on_search_path(name: &str) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let executable =
        |path: &PathBuf| path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(name)).find(executable)
}
