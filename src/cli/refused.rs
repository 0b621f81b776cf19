//! Reads the command line, and refuses options that the command would ignore.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use offshoot_args::command::{described, read};
use offshoot_core::error::{Error, Result};

use super::{Cli, CliCommand};

/// Where commands and options are that users look for here.
const LABORATORY: &str = "devices are checked by `offshoot-lab check` and measured by `offshoot-lab bench`, a program \
                          that `cargo build --release -p offshoot-lab` builds";

/// Options that `check` has in the laboratory only.
const OF_LABORATORY: [&str; 7] = ["--quick", "--goldens", "--json", "--kernels", "--arch", "--also", "--paths"];

impl Cli {
    /// Reads the command line. Prints clap's own messages (help, version, unknown options) and ends the process.
    pub fn read() -> Result<Self> {
        let (cli, name): (Self, _) = read(ignored_options, |error| of_laboratory(error).or_else(|| of_serve(error)))?;
        cli.refuse_ignored_options(&name)?;
        Ok(cli)
    }

    /// The help of the command that these words name; of the program without any.
    pub fn help_of(words: &[String]) -> Result<String> {
        let mut command = described::<Self>(ignored_options);
        command.build();
        let mut named = &mut command;
        for (at, word) in words.iter().enumerate() {
            let known: Vec<String> = named.get_subcommands().map(|command| command.get_name().to_string()).collect();
            named = match named.find_subcommand_mut(word) {
                Some(command) => command,
                None => return Err(no_such_topic(words, at, &known)),
            };
        }
        Ok(named.render_long_help().to_string())
    }

    /// Refuses options that the command of this name would ignore.
    fn refuse_ignored_options(&self, name: &str) -> Result<()> {
        let uses_several = matches!(
            self.command,
            Some(CliCommand::Run(_) | CliCommand::Batch(_) | CliCommand::Serve(_) | CliCommand::Plan(_))
        );
        if !uses_several {
            self.machine.refuse_several("run, batch, serve and plan")?;
        }
        let (name, ignored) = match &self.command {
            Some(CliCommand::Tree(tree)) if !tree.attention => {
                ("tree (without --attention)", &["device", "threads"][..])
            }
            _ => (name, ignored_options(name)),
        };
        self.machine.refuse(ignored, || match name {
            "plan" => "--device-profile instead, because `offshoot plan` computes on no device".to_string(),
            _ => format!("no such option of `offshoot {name}`, which computes on no device"),
        })
    }
}

/// The error of a word of `help` that names no command; `known`: those that could be named there.
fn no_such_topic(words: &[String], at: usize, known: &[String]) -> Error {
    let (expected, found) = match (&words[at][..], words.get(at + 1)) {
        ("task", Some(more)) if at == 0 => ("nothing after `task`".to_string(), more),
        _ if known.is_empty() => (format!("nothing after `{}`", words[..at].join(" ")), &words[at]),
        _ => (format!("task, or one of {}", known.join(", ")), &words[at]),
    };
    Error::value("help", expected, found.clone())
}

/// Says where the laboratory's commands and options are that were looked for here; `None` for other errors of clap.
fn of_laboratory(error: &clap::Error) -> Option<Error> {
    let is_check = || error.get(ContextKind::Usage).is_some_and(|usage| usage.to_string().contains(" check "));
    let argument = error.get(ContextKind::InvalidArg);
    match (error.kind(), argument, error.get(ContextKind::InvalidSubcommand)) {
        (ErrorKind::InvalidSubcommand, _, Some(ContextValue::String(name))) => {
            let expected = match &name[..] {
                "bench" => format!("a command of `offshoot help` ({LABORATORY})"),
                "sim" => format!("`offshoot plan`, which estimates a job on a simulated device ({LABORATORY})"),
                _ => return None,
            };
            Some(Error::value("command", expected, name.clone()))
        }
        (ErrorKind::MissingRequiredArgument, Some(ContextValue::Strings(missing)), _) => {
            let lacks_model = is_check() && missing.iter().any(|option| option.starts_with("--model"));
            let expected = format!("--model with a model folder or GGUF file ({LABORATORY})");
            lacks_model.then(|| Error::value("check", expected, "no --model"))
        }
        (ErrorKind::UnknownArgument, Some(ContextValue::String(option)), _) => {
            let is_there = is_check() && OF_LABORATORY.contains(&&option[..]);
            let expected = format!("an option of `offshoot help check` ({LABORATORY})");
            is_there.then(|| Error::value("check", expected, option.clone()))
        }
        _ => None,
    }
}

/// Says how `serve` is given a model, and a reward model without one; `None` for other errors of clap.
fn of_serve(error: &clap::Error) -> Option<Error> {
    if !error.get(ContextKind::Usage)?.to_string().contains(" serve ") {
        return None;
    }
    match (error.kind(), error.get(ContextKind::InvalidArg)?) {
        (ErrorKind::UnknownArgument, ContextValue::String(folder)) if !folder.starts_with('-') => {
            Some(Error::value("serve", "--model DIR, or --scorer DIR of a reward model alone", folder.clone()))
        }
        (ErrorKind::MissingRequiredArgument, ContextValue::Strings(missing))
            if missing.iter().any(|option| option.starts_with("--scorer")) =>
        {
            let expected = "--scorer DIR with options of a scorer; a reward model alone is served by it in place of \
                            --model";
            Some(Error::value("serve", expected, "no --scorer"))
        }
        _ => None,
    }
}

/// Global options that the command of this name ignores, because it computes on no device.
fn ignored_options(command: &str) -> &'static [&'static str] {
    match command {
        "models" | "rescore" | "vote" | "judge" | "new" | "help" => {
            &["device", "devices", "tensor_parallel", "threads"]
        }
        "check" | "tree" => &["devices", "tensor_parallel"],
        // It sorts prompts, with `--threads` threads.
        "plan" => &["device"],
        _ => &[],
    }
}
