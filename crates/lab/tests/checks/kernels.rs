//! Where `offshoot-lab check --kernels` looks for NVRTC, and what it says where it finds none.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::lab::{lab, refuses};
use crate::skip::skipped;

/// `check --kernels` with nothing in the environment but these variables; what it says on standard error.
fn failing_check(arguments: &[&str], variables: &[(&str, &Path)]) -> String {
    refuses(lab(&["check", "--kernels"]).args(arguments).env_clear().envs(variables.iter().copied()))
}

#[test]
fn a_named_library_is_the_one_that_is_used() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("libnvrtc.so.13");
    let missing = failing_check(&[], &[("OFFSHOOT_NVRTC", &file)]);
    assert!(
        missing.starts_with("offshoot-lab: CUDA cannot be used: OFFSHOOT_NVRTC names no usable library: "),
        "{missing}"
    );
    assert!(missing.contains(file.to_str().unwrap()), "{missing}");
}

#[test]
fn nvrtc_is_found_where_pip_and_toolkits_put_it() {
    let folder = TempDir::new().unwrap();
    let nothing = failing_check(&["--arch", "sm_1"], &[]);
    if !nothing.contains("NVRTC is missing") {
        return skipped("this machine has an NVRTC of its own");
    }
    assert!(nothing.contains("install it with `pip install nvidia-cuda-nvrtc`, or set OFFSHOOT_NVRTC"), "{nothing}");
    assert_eq!(nothing.lines().count(), 1, "{nothing}");
    let Some(file) = std::env::var_os("OFFSHOOT_NVRTC").map(PathBuf::from).filter(|file| file.is_file()) else {
        return skipped("OFFSHOOT_NVRTC names no file to put there");
    };
    for (variable, below) in [
        ("VIRTUAL_ENV", "lib/python3.12/site-packages/nvidia/cu13/lib"),
        ("VIRTUAL_ENV", "lib/python3.9/site-packages/nvidia/cuda_nvrtc/lib"),
        ("HOME", ".local/lib/python3.12/site-packages/nvidia/cu13/lib"),
        ("CONDA_PREFIX", "lib"),
        ("CONDA_PREFIX", "lib/python3.12/site-packages/nvidia/cu13/lib"),
        ("CUDA_HOME", "lib64"),
        ("CUDA_PATH", "lib"),
    ] {
        let root = folder.path().join(variable).join(below.replace('/', "-"));
        std::fs::create_dir_all(root.join(below)).unwrap();
        let there = root.join(below).join(file.file_name().unwrap());
        std::os::unix::fs::symlink(&file, &there).unwrap();
        let said = failing_check(&["--arch", "sm_1"], &[(variable, &root)]);
        assert!(said.contains(&format!("({}) does not compile for sm_1,", there.display())), "{variable}: {said}");
    }
}
