//! Reads the command line. An invalid value is reported like all other errors, with the option, what was expected and
//! what was found; so is an option that the command would ignore. Help, version and unknown options are left to clap.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches};

use super::{Cli, CliCommand};
use offshoot_core::error::{Error, Result};

impl Cli {
    /// Reads the command line. Prints clap's own messages (help, version, unknown options) and ends the process.
    pub fn read() -> Result<Self> {
        let command = hide_ignored_options(with_negative_numbers(Self::command()));
        let read = command.try_get_matches().and_then(|matches| {
            let name = matches.subcommand_name().unwrap_or_default().to_string();
            Ok((Self::from_arg_matches(&matches)?, name))
        });
        let (cli, name) =
            read.map_err(|error| value_error(&error).unwrap_or_else(|| error.format(&mut Self::command()).exit()))?;
        cli.refuse_ignored_options(&name)?;
        Ok(cli)
    }

    /// The help of the command that these words name; of the program without any.
    pub fn help_of(words: &[String]) -> Result<String> {
        let mut command = hide_ignored_options(Self::command());
        command.build();
        let mut named = &mut command;
        for word in words {
            let known: Vec<String> = named.get_subcommands().map(|command| command.get_name().to_string()).collect();
            named = match named.find_subcommand_mut(word) {
                Some(command) => command,
                None => {
                    return Err(Error::value("help", format!("task, or one of {}", known.join(", ")), word.clone()));
                }
            };
        }
        Ok(named.render_long_help().to_string())
    }

    /// Refuses options that the command of this name would ignore.
    fn refuse_ignored_options(&self, name: &str) -> Result<()> {
        if let Some(CliCommand::Bench(bench)) = &self.command {
            bench.refuse_ignored_options()?;
        }
        let uses_several = match &self.command {
            Some(CliCommand::Bench(bench)) => bench.uses_several(),
            Some(command) => matches!(
                command,
                CliCommand::Run(_) | CliCommand::Batch(_) | CliCommand::Serve(_) | CliCommand::Plan(_)
            ),
            None => false,
        };
        if let Some(devices) = self.devices.as_ref().filter(|_| !uses_several) {
            let expected =
                "--device, because only run, batch, serve, plan, bench workloads and bench allreduce use several";
            return Err(Error::value("--devices", expected, devices.to_string()));
        }
        if let Some(ranks) = self.tensor_parallel.filter(|_| !uses_several) {
            let expected = "run, batch, serve, plan, bench workloads or bench allreduce, which use several devices";
            return Err(Error::value("--tensor-parallel", expected, ranks.to_string()));
        }
        let (name, ignored) = match &self.command {
            Some(CliCommand::Tree(tree)) if !tree.attention => {
                ("tree (without --attention)", &["device", "threads"][..])
            }
            Some(CliCommand::Check(check)) if check.device.kernels => ("check --kernels", &["device", "threads"][..]),
            _ => (name, ignored_options(name)),
        };
        let given = [("device", self.device.map(|x| x.to_string())), ("threads", self.threads.map(|x| x.to_string()))];
        for (option, found) in given {
            let Some(found) = found.filter(|_| ignored.contains(&option)) else { continue };
            let expected = match name {
                "plan" => "--device-profile instead, because `offshoot plan` computes on no device".to_string(),
                _ => format!("no such option of `offshoot {name}`, which computes on no device"),
            };
            return Err(Error::value(format!("--{option}"), expected, found));
        }
        Ok(())
    }
}

/// Global options that the command of this name ignores, because it computes on no device.
fn ignored_options(command: &str) -> &'static [&'static str] {
    match command {
        "rescore" | "vote" | "judge" | "new" | "help" => &["device", "devices", "tensor_parallel", "threads"],
        "check" | "tree" => &["devices", "tensor_parallel"],
        // It sorts prompts, with `--threads` threads.
        "plan" => &["device"],
        _ => &[],
    }
}

/// Hides ignored options from the help; they are still parsed, so that they can be refused with a message.
fn hide_ignored_options(command: clap::Command) -> clap::Command {
    let options: Vec<clap::Arg> = command.get_arguments().cloned().collect();
    command.mut_subcommands(|command| {
        let ignored = ignored_options(command.get_name());
        let hidden = options.iter().filter(|option| ignored.contains(&option.get_id().as_str()));
        // An option that the subcommand itself has replaces the global one of the same name.
        command.args(hidden.map(|option| option.clone().hide(true)))
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
        (_, Some(ContextValue::Strings(known))) if !known.is_empty() => format!("one of {}", known.join(", ")),
        _ => "a value".to_string(),
    };
    Some(Error::value(option, expected, found))
}
