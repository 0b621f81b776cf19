//! The `offshoot` command: reads the command line, calls the module that does the work, and turns an error into one
//! sentence and an exit code.

use std::process::ExitCode;

use offshoot::cli::stopping::{exit_code, on_signals, survive_file_limit};
use offshoot::cli::{Cli, CliCommand, JudgeCommand, PlanCommand, show_bars};
use offshoot_core::error::{Error, Result};
use offshoot_core::{memory, out, setting};
use offshoot_cuda::ranks::nccl::NO_MULTICAST;
use offshoot_estimate as estimate;
use offshoot_eval::{run, scoring, task, view};
use offshoot_inspect as inspect;
use offshoot_launch::Opened;
use offshoot_openai::batch;
use offshoot_serve as serve;

fn main() -> ExitCode {
    offshoot::enter_if_helper();
    setting::spell(|name| format!("--{}", name.replace('_', "-")));
    let (variable, value) = NO_MULTICAST;
    // SAFETY: the first statement of a process that has no second thread yet, so nobody else reads the environment.
    unsafe { std::env::set_var(variable, value) };
    memory::name_limits_at_end();
    show_bars();
    let read = Cli::read().inspect(|cli| cli.machine.start_log());
    match memory::enough_to_begin().and(survive_file_limit()).and(read).and_then(dispatch) {
        Ok(code) => code,
        Err(error) if out::reader_has_gone(&error) => ExitCode::SUCCESS,
        Err(error) => {
            out::aside(format_args!("offshoot: {}", memory::Ended(&error)));
            ExitCode::from(exit_code(&error))
        }
    }
}

fn dispatch(cli: Cli) -> Result<ExitCode> {
    cli.machine.start_threads()?;
    let (device, devices) = (cli.machine.one_device(), cli.chosen_devices()?);
    match cli.command {
        None => out::text(welcome(device.open(None)?))?,
        Some(CliCommand::Run(args)) => return run::run(&args.on(devices)?, on_signals()?.as_ref()),
        Some(CliCommand::Plan(args)) => match args.on(cli.machine.devices.as_ref(), cli.machine.tensor_parallel)? {
            PlanCommand::Job(options) => estimate::main(&options)?,
            PlanCommand::Trace(options) => estimate::trace::main(&options)?,
        },
        Some(CliCommand::Check(args)) => {
            let (folder, how) = args.into();
            let holds = inspect::model(device, &folder, &how)?;
            return if holds { Ok(ExitCode::SUCCESS) } else { Err(Error::CheckFailed) };
        }
        Some(CliCommand::Models(args)) => inspect::models(args.folder.as_deref())?,
        Some(CliCommand::Rescore(args)) => run::rescore::rescore(&args.try_into()?)?,
        Some(CliCommand::Score(args)) => run::score::score(&args.on(devices), on_signals()?.as_ref())?,
        Some(CliCommand::Vote(args)) => run::vote::main(&args.into())?,
        Some(CliCommand::Batch(args)) => return batch::main(&args.on(devices), on_signals()?.as_ref()),
        Some(CliCommand::Serve(args)) => return serve::main(&args.on(devices), on_signals()?.as_ref()),
        Some(CliCommand::Tree(args)) => {
            let (computed, shown) = args.on(device);
            if let Some(options) = computed {
                run::attention::attention(&options, on_signals()?.as_ref())?;
            }
            shown.map_or(Ok(()), |options| view::show(&options))?;
        }
        Some(CliCommand::Judge(args)) => match args.into() {
            JudgeCommand::Score(options) => scoring::score(&options, on_signals()?.as_ref())?,
            JudgeCommand::Doctor(options) => scoring::doctor(&options)?,
        },
        Some(CliCommand::Help(args)) => match (&args.topic[..], args.schema) {
            ([topic], false) if topic == "task" => out::text(task::help::text())?,
            ([topic], true) if topic == "task" => out::text(task::help::schema())?,
            (_, true) => return Err(Error::value("--schema", "`help task` with it", args.topic.join(" "))),
            (words, false) => out::text(Cli::help_of(words)?)?,
        },
        Some(CliCommand::New(args)) => {
            let name = task::scaffold::task_name(&args.name);
            for path in task::scaffold::write(std::path::Path::new("."), name)? {
                out::line(format_args!("wrote {}", path.display()))?;
            }
            out::line(format_args!("next: edit them, then `offshoot run {name}.json --model DIR --dry-run`"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn welcome(device: Opened) -> String {
    format!(
        "Offshoot {}: sampling trees from language models
device: {device}

Three commands to try:
  offshoot run                     the bundled demo: one sample beside a vote, then shared beside unshared
  offshoot new my-task             a commented task file for your own items
  offshoot check --model DIR       what a Hugging Face model folder holds
",
        env!("CARGO_PKG_VERSION")
    )
}
