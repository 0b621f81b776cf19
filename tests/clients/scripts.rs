//! The Python and shell clients of this folder against one server. OFFSHOOT_CLIENTS names the interpreter of an
//! environment that has their packages (`.ci/run` makes one with requirements.txt), OFFSHOOT_TYPED_CLIENTS that of one
//! with requirements-typed.txt; a script whose packages are lacking is skipped.

use std::path::Path;
use std::process::Command;

use crate::served::Served;
use crate::skip::skipped;

/// The exit code of a script that lacks a package.
const SKIPPED: i32 = 77;

/// Where the scripts are.
fn scripts() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients"))
}

/// Runs a script against a server of its own.
fn holds(script: &str) {
    let mut server = Served::start(&["--threads", "2"]);
    let mut command = match script.ends_with(".sh") {
        true => Command::new("bash"),
        false => python("OFFSHOOT_CLIENTS"),
    };
    match script.ends_with(".sh") {
        true => command.arg(scripts().join(script)).arg(server.url()),
        false => command.arg(scripts().join(script)).arg("--base-url").arg(server.url()),
    };
    run(script, command);
    server.assert_well();
}

/// The interpreter that this variable names.
fn python(variable: &str) -> Command {
    Command::new(std::env::var_os(variable).unwrap_or_else(|| "python3".into()))
}

/// Runs a script's command; what it printed is the message if it fails.
fn run(script: &str, mut command: Command) {
    let ran =
        command.env("PYTHONDONTWRITEBYTECODE", "1").env("NO_PROXY", "*").output().expect("the interpreter starts");
    let said = [ran.stdout, ran.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    println!("{said}");
    match ran.status.code() {
        Some(0) => {}
        Some(SKIPPED) => skipped(said.trim()),
        _ => panic!("{script} ends with {}:\n{said}", ran.status),
    }
}

#[test]
fn curl() {
    holds("curl.sh");
}

#[test]
fn openai_python() {
    holds("openai_client.py");
}

#[test]
fn lm_eval() {
    holds("lm_eval_client.py");
}

#[test]
fn evalplus() {
    holds("evalplus_client.py");
}

#[test]
fn inspect_ai() {
    holds("inspect_client.py");
}

/// reward_hub and its_hub: a server of the bundled model, and one of a process reward model under the one name that
/// reward_hub knows.
#[test]
fn scorers() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = folder.path().join("prm");
    let mut made = python("OFFSHOOT_TYPED_CLIENTS");
    made.arg(scripts().join("tiny_prm.py")).arg(&model);
    run("tiny_prm.py", made);
    let mut server = Served::start(&["--threads", "2"]);
    let mut scorer = Served::start_model(&model, &["--threads", "2", "--name", "Qwen/Qwen2.5-Math-PRM-7B"]);
    let mut command = python("OFFSHOOT_TYPED_CLIENTS");
    command.arg(scripts().join("scorers_client.py"));
    command.arg("--base-url").arg(server.url()).arg("--scorer-url").arg(scorer.url());
    run("scorers_client.py", command);
    server.assert_well();
    scorer.assert_well();
}

/// Typed answers, tools and responses: all clients against one server.
#[test]
fn forms_and_tools() {
    let mut server = Served::start(&["--threads", "2"]);
    let samples = ["--samples", "3", "--max-tokens", "160"];
    let all: [(&str, &str, &[&str]); 3] = [
        ("openai_forms_client.py", "OFFSHOOT_CLIENTS", &[]),
        ("typed_clients.py", "OFFSHOOT_TYPED_CLIENTS", &[]),
        ("../../benches/forms/samples.py", "OFFSHOOT_TYPED_CLIENTS", &samples),
    ];
    for (script, interpreter, options) in all {
        let mut command = python(interpreter);
        command.arg(scripts().join(script)).arg("--base-url").arg(server.url()).args(options);
        run(script, command);
        server.assert_well();
    }
}
