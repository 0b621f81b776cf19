//! Finds NVRTC, cuBLASLt and NCCL: named by the user, on the loader's path, beside the driver, in a CUDA toolkit, in
//! conda's or pip's folders. Only the file system is searched; `python3` is run last, if nothing else was found.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use libloading::Library;

use super::probe::CudaVersion;

/// A library of CUDA that is not part of the driver.
struct CudaLibrary {
    /// In messages.
    name: &'static str,
    /// File name before the major version: `libnvrtc.so`.
    stem: &'static str,
    /// Variable that names the very file.
    variable: &'static str,
    /// Folder under `nvidia` in CUDA 12's pip packages; CUDA 13 has `cu13` for all.
    folder12: &'static str,
    /// pip's package for CUDA 13; the one for CUDA 12 ends in `-cu12`.
    package: &'static str,
    /// The major version of its own, if it does not have that of CUDA.
    major: Option<u32>,
}

const NVRTC: CudaLibrary = CudaLibrary {
    name: "NVRTC",
    stem: "libnvrtc.so",
    variable: "OFFSHOOT_NVRTC",
    folder12: "cuda_nvrtc",
    package: "nvidia-cuda-nvrtc",
    major: None,
};

const CUBLAS_LT: CudaLibrary = CudaLibrary {
    name: "cuBLASLt",
    stem: "libcublasLt.so",
    variable: "OFFSHOOT_CUBLASLT",
    folder12: "cublas",
    package: "nvidia-cublas",
    major: None,
};

/// Its package for CUDA 13 has the suffix too, and CUDA 12's folder.
const NCCL: CudaLibrary = CudaLibrary {
    name: "NCCL",
    stem: "libnccl.so",
    variable: "OFFSHOOT_NCCL",
    folder12: "nccl",
    package: "nvidia-nccl-cu13",
    major: Some(2),
};

/// The CUDA version assumed without a driver.
const NEWEST: CudaVersion = CudaVersion { major: 13, minor: 0 };

/// Opens NVRTC by `open`, preferably of the driver's major version. The error is a sentence with the command that
/// installs it.
pub fn load_nvrtc<T>(driver: Option<CudaVersion>, open: impl Fn(&Path) -> Result<T, String>) -> Result<T, String> {
    NVRTC.load(driver.unwrap_or(NEWEST), open)
}

/// Opens cuBLASLt and leaves it open, so that its bindings, which know only its name, find it.
pub fn load_cublas_lt(driver: CudaVersion) -> Result<(), String> {
    std::mem::forget(CUBLAS_LT.load(driver, open)?);
    // SAFETY: opens and closes a library that is open by now.
    if unsafe { cudarc::cublaslt::sys::is_culib_present() } {
        Ok(())
    } else {
        Err("cuBLASLt was found, but not under the name of a version that is known (12 or 13)".into())
    }
}

/// Opens NCCL for good: threads of its own run its code also when nobody here has it open any more. The error is a
/// sentence with the command that installs it.
pub fn load_nccl(driver: CudaVersion) -> Result<Library, String> {
    NCCL.load(driver, |path| {
        std::mem::forget(open(path)?);
        open(path)
    })
}

/// Opens a library of CUDA by path, or by a name on the loader's path. The error is the loader's own text.
pub fn open(path: &Path) -> Result<Library, String> {
    // SAFETY: the initialisers of CUDA's libraries are safe to run.
    unsafe { Library::new(path) }.map_err(loaders_text)
}

/// The loader's own error text; libloading's only names the call.
pub fn loaders_text(error: libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

impl CudaLibrary {
    /// Tries `open` on one place after another.
    fn load<T>(&self, driver: CudaVersion, open: impl Fn(&Path) -> Result<T, String>) -> Result<T, String> {
        if let Some(file) = env::var_os(self.variable).filter(|file| !file.is_empty()) {
            return open(Path::new(&file)).map_err(|why| format!("{} names no usable library: {why}", self.variable));
        }
        let names = self.file_names(driver);
        let try_all = |paths: Vec<PathBuf>| {
            paths.into_iter().find_map(|path| {
                let opened = open(&path).inspect_err(|why| log::debug!("{}: {why}", self.name)).ok()?;
                log::debug!("{} is {}", self.name, path.display());
                Some(opened)
            })
        };
        let files = |folders: Vec<PathBuf>| {
            let in_folders = |name: &String| folders.iter().map(|folder| folder.join(name)).collect::<Vec<_>>();
            names.iter().flat_map(in_folders).filter(|path| path.is_file()).collect::<Vec<_>>()
        };
        try_all(names.iter().map(PathBuf::from).collect())
            .or_else(|| try_all(files([beside_driver(), toolkits(), conda(), self.packages(site_folders())].concat())))
            .or_else(|| try_all(files(self.packages(python_folders()))))
            .ok_or_else(|| self.missing(driver))
    }

    /// `libnvrtc.so.13`, ...: the driver's major version first, then the others from the newest, then whichever.
    fn file_names(&self, driver: CudaVersion) -> Vec<String> {
        if let Some(major) = self.major {
            return vec![format!("{}.{major}", self.stem), self.stem.to_string()];
        }
        let others = (12..=NEWEST.major.max(driver.major)).rev().filter(|&major| major != driver.major);
        let versions = std::iter::once(driver.major).chain(others).map(|major| format!("{}.{major}", self.stem));
        versions.chain([self.stem.to_string()]).collect()
    }

    /// Where pip puts this library below folders of Python packages.
    fn packages(&self, site_folders: Vec<PathBuf>) -> Vec<PathBuf> {
        let inside = |site: PathBuf| ["cu13", self.folder12].map(|folder| site.join("nvidia").join(folder).join("lib"));
        site_folders.into_iter().flat_map(inside).collect()
    }

    fn missing(&self, driver: CudaVersion) -> String {
        let package = match driver.major {
            13.. => self.package.to_owned(),
            _ => format!("{}-cu12", self.package.trim_end_matches("-cu13")),
        };
        format!(
            "{} is missing (looked for {} on the loader's path, beside the driver, in CUDA's toolkits and in conda's \
             and pip's folders): install it with `pip install {package}`, or set {} to its file",
            self.name,
            self.file_names(driver).join(", "),
            self.variable
        )
    }
}

/// The folder from which this process has loaded libcuda.
fn beside_driver() -> Vec<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let path = maps.lines().filter_map(|line| line.find('/').map(|start| Path::new(&line[start..])));
    let driver =
        path.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libcuda.so")));
    driver.filter_map(|path| path.parent().map(Path::to_path_buf)).take(1).collect()
}

/// The libraries' folders of CUDA toolkits.
fn toolkits() -> Vec<PathBuf> {
    let mut roots: Vec<PathBuf> = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(folder_in).collect();
    roots.extend(["/usr/local/cuda", "/opt/cuda"].map(PathBuf::from));
    roots.extend(children(Path::new("/usr/local"), "cuda-").into_iter().rev());
    roots.into_iter().flat_map(|root| ["lib64", "lib"].map(|folder| root.join(folder))).collect()
}

/// Where conda keeps libraries.
fn conda() -> Vec<PathBuf> {
    folder_in("CONDA_PREFIX").map(|prefix| prefix.join("lib")).into_iter().collect()
}

/// Folders of Python packages, from the nearest to the system's.
fn site_folders() -> Vec<PathBuf> {
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(folder_in);
    let home = folder_in("HOME").map(|home| home.join(".local"));
    let roots = environments.chain(home).chain(["/usr/local", "/usr"].map(PathBuf::from));
    let pythons = roots.flat_map(|root| children(&root.join("lib"), "python3"));
    pythons.flat_map(|python| ["site-packages", "dist-packages"].map(|folder| python.join(folder))).collect()
}

/// The folders of packages that `python3` itself names: environments whose launcher is a script, Pythons in unusual
/// places.
fn python_folders() -> Vec<PathBuf> {
    let script =
        "import site, sys; print('\\n'.join(site.getsitepackages() + [site.getusersitepackages()] + sys.path))";
    let Ok(answer) = Command::new("python3").args(["-c", script]).output() else { return Vec::new() };
    let lines = String::from_utf8_lossy(&answer.stdout).into_owned();
    lines.lines().filter(|line| !line.is_empty()).map(PathBuf::from).collect()
}

fn folder_in(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Folders inside `folder` whose names start so, sorted.
fn children(folder: &Path, start: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let fitting = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(start));
    let mut paths: Vec<PathBuf> = fitting.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}
