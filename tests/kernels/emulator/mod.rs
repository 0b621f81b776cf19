//! Kernels of `kernels/` on the CPU: their sources with every function that wraps an instruction swizzled into a call
//! of `emulator.hpp`, compiled by the machine's C++ compiler. What a kernel is given and what it should compute is the
//! caller's.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use libloading::Library;
use offshoot::backend::cuda::compile::unit::Unit;
use offshoot::backend::cuda::compile::units::HEADERS;
use regex::Regex;
use tempfile::TempDir;

/// Where byte `byte` of the row in `slot` lies among the rows of a swizzled page (kernels/kv_page.cuh): the definition.
pub fn swizzled_place(slot: usize, byte: usize, row_bytes: usize) -> usize {
    if row_bytes > 256 {
        return byte / 128 * 32 * 128 + swizzled_place(slot, byte % 128, 128);
    }
    // Groups of chunks that fill rows, and rows until chunks meet in a bank.
    let group = [8, 4, 2, 1].into_iter().find(|group| row_bytes.is_multiple_of(16 * group)).expect("whole chunks");
    let turn = slot / (8 / group) % group;
    let (chunk, within) = (byte / 16, byte % 16);
    slot * row_bytes + (chunk ^ turn) * 16 + within
}

/// When asynchronous work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// When it is asked for.
    AtOnce,
    /// When somebody waits for it.
    Late,
}

/// One of the schedules that a kernel must serve.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    pub copies: When,
    pub products: When,
    /// Decides in which order late work is done.
    pub seed: u32,
}

/// One kernel of a unit, compiled.
pub struct Emulated {
    library: Library,
    _folder: TempDir,
}

type Launch = unsafe extern "C" fn(c_uint, c_uint, usize, c_int, c_int, c_uint, *const *mut c_void) -> *const c_char;

type LaunchBeside = unsafe extern "C" fn(c_uint, c_uint, c_uint, c_uint, *const *const *mut c_void) -> *const c_char;

impl Emulated {
    /// `None`, and a word on standard error, where there is no C++ compiler.
    pub fn compile(unit: &Unit, kernel: &str) -> Option<Self> {
        if Command::new("g++").arg("--version").output().is_err() {
            crate::skip::skipped("there is no g++");
            return None;
        }
        let folder = TempDir::new().expect("a folder for temporary files");
        let write = |name: &str, text: &str| {
            let file = folder.path().join(name);
            std::fs::create_dir_all(file.parent().expect("a file in the folder")).expect("room for folders");
            std::fs::write(file, text).expect("room for sources");
        };
        let project = Path::new(env!("CARGO_MANIFEST_DIR"));
        let read = |from: PathBuf| std::fs::read_to_string(&from).unwrap_or_else(|error| panic!("{from:?}: {error}"));
        for source in HEADERS.iter().chain([unit.source]) {
            write(source.name, &translated(&read(project.join("kernels").join(source.name))));
        }
        for name in
            ["emulator.hpp", "attention/wgmma.cuh", "experts/products.cuh", "fp8/products.cuh", "four_bit/products.cuh"]
        {
            write(name, &read(project.join("tests/kernels/emulator").join(name)));
        }
        write("launch.cpp", &launcher(unit.source.name, kernel));
        let library = folder.path().join("kernel.so");
        let defines = unit.defines.iter().map(|(name, value)| format!("-D{name}={value}"));
        let output = Command::new("g++")
            .args([
                "-std=c++17",
                "-O2",
                "-w",
                "-shared",
                "-fPIC",
                "-U_FORTIFY_SOURCE",
                "-fno-strict-aliasing",
                "-fno-gnu-unique",
                "-Wl,-Bsymbolic",
            ])
            .args(["-D__CUDA_ARCH__=900", "-D__CUDA_ARCH_FEAT_SM90_ALL"])
            .args(defines)
            .arg("-I")
            .arg(folder.path())
            .arg("-o")
            .args([library.clone(), folder.path().join("launch.cpp")])
            .output()
            .expect("g++ runs");
        assert!(output.status.success(), "{unit}:\n{}", String::from_utf8_lossy(&output.stderr));
        Some(Self { library: open(&library), _folder: folder })
    }

    /// Launches the kernel. `args`: the address of each argument. Panics where the kernel does what no GPU allows, or
    /// never ends.
    ///
    /// # Safety
    /// The arguments are of the kernel's types, and point to as much memory as it reads and writes.
    pub unsafe fn launch(&self, grid: u32, threads: u32, shared_bytes: usize, how: Schedule, args: &[*mut c_void]) {
        let late = |when| c_int::from(when == When::Late);
        // SAFETY: `launcher` declares it so, and the caller answers for the arguments.
        let fault = unsafe {
            let launch = self.library.get::<Launch>(b"launch").expect("what `launcher` defines");
            launch(grid, threads, shared_bytes, late(how.copies), late(how.products), how.seed, args.as_ptr())
        };
        // SAFETY: as `launcher` declares it.
        unsafe { panic_of(fault, &how) };
    }

    /// Launches the kernel once for each of `args`, on as many GPUs that see each other's memory; `seed` decides in
    /// which order their threads run.
    ///
    /// # Safety
    /// As of `launch`.
    pub unsafe fn launch_beside(&self, grid: u32, threads: u32, seed: u32, args: &[Vec<*mut c_void>]) {
        let args: Vec<*const *mut c_void> = args.iter().map(|args| args.as_ptr()).collect();
        // SAFETY: as in `launch`.
        unsafe {
            let launch = self.library.get::<LaunchBeside>(b"launch_beside").expect("what `launcher` defines");
            panic_of(launch(args.len() as u32, grid, threads, seed, args.as_ptr()), &seed);
        }
    }
}

/// Panics with what a launch has said.
///
/// # Safety
/// `fault` is null, or a string that lives until the next launch.
unsafe fn panic_of(fault: *const c_char, how: &dyn std::fmt::Debug) {
    if !fault.is_null() {
        // SAFETY: the caller says so.
        let fault = unsafe { CStr::from_ptr(fault) };
        panic!("{how:?}: {}", fault.to_string_lossy());
    }
}

fn open(library: &PathBuf) -> Library {
    // SAFETY: it was just compiled from our own sources, and does nothing when it is loaded.
    unsafe { Library::new(library) }.expect("what g++ has made")
}

fn launcher(source: &str, kernel: &str) -> String {
    format!(
        r#"#include "emulator.hpp"
#include <tuple>
#include "{source}"

template <class... A, size_t... I>
std::function<void()> bound(void (*kernel)(A...), void** args, std::index_sequence<I...>) {{
    std::tuple<A...> values = {{*static_cast<A*>(args[I])...}};
    return [=] {{ std::apply(kernel, values); }};
}}

template <class... A>
std::function<void()> bound(void (*kernel)(A...), void** args) {{
    return bound(kernel, args, std::index_sequence_for<A...>());
}}

extern "C" const char* launch(unsigned grid, unsigned threads, size_t shared_bytes, int copies_late, int products_late, unsigned seed, void** args) {{
    return emulated::run(grid, threads, shared_bytes, copies_late != 0, products_late != 0, seed, bound({kernel}, args));
}}

extern "C" const char* launch_beside(unsigned launches, unsigned grid, unsigned threads, unsigned seed, void*** args) {{
    std::vector<std::function<void()>> kernels;
    for (unsigned launch = 0; launch < launches; launch++) {{
        kernels.push_back(bound({kernel}, args[launch]));
    }}
    emulated::launches = launches;
    auto body = [=] {{ kernels[emulated::current->block->launch](); }};
    const char* fault = emulated::run(grid, threads, 0, true, false, seed, body);
    emulated::launches = 1;
    return fault;
}}
"#
    )
}

fn pattern(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a sound pattern")
}

/// A kernel's source as C++ that `emulator.hpp` understands.
fn translated(source: &str) -> String {
    static DYNAMIC: LazyLock<Regex> = LazyLock::new(|| pattern(r"extern __shared__ [^;]*\b(\w+)\[\];"));
    static ARRAY: LazyLock<Regex> = LazyLock::new(|| pattern(r"__shared__ (\w+) (\w+)\[([^\]]+)\];"));
    static SINGLE: LazyLock<Regex> = LazyLock::new(|| pattern(r"__shared__ (\w+) (\w+);"));
    let source = without_instructions(source);
    let source = DYNAMIC.replace_all(&source, "unsigned char* $1 = emulated::dynamic_shared();");
    let source = ARRAY.replace_all(&source, r#"auto& $2 = emulated::shared_variable<$1[$3]>("$2");"#);
    SINGLE.replace_all(&source, r#"auto& $2 = emulated::shared_variable<$1>("$2");"#).into_owned()
}

/// Every function whose body holds an instruction calls the emulator's function of that name instead.
fn without_instructions(source: &str) -> String {
    let mut translated = String::new();
    let (mut depth, mut head, mut open) = (0, 0, 0);
    let mut skip = 0;
    let bytes = source.as_bytes();
    for at in 0..bytes.len() {
        if at < skip {
            continue;
        }
        match bytes[at] {
            b'"' => skip = end_of_string(bytes, at),
            b'/' if bytes.get(at + 1) == Some(&b'/') => skip = end_of_line(bytes, at),
            b'#' if depth == 0 => {
                skip = end_of_line(bytes, at);
                translated.push_str(&source[head..skip]);
                head = skip;
            }
            b'{' => {
                if depth == 0 {
                    open = at;
                }
                depth += 1;
            }
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    let (signature, body) = (&source[head..open], &source[open..=at]);
                    translated.push_str(signature);
                    match body.contains("asm") && !signature.contains("struct ") {
                        true => translated.push_str(&call(signature)),
                        false => translated.push_str(body),
                    }
                    head = at + 1;
                }
            }
            b';' if depth == 0 => {
                translated.push_str(&source[head..=at]);
                head = at + 1;
            }
            _ => {}
        }
    }
    translated.push_str(&source[head..]);
    translated
}

fn end_of_string(bytes: &[u8], at: usize) -> usize {
    let mut end = at + 1;
    while bytes[end] != b'"' {
        end += if bytes[end] == b'\\' { 2 } else { 1 };
    }
    end + 1
}

/// Behind the line's end, and those of lines that it goes on in.
fn end_of_line(bytes: &[u8], at: usize) -> usize {
    let mut end = at;
    while end < bytes.len() && (bytes[end] != b'\n' || bytes[end - 1] == b'\\') {
        end += 1;
    }
    end
}

/// The body that calls the emulator's function with the arguments of `signature`.
fn call(signature: &str) -> String {
    static NAME: LazyLock<Regex> = LazyLock::new(|| pattern(r"(\w+)(<[\w, ]+>)?\("));
    static TEMPLATE: LazyLock<Regex> = LazyLock::new(|| pattern(r"template <((?:class|int|unsigned) \w+)>"));
    static WORD: LazyLock<Regex> = LazyLock::new(|| pattern(r"\w+"));
    // Comments before the function are no part of it.
    let code: Vec<&str> = signature.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let code = code.join("\n");
    let name = NAME.captures(&code).unwrap_or_else(|| panic!("no function: {signature}"));
    let (mut call, list) =
        (format!("{{ return emulated::{}", &name[1]), &code[name.get(0).expect("all of it").end()..]);
    match (name.get(2), TEMPLATE.captures(&code)) {
        (Some(of), _) => call.push_str(of.as_str()),
        (None, Some(parameter)) => {
            let parameter = WORD.find_iter(&parameter[1]).last().expect("a name").as_str().to_owned();
            write!(call, "<{parameter}>").expect("writing to a string cannot fail");
        }
        (None, None) => {}
    }
    let list = list.trim_end().strip_suffix(')').expect("a list of parameters");
    let names = list.split(',').filter(|parameter| !parameter.trim().is_empty()).map(|parameter| {
        let declared = parameter.split('[').next().expect("the part before it");
        WORD.find_iter(declared).last().expect("a name").as_str()
    });
    write!(call, "({}); }}", names.collect::<Vec<_>>().join(", ")).expect("writing to a string cannot fail");
    call
}
