//! The programs that run candidates: the Python interpreter and the C++ compiler of this machine, found on the search
//! path.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use serde::Deserialize;

use offshoot_core::error::{Error, Result};
use offshoot_core::setting::PYTHON;

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
    /// All folders in which it looks for modules.
    pub(super) searched: Vec<PathBuf>,
    /// Itself as a shared library, if there is one that can be loaded into another program.
    pub(super) library: Option<PathBuf>,
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
    prefixes: Vec<PathBuf>,
    searched: Vec<PathBuf>,
    packages: Vec<String>,
    library: Option<PathBuf>,
}

/// Interpreters without a global lock, or built to trace references, have other objects than `sandbox::linux` knows.
const ASK: &str = "import json, os, sys, sysconfig\n\
    value = sysconfig.get_config_var\n\
    usual = sys.implementation.name == 'cpython' and not value('Py_GIL_DISABLED') and not value('Py_TRACE_REFS')\n\
    names = [value('INSTSONAME') or '', 'libpython%d.%d.so.1.0' % sys.version_info[:2]]\n\
    folders = [value('LIBDIR') or '', os.path.join(value('LIBDIR') or '', value('MULTIARCH') or '')]\n\
    paths = [os.path.join(folder, name) for folder in folders for name in names if '.so' in name]\n\
    library = next((path for path in paths if usual and os.path.isfile(path)), None)\n\
    print(json.dumps({'library': library, 'executable': sys.executable, 'version': sys.version.split()[0],\n\
    'prefixes': [sys.prefix, sys.base_prefix], 'searched': sys.path,\n\
    'packages': [path for path in sys.path if path.endswith(('site-packages', 'dist-packages'))]}))";

const LACKS: &str = "import importlib.util, json, sys\n\
    sys.path += json.loads(sys.argv[1])\n\
    print(json.dumps([name for name in sys.argv[2:] if not importlib.util.find_spec(name)]))";

impl Interpreter {
    /// Finds the interpreter: the `chosen` program or virtual environment (`--python`), else that of `OFFSHOOT_PYTHON`,
    /// else `python3` on the search path, or `python` if that is Python 3.
    pub fn find(chosen: Option<&Path>) -> Result<Interpreter> {
        let named = match chosen {
            Some(chosen) => Some((PYTHON.to_string(), chosen.to_path_buf())),
            None => {
                std::env::var_os("OFFSHOOT_PYTHON").map(|named| ("OFFSHOOT_PYTHON".to_string(), PathBuf::from(named)))
            }
        };
        let said = match named {
            Some((what, path)) => ask(&in_environment(&path)).ok_or_else(|| {
                let expected = "a working Python 3, or the folder of a virtual environment";
                Error::value(what, expected, path.display().to_string())
            })?,
            None => ["python3", "python"]
                .into_iter()
                .filter_map(on_search_path)
                .find_map(|path| ask(&path))
                .ok_or_else(|| Error::value("Python", "a `python3` on the search path", "none"))?,
        };
        let InterpreterFacts { executable, version, prefixes, searched, packages, library } = said;
        let real = std::fs::canonicalize(&executable).map_err(Error::io(&executable, "find"))?;
        // In a virtual environment, the link to the program is what leads to the environment's packages.
        let is_virtual = prefixes.first() != prefixes.last();
        let path = if is_virtual { executable } else { real.clone() };
        let mut readable: Vec<PathBuf> = prefixes.into_iter().chain(searched.iter().cloned()).chain([real]).collect();
        readable.retain(|path| path.is_absolute() && path.exists());
        readable.sort();
        readable.dedup_by(|inner, outer| inner.starts_with(outer.as_path()));
        Ok(Interpreter { path, version, readable, packages, searched, library })
    }

    /// The modules of these that it does not have. Nothing is imported.
    pub fn lacks(&self, modules: &[&str]) -> Result<Vec<String>> {
        if modules.is_empty() {
            return Ok(Vec::new());
        }
        let packages = serde_json::to_string(&self.packages).map_err(|error| Error::Internal(error.to_string()))?;
        let output = Command::new(&self.path)
            .args(["-I", "-S", "-c", LACKS, &packages])
            .args(modules)
            .stdin(Stdio::null())
            .output()
            .map_err(Error::io(&self.path, "run"))?;
        serde_json::from_slice(&output.stdout).map_err(|_| {
            let found = String::from_utf8_lossy(&output.stderr).trim().to_string();
            Error::value(self.path.display().to_string(), "a Python that names the modules it lacks", found)
        })
    }
}

/// The interpreter of a virtual environment's folder; any other path as it is.
fn in_environment(path: &Path) -> PathBuf {
    if path.is_dir() { path.join("bin/python") } else { path.to_path_buf() }
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

/// Programs that the commands of a language name, each found once.
#[derive(Debug, Default)]
pub(super) struct Tools(Mutex<HashMap<String, Tool>>);

/// A program of this machine.
#[derive(Clone, Debug)]
pub(super) struct Tool {
    pub path: PathBuf,
    /// What it reads besides the system's folders: the installation that it belongs to, and settings.
    pub readable: Vec<PathBuf>,
}

impl Tools {
    pub fn find(&self, name: &str) -> Result<Tool> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tool) = known.get(name) {
            return Ok(tool.clone());
        }
        let path = on_search_path(name)
            .ok_or_else(|| Error::value("a language's command", "a program of the search path", name))?;
        let tool = Tool::at(path);
        known.insert(name.to_string(), tool.clone());
        Ok(tool)
    }
}

impl Tool {
    fn at(path: PathBuf) -> Tool {
        let path = behind_rustup(&path).unwrap_or(path);
        let installation = path.canonicalize().ok().and_then(|real| installation(&real));
        let readable = installation.into_iter().chain(settings(&path)).collect();
        Tool { path, readable }
    }
}

/// The folders of settings of Java, which distributions keep apart from its library.
fn settings(program: &Path) -> Vec<PathBuf> {
    let is_java = program.file_name().is_some_and(|name| name.to_string_lossy().starts_with("java"));
    let entries = std::fs::read_dir("/etc").into_iter().flatten().flatten().filter(|_| is_java);
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("java-")).map(|entry| entry.path()).collect()
}

/// The program that rustup's proxy of that name would run. The proxy itself needs the home folder.
fn behind_rustup(path: &Path) -> Option<PathBuf> {
    let rustup = path.with_file_name("rustup");
    let is_proxy = path.canonicalize().ok()?.file_name()? == "rustup" && rustup.is_file();
    let mut ask = Command::new(rustup);
    let output = is_proxy.then(|| ask.arg("which").arg(path.file_name()?).stdin(Stdio::null()).output().ok())??;
    let real = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim_end());
    real.is_file().then_some(real)
}

/// The folder above a program's `bin`, if it holds an installation of its own (with a `lib`), never the home folder or
/// one above it.
fn installation(program: &Path) -> Option<PathBuf> {
    let folder = program.parent().filter(|folder| folder.ends_with("bin"))?.parent()?;
    let is_own = folder.join("lib").is_dir() && !folder.ends_with(".local");
    let home = std::env::var_os("HOME").and_then(|home| PathBuf::from(home).canonicalize().ok());
    let holds_home = home.is_some_and(|home| home.starts_with(folder));
    (is_own && !holds_home && !SYSTEM.iter().any(|system| folder == Path::new(system))).then(|| folder.to_path_buf())
}

/// The installations whose folders every program may read.
const SYSTEM: [&str; 3] = ["/", "/usr", "/usr/local"];

/// The first executable file of that name on the search path.
fn on_search_path(name: &str) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let executable =
        |path: &PathBuf| path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(name)).find(executable)
}
