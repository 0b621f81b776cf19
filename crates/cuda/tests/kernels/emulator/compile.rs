//! Compiles the kernels of a unit for the CPU, once in a process, and once for many: libraries are kept below
//! target/tmp by a hash of everything that affects them. The emulator itself (emulator.cpp) is a library that all
//! others need.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use libloading::Library;
use offshoot_cuda::compile::cache::{Key, write_whole};
use offshoot_cuda::compile::unit::Unit;
use offshoot_cuda::compile::units::HEADERS;
use regex::Regex;

use super::translate::{pattern, translated};

/// What all libraries are compiled with. A kernel may have the name of a function of the C library, and is meant all
/// the same. Threads of a kernel stay on one thread of the system, so the emulator's variables of a thread have a fixed
/// place.
const FLAGS: [&str; 12] = [
    "-std=c++17",
    "-w",
    "-shared",
    "-fPIC",
    "-U_FORTIFY_SOURCE",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-fno-gnu-unique",
    "-Wl,-Bsymbolic",
    "-ftls-model=initial-exec",
    "-D__CUDA_ARCH__=900",
    "-D__CUDA_ARCH_FEAT_SM90_ALL",
];

/// Files of this folder that take the place of those of `kernels/`, or that all kernels include.
const OWN: [&str; 6] = [
    "cuda.hpp",
    "emulator.hpp",
    "attention/wgmma.cuh",
    "experts/products.cuh",
    "fp8/products.cuh",
    "four_bit/products.cuh",
];

/// The compiler, the sources that all units share, and the emulator.
struct Workshop {
    /// "g++ (Debian 12.2.0-14) 12.2.0".
    compiler: String,
    /// Where libraries are kept.
    kept: PathBuf,
    /// The headers, translated.
    headers: Vec<(&'static str, String)>,
    /// A folder with their files.
    folder: PathBuf,
    /// The library of the emulator.
    emulator: PathBuf,
}

/// A library that is compiled by whoever asks first.
type Once = Arc<OnceLock<&'static Library>>;

static WORKSHOP: LazyLock<Option<Workshop>> = LazyLock::new(Workshop::open);

/// The library of a unit's kernels; `None`, and a word on standard error, where there is no C++ compiler. A thread that
/// asks while another compiles it waits.
pub fn library(unit: &Unit) -> Option<&'static Library> {
    static ALL: LazyLock<Mutex<HashMap<Unit, Once>>> = LazyLock::new(Mutex::default);
    let Some(workshop) = &*WORKSHOP else {
        crate::skip::skipped("there is no g++");
        return None;
    };
    let own = Arc::clone(ALL.lock().expect("nobody panics with it").entry(unit.clone()).or_default());
    Some(own.get_or_init(|| open(&workshop.compiled(unit))))
}

/// The function of a library that launches this kernel.
pub fn launcher_name(kernel: &str) -> String {
    format!("launch_{kernel}")
}

/// Loads a library for the life of the process.
fn open(path: &Path) -> &'static Library {
    // SAFETY: it was compiled from our own sources, and does nothing when it is loaded but fill tables.
    let library = unsafe { Library::new(path) }.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Box::leak(Box::new(library))
}

/// A file of the project.
fn read(path: &str) -> String {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn own(name: &str) -> String {
    read(&format!("crates/cuda/tests/kernels/emulator/{name}"))
}

fn write(path: &Path, text: &str) {
    write_whole(path, text.as_bytes()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

impl Workshop {
    fn open() -> Option<Self> {
        let version = Command::new("g++").arg("--version").output().ok()?;
        let compiler = String::from_utf8_lossy(&version.stdout).lines().next().unwrap_or_default().to_string();
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated");
        let of_kernels = HEADERS.iter().filter(|header| !OWN.contains(&header.name));
        let of_kernels = of_kernels.map(|header| (header.name, translated(&read(&format!("kernels/{}", header.name)))));
        let headers: Vec<_> = OWN.iter().map(|name| (*name, own(name))).chain(of_kernels).collect();
        let key = Key::of(headers.iter().flat_map(|(name, text)| [*name, text.as_str()]));
        let folder = kept.join(format!("headers-{key}"));
        headers.iter().for_each(|(name, text)| write(&folder.join(name), text));
        let mut workshop = Self { compiler, kept, headers, folder, emulator: PathBuf::new() };
        // Most of the time is spent in it; kernels are compiled more often than they repay an optimisation.
        workshop.emulator = workshop.made("emulator", &own("emulator.cpp"), &["-O3".into()]);
        Some(workshop)
    }

    /// The library of a unit.
    fn compiled(&self, unit: &Unit) -> PathBuf {
        static KERNEL: LazyLock<Regex> = LazyLock::new(|| {
            let bounds = r"__launch_bounds__\((?:[^()]|\([^()]*\))*\)\s*";
            let cluster = r"__cluster_dims__\([^()]*\)\s*";
            pattern(&format!(r#"extern "C" __global__ void\s+(?:{bounds})?(?:{cluster})?(\w+)\("#))
        });
        let source = read(&format!("kernels/{}", unit.source.name));
        let launchers: Vec<String> = KERNEL.captures_iter(&source).map(|kernel| launcher(&kernel[1])).collect();
        let text = format!("#include \"cuda.hpp\"\n{}\n{}", translated(&source), launchers.concat());
        let defines = unit.defines.iter().map(|(name, value)| format!("-D{name}={value}"));
        let emulator = self.emulator.file_name().expect("a file").to_string_lossy();
        // Beside each other, whatever the folder is called.
        let linked = [format!("-l:{emulator}"), "-Wl,-rpath,$ORIGIN".into()];
        let options: Vec<String> = ["-O1".into()].into_iter().chain(defines).chain(linked).collect();
        self.made(unit.source.name, &text, &options)
    }

    /// The library of this source, made where it is not there.
    fn made(&self, name: &str, text: &str, options: &[String]) -> PathBuf {
        let headers = self.headers.iter().flat_map(|(name, text)| [*name, text.as_str()]);
        let options: Vec<&str> = FLAGS.into_iter().chain(options.iter().map(String::as_str)).collect();
        let all = [self.compiler.as_str(), text].into_iter().chain(options.iter().copied()).chain(headers);
        let name = format!("{}-{}", name.replace(['/', '.'], "-"), Key::of(all));
        let (library, source) = (self.kept.join(format!("{name}.so")), self.kept.join(format!("{name}.cpp")));
        if library.exists() {
            return library;
        }
        write(&source, text);
        let unfinished = tempfile::NamedTempFile::new_in(&self.kept).expect("room for a library").into_temp_path();
        let mut command = Command::new("g++");
        command.arg("-I").arg(&self.folder).arg("-L").arg(&self.kept).arg(&source);
        let output = command.args(&options).arg("-o").arg(&unfinished).output().expect("g++ runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{} {}:\n{said}", source.display(), options.join(" "));
        // Whoever loads it finds it whole.
        unfinished.persist(&library).unwrap_or_else(|error| panic!("{}: {error}", library.display()));
        library
    }
}

fn launcher(kernel: &str) -> String {
    let name = launcher_name(kernel);
    format!(
        r#"
extern "C" const char* {name}(const emulated::Launch* launch, void*** args) {{
    return emulated::run(*launch, [](void** args) {{ emulated::call({kernel}, args); }}, args);
}}
"#
    )
}
