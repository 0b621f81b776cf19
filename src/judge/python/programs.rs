//! The runner and the checker program, compiled for the interpreter that runs them.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::{Error, Result};
use crate::judge::message::last_line;
use crate::judge::problem::Limits;
use crate::judge::sandbox::{Confined, Sandbox, StdinMode, StdoutMode, WorkFolder};
use crate::judge::toolchain::Interpreter;

const COMPILE: &str = "import py_compile, sys; py_compile.compile(sys.argv[1], cfile=sys.argv[2], doraise=True)";

const WIRE: &str = include_str!("wire.py");
const RUNNER: &[&str] = &[WIRE, include_str!("runner.py")];
const CHECKER: &[&str] = &[WIRE, include_str!("checker.py"), include_str!("eval_plus.py"), include_str!("serve.py")];

#[derive(Debug)]
pub(super) struct Programs {
    python: Interpreter,
    /// Contains `runner.pyc` and `checker.pyc`: compiled once, so that they start some milliseconds faster.
    folder: WorkFolder,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum PythonProgram {
    Runner,
    Checker,
}

impl Programs {
    pub fn compile(python: Interpreter, sandbox: &Sandbox) -> Result<Programs> {
        let folder = sandbox.folder()?;
        for (name, parts) in [("runner", RUNNER), ("checker", CHECKER)] {
            let source = folder.path().join(name).with_extension("py");
            std::fs::write(&source, parts.concat()).map_err(Error::io(&source, "write"))?;
            let compiled = Command::new(&python.path)
                .args(["-I", "-S", "-c", COMPILE])
                .args([&source, &source.with_extension("pyc")])
                .stdin(Stdio::null())
                .output()
                .map_err(Error::io(&python.path, "run"))?;
            if !compiled.status.success() {
                let why = last_line(&compiled.stderr).unwrap_or_else(|| compiled.status.to_string());
                return Err(Error::value(python.path.display().to_string(), "a working Python 3.10 or later", why));
            }
        }
        Ok(Programs { python, folder })
    }

    /// How to run `program` confined to `folder`, with a channel.
    pub fn confined(&self, program: PythonProgram, folder: &Path, limits: Limits) -> Confined {
        let file = match program {
            PythonProgram::Runner => "runner.pyc",
            PythonProgram::Checker => "checker.pyc",
        };
        let compiled = self.folder.path().join(file);
        let mut arguments = vec!["-I".into(), "-S".into(), "-B".into(), compiled.display().to_string()];
        if matches!(program, PythonProgram::Runner) {
            arguments.push(limits.output_bytes.to_string());
        }
        arguments.extend(self.python.packages.iter().cloned());
        let mut readable = self.python.readable.clone();
        readable.push(compiled);
        Confined {
            program: self.python.path.clone(),
            arguments,
            environment: Vec::new(),
            readable,
            folder: folder.to_path_buf(),
            keep_files: false,
            limits,
            stdin: StdinMode::Null,
            stdout: StdoutMode::Null,
            channel: true,
        }
    }
}
