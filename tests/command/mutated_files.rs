//! Files from strangers, read without a command: files of every kind are damaged at random, and what reads them must
//! read them or return an error of one sentence: no panic, no abort, no hang, no flood of memory. Undamaged they are
//! read. `mutated` has the whole command read some.
//!
//! They are read by processes of this test's own program, each some of them, so that an abort is told like an error.
//! `OFFSHOOT_MUTATIONS=N` tries N files; `OFFSHOOT_MUTATION=K` tries file K alone and prints what was changed.

use std::fs;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Parser;
use offshoot::cli::{Cli, CliCommand};
use offshoot_core::dice::Dice;
use offshoot_core::error::Result;
use offshoot_core::ids::TokenId;
use offshoot_cpu::Cpu;
use offshoot_eval::run::{RenderedTask, rescore, vote};
use offshoot_eval::task::Overrides;
use offshoot_eval::{benchmark, view};
use offshoot_launch::EngineBudget;
use offshoot_model::{Decoder, ModelFolder, Sequence};
use offshoot_openai::batch::{self, AnswerOrigin, RequestFile};
use offshoot_text::Tokenizer;

use crate::full::some_or_full;
use crate::mutated::{MEMORY_LIMIT, number, short};
use crate::mutation_seeds::{copy_folder, seeds};
use crate::mutations::mutate_once_or_twice;
use crate::watched::watched_through;

/// A file of the seeds' folder, and what reads it there.
struct File {
    name: &'static str,
    read: fn(&Path) -> Result<()>,
}

const FILES: &[File] = &[
    File { name: "task.json", read: |folder| task(folder, "task.json", &[]) },
    File { name: "tot.json", read: |folder| task(folder, "tot.json", &[]) },
    File { name: "chat.json", read: |folder| task(folder, "chat.json", &[]) },
    File { name: "shared.txt", read: |folder| task(folder, "task.json", &[]) },
    File { name: "items.jsonl", read: |folder| task(folder, "task.json", &[]) },
    File { name: "items.csv", read: |folder| task(folder, "task.json", &["items.path=items.csv"]) },
    File { name: "items.parquet", read: |folder| task(folder, "task.json", &["items.path=items.parquet"]) },
    File { name: "chat/chat_template.jinja", read: |folder| task(folder, "chat.json", &[]) },
    File { name: "model/config.json", read: |folder| task(folder, "task.json", &["model=model"]) },
    File { name: "model/generation_config.json", read: |folder| task(folder, "task.json", &["model=model"]) },
    File { name: "model/tokenizer.json", read: |folder| task(folder, "task.json", &["model=model"]) },
    File { name: "model/tokenizer_config.json", read: |folder| task(folder, "task.json", &["model=model"]) },
    File { name: "model/special_tokens_map.json", read: |folder| task(folder, "task.json", &["model=model"]) },
    File { name: "small/config.json", read: |folder| model(&folder.join("small")) },
    File { name: "small/model.safetensors", read: |folder| model(&folder.join("small")) },
    File { name: "small-shards/model.safetensors.index.json", read: |folder| model(&folder.join("small-shards")) },
    File { name: "llama3.gguf", read: |folder| model(&folder.join("llama3.gguf")) },
    File { name: "sentencepiece.gguf", read: |folder| Tokenizer::load(&folder.join("sentencepiece.gguf")).map(drop) },
    File { name: "batch.jsonl", read: |folder| requests(folder, "batch.jsonl") },
    File { name: "batch.jsonl.gz", read: |folder| requests(folder, "batch.jsonl.gz") },
    File { name: "votes.jsonl", read: |folder| votes(folder, "votes.jsonl") },
    File { name: "votes.parquet", read: |folder| votes(folder, "votes.parquet") },
    File { name: "human_eval.jsonl", read: |folder| problems(&folder.join("human_eval.jsonl")) },
    File { name: "mbpp.jsonl", read: |folder| problems(&folder.join("mbpp.jsonl")) },
    File { name: "plus.jsonl", read: |folder| problems(&folder.join("plus.jsonl")) },
    File { name: "apps.jsonl", read: |folder| problems(&folder.join("apps.jsonl")) },
    File { name: "apps.parquet", read: |folder| problems(&folder.join("apps.parquet")) },
    File { name: "out/samples.jsonl", read: recorded },
    File { name: "out/items.jsonl", read: recorded },
    File { name: "out/trees/0.json", read: recorded },
    File { name: "out/samples.jsonl", read: rescored },
    File { name: "out/items.jsonl", read: rescored },
    File { name: "out/manifest.json", read: rescored },
];

/// All prompts of a task, in tokens.
fn task(folder: &Path, name: &str, changes: &[&str]) -> Result<()> {
    let overrides = Overrides { set: changes.iter().map(ToString::to_string).collect(), ..Overrides::default() };
    RenderedTask::new(&folder.join(name), &overrides, None)?.encode_all().map(drop)
}

/// A model, and a step of it.
fn model(path: &Path) -> Result<()> {
    let folder = ModelFolder::open(path)?;
    let mut backend = Cpu::open()?;
    let mut decoder = Decoder::load(&mut backend, &folder)?;
    let mut sequence = Sequence::new(&mut backend, &mut decoder, 2)?;
    sequence.extend(&[TokenId(0), TokenId(1)], 0..2).map(drop)
}

/// The requests of a batch file, and the answers of those that are refused.
fn requests(folder: &Path, name: &str) -> Result<()> {
    let lines = batch::read_lines(&folder.join(name), batch::DEFAULT_MOST_OF_LINE)?;
    let demo = folder.join("demo");
    let (model, tokenizer) = (ModelFolder::open(&demo)?, Arc::new(Tokenizer::load(&demo)?));
    let origin = AnswerOrigin::new(&model, &EngineBudget::default(), 0)?;
    let reader = batch::reader(&tokenizer, &model.config, "demo", 0);
    RequestFile::open(lines, &folder.join("answers.jsonl"), false, origin, &reader).map(drop)
}

fn votes(folder: &Path, name: &str) -> Result<()> {
    let file = folder.join(name).display().to_string();
    let command = Cli::parse_from(["offshoot", "vote", &file, "--set", r"answer.regex=(\d+)"]).command;
    let Some(CliCommand::Vote(args)) = command else { unreachable!("it is that command") };
    vote::main(&args.into())
}

fn problems(path: &Path) -> Result<()> {
    for record in benchmark::read(path, None)? {
        let record = record?;
        // What one record lacks is said of it alone.
        drop(benchmark::prompt(None, &record.id, &record.fields));
        drop(benchmark::references(None, &record.id, &record.fields));
    }
    Ok(())
}

/// A run's results, as they are shown.
fn recorded(folder: &Path) -> Result<()> {
    let run = view::read(&folder.join("out"), None)?;
    view::to_json(&run).map(drop)
}

fn rescored(folder: &Path) -> Result<()> {
    let [run, again] = ["out", "again"].map(|name| folder.join(name).display().to_string());
    let command = Cli::parse_from(["offshoot", "rescore", &run, "--out", &again]).command;
    let Some(CliCommand::Rescore(args)) = command else { unreachable!("it is that command") };
    rescore::rescore(&args.try_into()?)
}

/// Files that one process reads: few, so that an abort leaves few unread.
const SHARE: u64 = 20;
/// Has this test read `FIRST..END:FOLDER of the seeds`, in a process of its own.
const READER: &str = "OFFSHOOT_TEST_READER";

#[test]
fn mutated_files_are_read_or_refused_with_a_sentence() {
    if let Ok(order) = std::env::var(READER) {
        return read(&order);
    }
    let numbers = match number("OFFSHOOT_MUTATION") {
        Some(one) => one..one + 1,
        None => 0..number("OFFSHOOT_MUTATIONS").unwrap_or(some_or_full(200, 2000)),
    };
    let seeds = seeds();
    let (next, complaints) = (AtomicU64::new(numbers.start), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let first = next.fetch_add(SHARE, Ordering::Relaxed);
            if first >= numbers.end {
                return;
            }
            if let Some(complaint) = complaint(first..numbers.end.min(first + SHARE), seeds.path()) {
                complaints.lock().expect("no thread panics with it").push(complaint);
            }
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(work))));
    let complaints = complaints.into_inner().expect("no thread panics with it");
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// What is wrong with the way in which a process has read these files, if anything.
fn complaint(numbers: Range<u64>, seeds: &Path) -> Option<String> {
    let mut reader = Command::new(std::env::current_exe().expect("this program has a path"));
    let test = "mutated_files::mutated_files_are_read_or_refused_with_a_sentence";
    reader.args(["--exact", test, "--nocapture"]).env_remove("RUST_LOG");
    reader.env(READER, format!("{}..{}:{}", numbers.start, numbers.end, seeds.display()));
    let end = watched_through(reader, SHARE as u32);
    if numbers.end - numbers.start == 1 {
        println!("{}", end.errors);
    }
    match end.peak_bytes > MEMORY_LIMIT {
        true => Some(format!("{numbers:?}: {} MiB of memory", end.peak_bytes >> 20)),
        false => (!end.status.success()).then(|| format!("{numbers:?}: {}:\n{}", end.status, end.errors)),
    }
}

/// In a process of its own: reads the files that `order` names, and fails with what is wrong.
fn read(order: &str) {
    offshoot_core::bounded::use_helper(env!("CARGO_BIN_EXE_offshoot").into());
    let (numbers, seeds) = order.split_once(':').expect("the test says where the seeds are");
    let (first, end) = numbers.split_once("..").expect("the test says which");
    let numbers = first.parse::<u64>().expect("a number")..end.parse::<u64>().expect("a number");
    let is_alone = numbers.end - numbers.start == 1;
    let mut complaints = Vec::new();
    for number in numbers {
        let File { name, read } = &FILES[(number % FILES.len() as u64) as usize];
        let folder = || {
            let own = tempfile::tempdir().expect("a temporary folder");
            copy_folder(Path::new(seeds), own.path());
            own
        };
        // Once: else nothing would be read of a file that is always refused.
        if number < FILES.len() as u64 {
            let whole = folder();
            read(whole.path()).unwrap_or_else(|error| panic!("{name}, undamaged: {error}"));
        }
        let own = folder();
        let file = own.path().join(name);
        let mut bytes = fs::read(&file).unwrap_or_else(|error| panic!("{name}: {error}"));
        let done: Vec<String> = mutate_once_or_twice(&mut Dice::new(number), &mut bytes);
        let done: Vec<String> = done.iter().map(|done| short(done)).collect();
        // For an abort.
        eprintln!("{number}: {name}: {done:?}");
        fs::remove_file(&file).expect("it is in a folder of its own");
        fs::write(&file, &bytes).expect("written");
        let wrong = match catch_unwind(AssertUnwindSafe(|| read(own.path()))) {
            Err(_) => Some("a panic".to_string()),
            Ok(Ok(())) => None,
            Ok(Err(error)) => {
                let said = error.to_string();
                if is_alone {
                    eprintln!("{said}");
                }
                let is_sentence = error.exit_code() == 2 && !said.is_empty() && said.len() <= 4_000;
                (!is_sentence)
                    .then(|| format!("exit code {}, {} bytes: {}", error.exit_code(), said.len(), short(&said)))
            }
        };
        complaints.extend(wrong.map(|wrong| format!("{number}: {name} ({done:?}): {wrong}")));
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}
