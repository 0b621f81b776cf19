//! What the programs `offshoot` and `offshoot-lab` have in common: reading the command line, and the machine that a
//! command computes on. An invalid value is reported like all other errors, with the option, what was expected and what
//! was found. Help, version and unknown options are left to clap.

use std::io::Write;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, FromArgMatches};

use offshoot_core::error::{Error, Result};
use offshoot_core::figures;
use offshoot_launch::{DeviceChoice, Devices};

use super::whole;

/// Upper limit of `--threads`.
const MOST_THREADS: u64 = 1024;

/// The devices and threads that a command computes on, and what it says of its work: options of every command.
#[derive(Clone, Debug, Args)]
pub struct MachineArgs {
    /// Device: auto (a usable GPU, else the CPU), cpu, cuda or cuda:N [default: auto]
    #[arg(long, global = true, value_name = "DEVICE")]
    pub device: Option<DeviceChoice>,

    /// Several devices of one kind instead, each with the whole model and a part of the prompts: all (every GPU), or a
    /// list such as cuda:0,cuda:1; cpu,cpu divides the cores
    #[arg(long, global = true, value_name = "DEVICES", conflicts_with = "device")]
    pub devices: Option<Devices>,

    /// Divide one model among so many devices, 1, 2, 4 or 8: those of --devices, else the chosen one and those after
    /// it. With --deterministic, and always on the CPU, samples do not depend on their number; those of a CPU without
    /// this option are others
    #[arg(long, global = true, value_name = "N", value_parser = whole::<usize>(1..=8))]
    pub tensor_parallel: Option<usize>,

    /// Threads for the CPU backend, and for sorting prompts (default: one per core)
    #[arg(long, global = true, value_name = "N", value_parser = whole::<usize>(1..=MOST_THREADS))]
    pub threads: Option<usize>,

    /// Print more on stderr: once (-v) each stage of the work, twice (-vv) details
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

impl MachineArgs {
    /// The device that was chosen with `--device`, or by default.
    pub fn one_device(&self) -> DeviceChoice {
        self.device.unwrap_or_default()
    }

    /// The devices that were chosen, one or several, each with the whole model.
    pub fn listed_devices(&self) -> Devices {
        self.devices.clone().unwrap_or_else(|| self.one_device().into())
    }

    /// The devices that were chosen, each with the whole model or together with one.
    ///
    /// # Errors
    ///
    /// They are not as many as `--tensor-parallel` says.
    pub fn chosen_devices(&self) -> Result<Devices> {
        match self.tensor_parallel {
            Some(ranks) => self.listed_devices().together(ranks),
            None => Ok(self.listed_devices()),
        }
    }

    /// Refuses options that choose several devices, for a command that uses one; `several`: the commands that use more.
    ///
    /// # Errors
    ///
    /// There is one.
    pub fn refuse_several(&self, several: &str) -> Result<()> {
        if let Some(devices) = &self.devices {
            let expected = format!("--device, because only {several} use several");
            return Err(Error::value("--devices", expected, devices.to_string()));
        }
        if let Some(ranks) = self.tensor_parallel {
            let expected = format!("{several}, which use several devices");
            return Err(Error::value("--tensor-parallel", expected, ranks.to_string()));
        }
        Ok(())
    }

    /// Refuses those of the options `ignored` that were given; `expected`: what the command takes instead.
    ///
    /// # Errors
    ///
    /// There is one.
    pub fn refuse(&self, ignored: &[&str], expected: impl Fn() -> String) -> Result<()> {
        let given = [("device", self.device.map(|x| x.to_string())), ("threads", self.threads.map(|x| x.to_string()))];
        for (option, found) in given {
            if let Some(found) = found.filter(|_| ignored.contains(&option)) {
                return Err(Error::value(format!("--{option}"), expected(), found));
            }
        }
        Ok(())
    }

    /// Starts the log.
    pub fn start_log(&self) {
        let level = match self.verbose {
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

    /// Starts the threads of the CPU backend, if their number was chosen.
    ///
    /// # Errors
    ///
    /// They cannot be started.
    pub fn start_threads(&self) -> Result<()> {
        let Some(threads) = self.threads else { return Ok(()) };
        let built = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
        built.map_err(|error| Error::Internal(format!("the thread pool does not start: {error}")))
    }
}

/// For the name of a command, the options of [`MachineArgs`] that it ignores.
pub type IgnoredOptions = fn(&str) -> &'static [&'static str];

/// The command line's description. Ignored options are not in the help of a command; they are still parsed, so that
/// they can be refused with a message.
pub fn described<C: CommandFactory>(ignored: IgnoredOptions) -> clap::Command {
    let command = C::command();
    let options: Vec<clap::Arg> = command.get_arguments().cloned().collect();
    command.mut_subcommands(|command| {
        let ignored = ignored(command.get_name());
        let hidden = options.iter().filter(|option| ignored.contains(&option.get_id().as_str()));
        // An option that the subcommand itself has replaces the global one of the same name.
        command.args(hidden.map(|option| option.clone().hide(true)))
    })
}

/// For an error of clap, a sentence that says more than its own, if there is one.
pub type SayMore = fn(&clap::Error) -> Option<Error>;

/// Reads the command line; its command's name is the second, or empty. Prints clap's own messages (help, version,
/// unknown options) and ends the process, unless `say_more` knows better.
///
/// # Errors
///
/// An option does not take its value; what `say_more` says.
pub fn read<C: CommandFactory + FromArgMatches>(ignored: IgnoredOptions, say_more: SayMore) -> Result<(C, String)> {
    let read = with_negative_numbers(described::<C>(ignored)).try_get_matches().and_then(|matches| {
        let name = matches.subcommand_name().unwrap_or_default().to_string();
        Ok((C::from_arg_matches(&matches)?, name))
    });
    read.map_err(|error| {
        let said = value_error(&error).or_else(|| say_more(&error));
        said.unwrap_or_else(|| error.format(&mut C::command()).exit())
    })
}

/// Parses `-1` as a value, which an option may refuse, instead of as an unknown option.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| match arg.get_action().takes_values() && !arg.is_positional() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    });
    command.mut_subcommands(with_negative_numbers)
}

/// The error of an invalid value; `None` for other errors of clap.
fn value_error(error: &clap::Error) -> Option<Error> {
    if !matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue) {
        return None;
    }
    let text = |kind| match error.get(kind)? {
        ContextValue::String(text) => Some(text.as_str()),
        _ => None,
    };
    // `--limit <N>`
    let option = text(ContextKind::InvalidArg)?.split(' ').next()?;
    let found = text(ContextKind::InvalidValue).filter(|found| !found.is_empty()).unwrap_or("nothing");
    let of_parser = std::error::Error::source(error).and_then(|source| source.downcast_ref());
    let expected = match (of_parser, error.get(ContextKind::ValidValue)) {
        (Some(Error::Value { expected, .. }), _) => expected.clone(),
        (Some(unread), _) => format!("what can be read ({unread})"),
        (_, Some(ContextValue::Strings(known))) if !known.is_empty() => format!("one of {}", known.join(", ")),
        _ => "a value".to_string(),
    };
    Some(Error::value(option, expected, found))
}
