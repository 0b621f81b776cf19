//! The `offshoot` command: reads the command line, calls the module that does the work, and turns an error into one
//! sentence and an exit code.

use std::io::Write;
use std::process::ExitCode;

use offshoot::cli::stopping::{exit_code, on_signals, survive_file_limit};
use offshoot::cli::{CheckCommand, Cli, CliCommand, JudgeCommand, PlanCommand, show_bars};
use offshoot_core::error::{Error, Result};
use offshoot_core::figures;
use offshoot_core::{out, setting};
use offshoot_cuda::ranks::nccl::NO_MULTICAST;
use offshoot_estimate as estimate;
use offshoot_eval::{run, scoring, task, view};
use offshoot_inspect as inspect;
use offshoot_lab::check;
use offshoot_launch::Opened;
use offshoot_openai::batch;
use offshoot_serve as serve;

fn main() -> ExitCode {
    offshoot::enter_if_helper();
    setting::spell(|name| format!("--{}", name.replace('_', "-")));
    let (variable, value) = NO_MULTICAST;
    // SAFETY: the first statement of a process that has no second thread yet, so nobody else reads the environment.
    unsafe { std::env::set_var(variable, value) };
    show_bars();
    let read = Cli::read().inspect(|cli| start_log(cli.verbose));
    match survive_file_limit().and(read).and_then(dispatch) {
        Ok(code) => code,
        Err(error) if out::reader_has_gone(&error) => ExitCode::SUCCESS,
        Err(error) => {
            out::aside(format_args!("offshoot: {error}"));
            ExitCode::from(exit_code(&error))
        }
    }
}

fn dispatch(cli: Cli) -> Result<ExitCode> {
    start_threads(cli.threads)?;
    let (device, devices) = (cli.device.unwrap_or_default(), cli.chosen_devices()?);
    match cli.command {
        None => out::text(welcome(device.open(None)?))?,
        Some(CliCommand::Run(args)) => return run::run(&args.on(devices), on_signals()?.as_ref()),
        Some(CliCommand::Plan(args)) => match args.on(cli.devices.as_ref(), cli.tensor_parallel)? {
            PlanCommand::Job(options) => estimate::main(&options)?,
            PlanCommand::Trace(options) => estimate::trace::main(&options)?,
        },
        Some(CliCommand::Check(args)) => {
            let holds = match args.into() {
                CheckCommand::Model { folder, how } => inspect::model(device, &folder, &how)?,
                CheckCommand::Device { how, deterministic } => check::check(device, &how, deterministic)?,
            };
            return if holds { Ok(ExitCode::SUCCESS) } else { Err(Error::CheckFailed) };
        }
        Some(CliCommand::Bench(args)) => args.run(device, &devices)?,
        Some(CliCommand::Rescore(args)) => run::rescore::rescore(&args.into())?,
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

fn start_log(verbose: u8) {
    let level = match verbose {
        0 => log::LevelFilter::Warn,
        1 => log::LevelFilter::Info,
        _ => log::LevelFilter::Debug,
    };
    let mut builder = env_logger::Builder::new();
    builder.filter_module("offshoot", level).parse_default_env();
    builder.format(|to, record| match record.level() {
        log::Level::Error => writeln!(to, "error: {}", record.args()),
        log::Level::Warn => writeln!(to, "warning: {}", record.args()),
        _ => {
            let (time, millis) = figures::now();
            writeln!(to, "[{time}.{millis:03}Z] {}", record.args())
        }
    });
    builder.init();
}

fn start_threads(threads: Option<usize>) -> Result<()> {
    let Some(threads) = threads else { return Ok(()) };
    let built = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
    built.map_err(|error| Error::Internal(format!("the thread pool does not start: {error}")))
}
