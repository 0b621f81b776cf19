//! The command line as it is read: what is wrong with an option is an error like all others, which names the option, what was
//! expected and what was found, and so is an option that the command would have to ignore. Help, versions and options that nobody
//! knows are clap's affair.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches};

use super::{Cli, Command};
use crate::error::{Error, Result};

impl Cli {
    /// Reads the command line; where clap has the last word, it is said and the process ends.
    pub fn read() -> Result<Self> {
        let command = with_what_means_something(with_negative_numbers(Self::command()));
        let read = command.try_get_matches().and_then(|matches| Self::from_arg_matches(&matches));
        let cli =
            read.map_err(|error| of_value(&error).unwrap_or_else(|| error.format(&mut Self::command()).exit()))?;
        cli.refuse_what_means_nothing()?;
        Ok(cli)
    }

    /// Refuses what the command would have to ignore.
    fn refuse_what_means_nothing(&self) -> Result<()> {
        let refused = |option: &str, command: &str, found: &str| {
            let expected = format!("no such option of `offshoot {command}`, which computes on no device");
            Err(Error::value(option, expected, found))
        };
        let command = match &self.command {
            Some(Command::Plan(_)) => {
                let Some(device) = self.device else { return Ok(()) };
                let expected = "--device-profile in its place, for `offshoot plan` computes on no device";
                return Err(Error::value("--device", expected, device.to_string()));
            }
            Some(Command::Rescore(_)) => "rescore",
            Some(Command::Tree(_)) => "tree",
            Some(Command::Judge(_)) => "judge",
            Some(Command::New(_)) => "new",
            Some(Command::Check(check)) if check.kernels => "check --kernels",
            None | Some(Command::Run(_) | Command::Check(_) | Command::Bench(_) | Command::Batch(_)) => return Ok(()),
        };
        match (self.device, self.threads) {
            (Some(device), _) => refused("--device", command, &device.to_string()),
            (None, Some(threads)) => refused("--threads", command, &threads.to_string()),
            (None, None) => Ok(()),
        }
    }
}

/// Does not list the options of what computes where nothing is computed on a device; they are known still, to be refused in words.
fn with_what_means_something(command: clap::Command) -> clap::Command {
    const WITHOUT: [(&str, &[&str]); 5] = [
        ("rescore", &["device", "threads"]),
        ("tree", &["device", "threads"]),
        ("judge", &["device", "threads"]),
        ("new", &["device", "threads"]),
        ("plan", &["device"]),
    ];
    let options: Vec<clap::Arg> = command.get_arguments().cloned().collect();
    WITHOUT.into_iter().fold(command, |command, (name, without)| {
        let hidden = options.iter().filter(|option| without.contains(&option.get_id().as_str()));
        // Where a subcommand has an option of this name itself, it is not given the one of all.
        command.mut_subcommand(name, |command| command.args(hidden.map(|option| option.clone().hide(true))))
    })
}

/// Has `-1` read as a value, which an option may refuse, and not as an option that nobody knows.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| match arg.get_action().takes_values() && !arg.is_positional() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    });
    command.mut_subcommands(with_negative_numbers)
}

/// The error of a value that its option does not take; `None` for whatever else clap found.
fn of_value(error: &clap::Error) -> Option<Error> {
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
