//! Reads the command line, and refuses options that the command would ignore.

use offshoot_args::command::{described, read};
use offshoot_core::error::{Error, Result};

use super::{Cli, CliCommand};

impl Cli {
    /// Reads the command line. Prints clap's own messages (help, version, unknown options) and ends the process.
    pub fn read() -> Result<Self> {
        let (cli, name): (Self, _) = read(ignored_options)?;
        cli.refuse_ignored_options(&name)?;
        Ok(cli)
    }

    /// The help of the command that these words name; of the program without any.
    pub fn help_of(words: &[String]) -> Result<String> {
        let mut command = described::<Self>(ignored_options);
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
