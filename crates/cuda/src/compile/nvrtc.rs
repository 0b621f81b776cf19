//! NVRTC, NVIDIA's compiler as a library: opened from a file that `libraries` has found, asked for machine code (a
//! cubin) of one architecture. A cubin, unlike PTX, loads on a driver older than the compiler. The bindings of
//! `cudarc` do not serve: they load the first libnvrtc that they find, not the one that was found and checked here, and
//! panic at a missing symbol, where `Nvrtc` gives an error in a sentence.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use libloading::Library;

use super::cache::Cubin;
use super::unit::Source;
use crate::discovery::libraries;
use crate::discovery::probe::CudaVersion;

type RawProgram = *mut c_void;
type Status = c_int;
const SUCCESS: Status = 0;

/// A struct of a library's functions, each of which is looked up by its symbol.
macro_rules! api {
    ($($name:ident = $symbol:literal: fn($($kind:ty),*) -> $given:ty;)*) => {
        struct Api {
            $($name: unsafe extern "C" fn($($kind),*) -> $given,)*
        }

        impl Api {
            fn of(library: &Library) -> Result<Api, libloading::Error> {
                // SAFETY: the names are NVRTC's and the signatures those of its header; `open` never closes the
                // library, so the pointers stay good.
                unsafe { Ok(Api { $($name: *library.get($symbol)?,)* }) }
            }
        }
    };
}

// The functions that are called, with NVRTC's own signatures (the same in CUDA 12 and 13).
api! {
    error_string = b"nvrtcGetErrorString\0": fn(Status) -> *const c_char;
    version = b"nvrtcVersion\0": fn(*mut c_int, *mut c_int) -> Status;
    arch_count = b"nvrtcGetNumSupportedArchs\0": fn(*mut c_int) -> Status;
    archs = b"nvrtcGetSupportedArchs\0": fn(*mut c_int) -> Status;
    create = b"nvrtcCreateProgram\0": fn(
        *mut RawProgram, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
    ) -> Status;
    destroy = b"nvrtcDestroyProgram\0": fn(*mut RawProgram) -> Status;
    compile = b"nvrtcCompileProgram\0": fn(RawProgram, c_int, *const *const c_char) -> Status;
    log_size = b"nvrtcGetProgramLogSize\0": fn(RawProgram, *mut usize) -> Status;
    log = b"nvrtcGetProgramLog\0": fn(RawProgram, *mut c_char) -> Status;
    cubin_size = b"nvrtcGetCUBINSize\0": fn(RawProgram, *mut usize) -> Status;
    cubin = b"nvrtcGetCUBIN\0": fn(RawProgram, *mut c_char) -> Status;
}

/// Loads the library of built-ins that lies beside NVRTC, as it does in pip's folders: some versions open it by name
/// alone, which finds it only when it is loaded already or on the loader's path.
fn load_builtins(nvrtc: &Path) {
    let Some(folder) = nvrtc.parent().filter(|folder| folder.is_absolute()) else { return };
    let is_builtins = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libnvrtc-builtins.so"))
    };
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    for path in files.filter(is_builtins) {
        match libraries::open(&path) {
            // It stays open as long as NVRTC does.
            Ok(library) => std::mem::forget(library),
            Err(why) => log::debug!("{}: {why}", path.display()),
        }
    }
}

/// The compiler, ready. Any thread may compile.
pub struct Nvrtc {
    api: Api,
    path: PathBuf,
    version: CudaVersion,
    /// 80 for sm_80, rising.
    archs: Vec<c_int>,
}

impl Nvrtc {
    /// Opens the library at `path`, or of that name on the loader's path. The error says why the library cannot be
    /// used.
    pub fn open(path: &Path) -> Result<Nvrtc, String> {
        load_builtins(path);
        let library = libraries::open(path)?;
        let api = Api::of(&library).map_err(libraries::loaders_text)?;
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: writes three ints.
        let status = unsafe { first_failure([(api.version)(&mut major, &mut minor), (api.arch_count)(&mut count)]) };
        let mut archs = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: `archs` has room for as many ints as NVRTC has just said.
        let status = status.and_then(|()| first_failure([unsafe { (api.archs)(archs.as_mut_ptr()) }]));
        status.map_err(|status| format!("{} does not answer: {}", path.display(), api.describe(status)))?;
        archs.sort_unstable();
        let version = CudaVersion { major: major.cast_unsigned(), minor: minor.cast_unsigned() };
        // It stays open for the life of the process: `api` points into it, and it ends threads of its own only then.
        std::mem::forget(library);
        Ok(Nvrtc { api, path: path.to_path_buf(), version, archs })
    }

    pub fn version(&self) -> CudaVersion {
        self.version
    }

    /// "NVRTC 13.0 (libnvrtc.so.13)".
    pub fn describe(&self) -> String {
        format!("NVRTC {} ({})", self.version, self.path.display())
    }

    /// Compiles `source` for `arch` ("sm_90a"). The error is NVRTC's log.
    pub fn compile(
        &self,
        source: &Source,
        headers: &[Source],
        arch: &str,
        options: &[String],
    ) -> Result<Cubin, String> {
        self.knows(arch)?;
        let program = OpenProgram::new(&self.api, source, headers)?;
        let options: Vec<CString> = options.iter().map(|option| c_string(option)).collect::<Result<_, _>>()?;
        let option_pointers: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program lives, and so do the options.
        let status = unsafe { (self.api.compile)(program.raw, count(options.len()), option_pointers.as_ptr()) };
        let log = program.text(self.api.log_size, self.api.log)?;
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_string();
        if status != SUCCESS {
            return Err(format!("{} says {}: {log}", self.describe(), self.api.describe(status)));
        }
        Ok(Cubin { bytes: program.text(self.api.cubin_size, self.api.cubin)?, log })
    }

    /// An error that lists the supported architectures if `arch` is not among them.
    pub fn knows(&self, arch: &str) -> Result<(), String> {
        let number: String = arch.chars().filter(char::is_ascii_digit).collect();
        if self.archs.iter().any(|known| known.to_string() == number) {
            return Ok(());
        }
        let known: Vec<String> = self.archs.iter().map(|arch| format!("sm_{arch}")).collect();
        Err(format!("{} does not compile for {arch}, only for {}", self.describe(), known.join(", ")))
    }
}

impl Api {
    fn describe(&self, status: Status) -> String {
        // SAFETY: NVRTC answers any status with a text of its own.
        let text = unsafe { CStr::from_ptr((self.error_string)(status)) };
        text.to_string_lossy().into_owned()
    }
}

/// A program of NVRTC's, destroyed on drop.
struct OpenProgram<'a> {
    api: &'a Api,
    raw: RawProgram,
}

impl<'a> OpenProgram<'a> {
    fn new(api: &'a Api, source: &Source, headers: &[Source]) -> Result<Self, String> {
        let (text, name) = (c_string(source.text)?, c_string(source.name)?);
        let texts: Vec<CString> = headers.iter().map(|header| c_string(header.text)).collect::<Result<_, _>>()?;
        let names: Vec<CString> = headers.iter().map(|header| c_string(header.name)).collect::<Result<_, _>>()?;
        let pointers = |strings: &[CString]| strings.iter().map(|string| string.as_ptr()).collect::<Vec<_>>();
        let (text_pointers, name_pointers) = (pointers(&texts), pointers(&names));
        let mut raw: RawProgram = std::ptr::null_mut();
        // SAFETY: NVRTC copies all strings before it returns; both lists have one entry a header.
        let status = unsafe {
            (api.create)(
                &mut raw,
                text.as_ptr(),
                name.as_ptr(),
                count(headers.len()),
                text_pointers.as_ptr(),
                name_pointers.as_ptr(),
            )
        };
        first_failure([status]).map_err(|status| api.describe(status))?;
        Ok(Self { api, raw })
    }

    /// Bytes whose count one function tells and which another writes.
    fn text(
        &self,
        size: unsafe extern "C" fn(RawProgram, *mut usize) -> Status,
        write: unsafe extern "C" fn(RawProgram, *mut c_char) -> Status,
    ) -> Result<Vec<u8>, String> {
        let failed = |status| self.api.describe(status);
        let mut bytes = 0;
        // SAFETY: the program lives; writes one word.
        first_failure([unsafe { size(self.raw, &mut bytes) }]).map_err(failed)?;
        let mut text = vec![0u8; bytes];
        // SAFETY: `text` has room for as many bytes as NVRTC has just said.
        first_failure([unsafe { write(self.raw, text.as_mut_ptr().cast()) }]).map_err(failed)?;
        Ok(text)
    }
}

impl Drop for OpenProgram<'_> {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed once. There is nothing to do about a failure.
        unsafe { (self.api.destroy)(&mut self.raw) };
    }
}

fn first_failure<const N: usize>(statuses: [Status; N]) -> Result<(), Status> {
    statuses.into_iter().find(|&status| status != SUCCESS).map_or(Ok(()), Err)
}

fn c_string(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| format!("a zero byte in `{}`", text.chars().take(40).collect::<String>()))
}

fn count(length: usize) -> c_int {
    c_int::try_from(length).expect("a handful of headers and options")
}
