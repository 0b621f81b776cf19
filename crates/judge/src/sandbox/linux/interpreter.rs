//! The warmed interpreter: a sandbox server loads a Python as a shared library and lets it run a script; when the
//! script is ready, the server begins to serve, and each candidate goes on in a fork of that interpreter instead of
//! starting one of its own. What the script says and does is up to the caller of the sandbox.
//!
//! A candidate's process is the same as one that executes the interpreter, confined in the same way, except that it has
//! copies of the server's pages, which hold nothing but the paths of the machine that the server was told.

use std::ffi::{CString, c_char, c_int, c_void};
use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use super::WarmInterpreter;
use super::base::ENVIRONMENT;

/// An object of Python, seen only by its address.
type Object = *mut c_void;

/// The functions of Python's stable interface that are used here.
struct Api {
    append_builtin: unsafe extern "C" fn(*const c_char, extern "C" fn() -> Object) -> c_int,
    run: unsafe extern "C" fn(c_int, *mut *mut c_char) -> c_int,
    create_module: unsafe extern "C" fn(*mut ModuleDefinition, c_int) -> Object,
    before_fork: unsafe extern "C" fn(),
    after_fork_in_parent: unsafe extern "C" fn(),
    after_fork_in_child: unsafe extern "C" fn(),
    bytes: unsafe extern "C" fn(*const c_char, isize) -> Object,
    call: unsafe extern "C" fn(Object, ...) -> Object,
    print_error: unsafe extern "C" fn(),
}

/// `PyModuleDef`, with its head, of all versions that have a global lock.
#[repr(C)]
struct ModuleDefinition {
    references: isize,
    kind: *mut c_void,
    init: *mut c_void,
    index: isize,
    copy: Object,
    name: *const c_char,
    documentation: *const c_char,
    size: isize,
    methods: *mut Method,
    others: [*mut c_void; 4],
}

/// `PyMethodDef`.
#[repr(C)]
struct Method {
    name: *const c_char,
    function: Option<extern "C" fn(Object, Object) -> Object>,
    flags: c_int,
    documentation: *const c_char,
}

/// The method takes one argument.
const METH_O: c_int = 8;
/// What a module of the stable interface names as its version.
const API_VERSION: c_int = 3;

static API: OnceLock<Api> = OnceLock::new();
type Serve = Box<dyn FnOnce(ServingInterpreter) -> io::Result<()> + Send>;
/// What begins when the script calls `serve`.
static SERVE: Mutex<Option<Serve>> = Mutex::new(None);

/// The interpreter of this process, whose script has called `serve`.
#[derive(Clone, Copy)]
pub(super) struct ServingInterpreter {
    api: &'static Api,
    /// The script's function; the call of `serve`, which does not return, keeps it alive.
    begin: Object,
}

impl std::fmt::Debug for ServingInterpreter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServingInterpreter").finish_non_exhaustive()
    }
}

impl ServingInterpreter {
    /// Call it before a fork that may become a candidate, and [`ServingInterpreter::forked`] behind it in the parent.
    pub fn before_fork(self) {
        // SAFETY: this is the interpreter's only thread, and it holds the lock, as `serve` was called by the script.
        unsafe { (self.api.before_fork)() }
    }

    pub fn forked(self) {
        // SAFETY: as in `before_fork`, which has been called.
        unsafe { (self.api.after_fork_in_parent)() }
    }

    /// Goes on as a candidate; never returns.
    pub fn begin(self, arguments: &[String], environment: &[CString]) -> ! {
        let arguments = arguments.join("\0").into_bytes();
        let environment = environment.iter().map(|entry| entry.as_bytes()).collect::<Vec<_>>().join(&0);
        // SAFETY: this is a fork of the process behind `before_fork`, by its only thread. The bytes outlive the calls
        // that copy them; the call takes two objects and a null at their end; all references are this frame's until the
        // process ends.
        unsafe {
            (self.api.after_fork_in_child)();
            let object = |bytes: &[u8]| (self.api.bytes)(bytes.as_ptr().cast(), bytes.len() as isize);
            let (arguments, environment) = (object(&arguments), object(&environment));
            let none: Object = std::ptr::null_mut();
            let done = (self.api.call)(self.begin, arguments, environment, none);
            if done.is_null() {
                (self.api.print_error)();
            }
            libc::_exit(i32::from(done.is_null()))
        }
    }
}

/// Loads the interpreter and runs its script; `serve` runs when that calls `_offshoot.serve`, and ends the process.
/// Returns only if that never happens. This process must have one thread, and no signal handlers: the interpreter takes
/// those that it finds for a program's own.
pub(super) fn run(warm: &WarmInterpreter, serve: Serve) -> io::Error {
    let api = match load(warm) {
        Ok(api) => API.get_or_init(|| api),
        Err(why) => return io::Error::other(format!("{}: {why}", warm.library.display())),
    };
    let mut command = Vec::new();
    for word in &warm.command {
        match CString::new(word.as_bytes()) {
            Ok(word) => command.push(word.into_raw()),
            Err(why) => return why.into(),
        }
    }
    for (name, value) in ENVIRONMENT {
        // SAFETY: this process has one thread.
        unsafe { std::env::set_var(name, value) };
    }
    *SERVE.lock().unwrap_or_else(PoisonError::into_inner) = Some(serve);
    let words = command.len() as c_int;
    command.push(std::ptr::null_mut());
    // SAFETY: the name is static text with a zero byte; the command line is `words` texts with a zero byte each and a
    // null behind them, all of which live until the process ends.
    let code = unsafe {
        (api.append_builtin)(c"_offshoot".as_ptr(), module);
        (api.run)(words, command.leak().as_mut_ptr())
    };
    io::Error::other(format!("{} ends with code {code} instead of serving", warm.command.join(" ")))
}

fn load(warm: &WarmInterpreter) -> Result<Api, libloading::Error> {
    // SAFETY: the library is that of the interpreter which the caller runs in any case. Modules of Python expect to
    // find its functions among the global ones.
    let library = unsafe { Library::open(Some(&warm.library), RTLD_NOW | RTLD_GLOBAL) }?;
    // SAFETY: the types are those of Python's headers since version 3.10. The library is never closed.
    let api = unsafe {
        Api {
            append_builtin: *library.get(b"PyImport_AppendInittab\0")?,
            run: *library.get(b"Py_BytesMain\0")?,
            create_module: *library.get(b"PyModule_Create2\0")?,
            before_fork: *library.get(b"PyOS_BeforeFork\0")?,
            after_fork_in_parent: *library.get(b"PyOS_AfterFork_Parent\0")?,
            after_fork_in_child: *library.get(b"PyOS_AfterFork_Child\0")?,
            bytes: *library.get(b"PyBytes_FromStringAndSize\0")?,
            call: *library.get(b"PyObject_CallFunctionObjArgs\0")?,
            print_error: *library.get(b"PyErr_Print\0")?,
        }
    };
    std::mem::forget(library);
    Ok(api)
}

/// Makes the module `_offshoot`.
extern "C" fn module() -> Object {
    let Some(api) = API.get() else { return std::ptr::null_mut() };
    let null: *mut c_void = std::ptr::null_mut();
    let end = Method { name: null.cast(), function: None, flags: 0, documentation: null.cast() };
    let serve = Method { name: c"serve".as_ptr(), function: Some(serve), flags: METH_O, documentation: null.cast() };
    let methods = Box::leak(Box::new([serve, end]));
    let definition = Box::leak(Box::new(ModuleDefinition {
        references: 1,
        kind: null,
        init: null,
        index: 0,
        copy: null,
        name: c"_offshoot".as_ptr(),
        documentation: null.cast(),
        size: -1,
        methods: methods.as_mut_ptr(),
        others: [null; 4],
    }));
    // SAFETY: the definition and all that it points to live until the process ends.
    unsafe { (api.create_module)(definition, API_VERSION) }
}

/// The function `serve` of the module.
extern "C" fn serve(_module: Object, begin: Object) -> Object {
    let serve = SERVE.lock().unwrap_or_else(PoisonError::into_inner).take();
    let (Some(api), Some(serve)) = (API.get(), serve) else { std::process::exit(1) };
    let code = match serve(ServingInterpreter { api, begin }) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("offshoot: the sandbox's helper fails: {error}");
            1
        }
    };
    // SAFETY: ends the process at once; an interpreter that has been used up has nothing to save.
    unsafe { libc::_exit(code) }
}
