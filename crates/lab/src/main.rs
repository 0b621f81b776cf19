//! `offshoot-lab`: reads the command line, and turns an error into one sentence and an exit code.

use std::process::ExitCode;

use offshoot_core::{out, setting};
use offshoot_cuda::ranks::nccl::NO_MULTICAST;
use offshoot_lab::command::Lab;

fn main() -> ExitCode {
    offshoot_core::bounded::enter_if_helper(&[&offshoot_form::TRIAL]);
    setting::spell(|name| format!("--{}", name.replace('_', "-")));
    let (variable, value) = NO_MULTICAST;
    // SAFETY: no statement before has started a thread, so nobody else reads the environment.
    unsafe { std::env::set_var(variable, value) };
    match Lab::read().and_then(|lab| lab.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if out::reader_has_gone(&error) => ExitCode::SUCCESS,
        Err(error) => {
            out::aside(format_args!("offshoot-lab: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}
