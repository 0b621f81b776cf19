//! Reports the state of the judge on this machine: the layers of its sandbox, and the programs that run candidates.

use crate::error::Result;
use crate::judge::{CppCompiler, Interpreter, Isolation, Judge};
use crate::out;

/// Prints the layers in force, the programs found, and whether candidates can be judged. If they cannot, it fails like
/// `offshoot judge`.
pub fn doctor(isolation: Isolation) -> Result<()> {
    let judge = Judge::open(Isolation::Unsafe)?;
    out::text(judge.sandbox().in_force())?;
    match Interpreter::find() {
        Ok(python) => out::line(format_args!("{:<12} {} at {}", "python", python.version, python.path.display()))?,
        Err(error) => out::line(format_args!("{:<12} none: {error}", "python"))?,
    }
    match CppCompiler::find() {
        Ok(compiler) => out::line(format_args!("{:<12} {} at {}", "c++", compiler.version, compiler.path.display()))?,
        Err(error) => out::line(format_args!("{:<12} none: {error}", "c++"))?,
    }
    drop(judge);
    Judge::open(isolation)?;
    Interpreter::find()?;
    out::line("candidates can be judged here")
}
