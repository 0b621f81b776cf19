//! What of the CUDA backend needs no GPU: the sentences that say why there is none, compiling, the log's figures, the
//! cache.

#[path = "../../../../tests/common/full.rs"]
mod full;
#[path = "../../../../tests/common/skip.rs"]
mod skip;

use std::collections::BTreeSet;
use std::path::Path;

use offshoot_core::error::Error;
use offshoot_cuda::compile::cache::{Cache, Cubin, Key};
use offshoot_cuda::compile::ptxas::{KernelUsage, usage};
use offshoot_cuda::compile::unit::{Source, Unit};
use offshoot_cuda::compile::units;
use offshoot_cuda::compile::{Compiler, KernelReport, compile_all};
use offshoot_cuda::discovery::probe::{arch, probe};
use offshoot_cuda::driver::device::Device;
use tempfile::TempDir;

use crate::full::some_or_full;

static SCALE: Source = Source {
    name: "scale.cu",
    text: r#"#include "element.cuh"
extern "C" __global__ void scale(ELEMENT* x, float by) {
    x[threadIdx.x] = from_f32<ELEMENT>(to_f32(x[threadIdx.x]) * by);
}
"#,
};

/// A compiler that keeps its work in `cache`, where there is NVRTC.
fn compiler(cache: &Path) -> Option<Compiler> {
    match Compiler::open(None) {
        Ok(compiler) => Some(compiler.with_cache(Cache::in_folder(cache))),
        Err(why) => {
            skip::skipped(format_args!("{why}"));
            None
        }
    }
}

#[test]
fn without_a_driver_one_sentence_says_so() {
    let Err(of_probe) = probe() else { return skip::skipped("there is a GPU") };
    let Err(of_open) = Device::open(0) else { panic!("a device opens that the driver does not show") };
    for (error, device) in [(of_probe, "CUDA"), (of_open, "cuda:0")] {
        assert!(matches!(error, Error::NoDevice { .. }), "{error}");
        assert_eq!(error.exit_code(), 2);
        let sentence = error.to_string();
        assert!(sentence.starts_with(&format!("{device} cannot be used: ")), "{sentence}");
        assert!(sentence.contains("driver") && !sentence.contains('\n'), "{sentence}");
    }
}

#[test]
fn architectures_have_their_own_features_from_hopper_on() {
    let archs = [(8, 0, "sm_80"), (8, 6, "sm_86"), (8, 9, "sm_89"), (9, 0, "sm_90a"), (10, 0, "sm_100a")];
    for (major, minor, name) in archs {
        assert_eq!(arch(major, minor), name);
    }
}

#[test]
fn a_unit_compiles_for_each_element_and_architecture() {
    let folder = TempDir::new().unwrap();
    let Some(compiler) = compiler(folder.path()) else { return };
    for element in ["f32", "f16", "bf16"] {
        for arch in ["sm_80", "sm_89", "sm_90a"] {
            let unit = Unit::new(&SCALE).define("ELEMENT", element);
            let cubin = compiler.cubin(&unit, arch).unwrap();
            assert!(cubin.bytes.starts_with(b"\x7fELF"), "{unit}: not machine code");
            let [kernel] = &cubin.usage()[..] else { panic!("{unit}: one kernel expected in\n{}", cubin.log) };
            assert_eq!((kernel.kernel.as_str(), kernel.spill_bytes), ("scale", 0));
            assert!(kernel.registers > 0);
            assert_eq!(compiler.cubin(&unit, arch).unwrap(), cubin, "from the cache");
        }
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 9, "one file a unit and architecture, nothing else");
}

#[test]
fn what_does_not_compile_names_unit_and_line() {
    let folder = TempDir::new().unwrap();
    let Some(compiler) = compiler(folder.path()) else { return };
    let wrong = compiler.cubin(&Unit::new(&SCALE).define("ELEMENT", "f17"), "sm_80").unwrap_err().to_string();
    assert!(wrong.starts_with("kernel scale.cu ELEMENT=f17 for sm_80: NVRTC "), "{wrong}");
    assert!(wrong.contains("scale.cu(2)") && wrong.contains("f17"), "{wrong}");
    let unknown = compiler.cubin(&Unit::new(&SCALE).define("ELEMENT", "f32"), "sm_999a").unwrap_err().to_string();
    assert!(unknown.contains("does not compile for sm_999a, only for sm_"), "{unknown}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "failures are not kept");
}

#[test]
fn every_unit_compiles() {
    let folder = TempDir::new().unwrap();
    let Some(compiler) = compiler(folder.path()) else { return };
    // What was compiled is known by its whole source and NVRTC's version: a cache that is named (CI's) serves as well.
    let compiler = match std::env::var_os("OFFSHOOT_CACHE").filter(|named| !named.is_empty()) {
        Some(_) => compiler.with_cache(Cache::of_user()),
        None => compiler,
    };
    let compiled = |compiler: &Compiler, units: &[Unit]| compile_all(compiler, units, &["sm_90a".to_string()], &[]);
    if some_or_full(true, false) {
        // In a fifth of the time; what is said of registers is not what they will be.
        let units = units::of_every_define();
        let reports = compiled(&compiler.without_optimisation(), &units).unwrap();
        let named: BTreeSet<&str> = reports.iter().map(|report| report.unit.as_str()).collect();
        assert_eq!(named.len(), units.len(), "units with kernels");
        return;
    }
    let reports = compiled(&compiler, &units::all()).unwrap();
    let spilling: Vec<_> = reports.into_iter().filter(KernelReport::spills).collect();
    assert!(spilling.is_empty(), "{spilling:#?}");
}

#[test]
fn units_of_every_define_have_all_of_them() {
    let defines = |units: &[Unit]| -> BTreeSet<String> {
        let of = |unit: &Unit| -> Vec<String> {
            let of_source = |(name, value): &(&str, String)| format!("{} {name}={value}", unit.source.name);
            unit.defines.iter().map(of_source).chain([unit.source.name.to_string()]).collect()
        };
        units.iter().flat_map(of).collect()
    };
    let (few, all) = (units::of_every_define(), units::all());
    assert_eq!(defines(&few), defines(&all));
    assert!(few.len() * 2 < all.len(), "{} of {} units", few.len(), all.len());
}

/// The paths of the files below `folder`, from `root`.
fn files_below(root: &Path, folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_below(root, &path, found);
        } else {
            found.insert(path.strip_prefix(root).unwrap().to_str().unwrap().to_string());
        }
    }
}

#[test]
fn the_tables_list_the_folder() {
    let folder = Path::new(offshoot_fixtures::REPOSITORY).join("kernels");
    let mut all = BTreeSet::new();
    files_below(&folder, &folder, &mut all);
    let files = |end: &str| -> BTreeSet<String> { all.iter().filter(|name| name.ends_with(end)).cloned().collect() };
    let headers: BTreeSet<String> = units::HEADERS.iter().map(|header| header.name.to_string()).collect();
    assert_eq!(headers, files(".cuh"), "units::HEADERS beside kernels/**/*.cuh");
    let sources: BTreeSet<String> = units::all().iter().map(|unit| unit.source.name.to_string()).collect();
    assert_eq!(sources, files(".cu"), "units::all() beside kernels/**/*.cu");
    let readme = include_str!("../../../../kernels/README.md");
    let rows: Vec<&str> = readme.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next()).collect();
    let named: Vec<&str> = rows.iter().flat_map(|kernels| kernels.split(", ")).collect();
    for source in &sources {
        let kernel = source.rsplit('/').next().expect("a file name").trim_end_matches(".cu");
        let is_named = named.iter().any(|name| name.split(' ').next() == Some(kernel));
        assert!(is_named, "{source} has a row in kernels/README.md");
    }
}

#[test]
fn figures_are_read_from_the_log() {
    let log = "\
embed.cu(3): warning #177-D: variable \"x\" was declared but never referenced
ptxas info    : 0 bytes gmem, 32 bytes cmem[4]
ptxas info    : Compiling entry function 'first' for 'sm_80'
ptxas info    : Function properties for first
    8 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 8 bytes cumulative stack size, 49152 bytes smem, 404 bytes cmem[0]
ptxas info    : Compiling entry function 'second' for 'sm_80'
ptxas info    : Function properties for second
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, 364 bytes cmem[0]
";
    let kernel = |kernel: &str, registers, spill_bytes, shared_bytes| KernelUsage {
        kernel: kernel.to_string(),
        registers,
        spill_bytes,
        shared_bytes,
    };
    assert_eq!(usage(log), [kernel("first", 168, 32, 49152), kernel("second", 8, 0, 0)]);
    assert_eq!(usage(""), []);
}

#[test]
fn the_cache_gives_back_what_it_was_given() {
    let folder = TempDir::new().unwrap();
    let cache = Cache::in_folder(folder.path().join("made/when/needed"));
    let (key, other) = (Key::of(["a", "bc"]), Key::of(["ab", "c"]));
    assert_ne!(key, other, "parts do not run into each other");
    let cubin = Cubin { bytes: vec![0, 1, 255], log: "registers\n".into() };
    assert_eq!(cache.get(&key), None);
    cache.put(&key, &cubin);
    assert_eq!(cache.get(&key), Some(cubin));
    assert_eq!(cache.get(&other), None);
}

#[test]
fn a_damaged_or_unwritable_cache_is_done_without() {
    let folder = TempDir::new().unwrap();
    let cache = Cache::in_folder(folder.path());
    let key = Key::of(["unit"]);
    let cubin = Cubin { bytes: b"machine code".to_vec(), log: String::new() };
    cache.put(&key, &cubin);
    let file = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    let whole = std::fs::read(&file).unwrap();
    for kept in 0..whole.len() {
        std::fs::write(&file, &whole[..kept]).unwrap();
        assert_eq!(cache.get(&key), None, "the first {kept} bytes");
    }
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        std::fs::write(&file, damaged).unwrap();
        assert_eq!(cache.get(&key), None, "byte {at} changed");
    }
    cache.put(&key, &cubin);
    assert_eq!(cache.get(&key), Some(cubin.clone()), "written anew");

    let no_folder = Cache::in_folder(&file);
    no_folder.put(&key, &cubin);
    assert_eq!(no_folder.get(&key), None);
}
