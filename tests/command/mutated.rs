//! Input from strangers: files of every kind that the command reads are damaged at random, and the command must still
//! end as it says it does: a documented exit code, a sentence where it fails, no panic, no abort, no hang, no flood of
//! memory. `mutated_files` has the readers alone read many more.
//!
//! `OFFSHOOT_MUTATIONS=N` tries N inputs; `OFFSHOOT_MUTATION=K` tries input K alone and prints what was changed.

use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use offshoot_core::dice::Dice;

use crate::full::some_or_full;
use crate::judging;
use crate::mutation_seeds::{copy_folder, seeds};
use crate::mutations::mutate_once_or_twice;
use crate::runs::offshoot;
use crate::skip::skipped;
use crate::watched::{CommandEnd, watched};

/// Peak resident memory: the demo model and its pool, and 1 GiB.
pub const MEMORY_LIMIT: u64 = (1 << 30) + (1 << 28);

/// A command and the file of its folder that is damaged before it runs.
struct Input {
    file: &'static str,
    command: &'static [&'static str],
}

const RUN: &[&str] = &["run", "task.json", "--out", "fresh", "--limit", "2"];
const MODEL: &[&str] = &["run", "task.json", "--model", "model", "--out", "fresh", "--limit", "1"];
const JUDGE_CODE: &[&str] = &["judge", "--problems", "human_eval.jsonl", "--samples", "code.jsonl", "--out", "j"];

const INPUTS: &[Input] = &[
    Input { file: "task.json", command: RUN },
    Input { file: "task.json", command: &["plan", "task.json"] },
    Input { file: "task.json", command: &["run", "task.json", "--dry-run"] },
    Input { file: "items.jsonl", command: RUN },
    Input { file: "items.csv", command: &["run", "task.json", "--set", "items.path=items.csv", "--out", "fresh"] },
    Input {
        file: "items.parquet",
        command: &["run", "task.json", "--set", "items.path=items.parquet", "--out", "fresh", "--limit", "2"],
    },
    Input { file: "votes.parquet", command: &["vote", "votes.parquet", "--set", "answer.regex=(\\d+)"] },
    Input { file: "apps.parquet", command: &["judge", "--problems", "apps.parquet", "--references", "--out", "j"] },
    Input { file: "shared.txt", command: RUN },
    Input { file: "tot.json", command: &["run", "tot.json", "--out", "fresh", "--limit", "1"] },
    Input { file: "model/config.json", command: MODEL },
    Input { file: "model/generation_config.json", command: MODEL },
    Input { file: "model/tokenizer.json", command: MODEL },
    Input { file: "model/tokenizer_config.json", command: MODEL },
    Input { file: "model/special_tokens_map.json", command: MODEL },
    Input { file: "model/model.safetensors", command: MODEL },
    Input { file: "chat/chat_template.jinja", command: &["run", "chat.json", "--out", "fresh", "--limit", "1"] },
    Input { file: "batch.jsonl", command: &["batch", "batch.jsonl", "--model", "demo", "--out", "answers.jsonl"] },
    Input {
        file: "batch.jsonl.gz",
        command: &["batch", "batch.jsonl.gz", "--model", "demo", "--out", "answers.jsonl"],
    },
    Input { file: "chat.json", command: &["run", "chat.json", "--out", "fresh", "--limit", "1"] },
    Input {
        file: "shards/model.safetensors.index.json",
        command: &["run", "task.json", "--model", "shards", "--out", "fresh", "--limit", "1"],
    },
    Input { file: "votes.jsonl", command: &["vote", "votes.jsonl", "--set", "answer.regex=(\\d+)"] },
    Input { file: "out/samples.jsonl", command: &["run", "task.json", "--out", "out", "--resume"] },
    Input { file: "out/items.jsonl", command: &["run", "task.json", "--out", "out", "--resume"] },
    Input { file: "out/manifest.json", command: &["run", "task.json", "--out", "out", "--resume"] },
    Input { file: "out/samples.jsonl", command: &["rescore", "out", "--out", "again"] },
    Input { file: "out/manifest.json", command: &["tree", "out"] },
    Input { file: "human_eval.jsonl", command: JUDGE_CODE },
    Input { file: "code.jsonl", command: JUDGE_CODE },
    Input { file: "mbpp.jsonl", command: &["judge", "--problems", "mbpp.jsonl", "--references", "--out", "j"] },
    Input { file: "plus.jsonl", command: &["judge", "--problems", "plus.jsonl", "--references", "--out", "j"] },
    Input { file: "apps.jsonl", command: &["judge", "--problems", "apps.jsonl", "--references", "--out", "j"] },
];

/// What is wrong with the way in which a command ended, if anything.
fn complaint(end: &CommandEnd) -> Option<String> {
    let code = end.status.code();
    let said = end.errors.trim();
    if said.contains("panicked at") || said.contains("internal error") {
        return Some("a panic".into());
    }
    if end.peak_bytes > MEMORY_LIMIT {
        return Some(format!("{} MiB of memory", end.peak_bytes >> 20));
    }
    match code {
        None => Some(format!("{}", end.status)),
        // Work that is merely long must hear that it is to stop.
        Some(143) if end.stopped => None,
        Some(0) => None,
        Some(2) if said.is_empty() => Some("exit code 2 without a word".into()),
        Some(2) if said.len() > 4_000 => Some(format!("{} bytes of words", said.len())),
        Some(2) => None,
        Some(code) => Some(format!("exit code {code}")),
    }
}

#[test]
fn mutated_inputs_end_with_a_sentence() {
    let judging = judging::can_judge();
    let (first, count) = match number("OFFSHOOT_MUTATION") {
        Some(one) => (one, 1),
        None => {
            let each = some_or_full(1, 10);
            (0, number("OFFSHOOT_MUTATIONS").unwrap_or(each * INPUTS.len() as u64))
        }
    };
    let seeds = seeds();
    let (next, complaints) = (AtomicU64::new(first), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= first + count {
                return;
            }
            // Every input in its turn.
            let input = &INPUTS[(number % INPUTS.len() as u64) as usize];
            if input.command[0] == "judge" && !judging {
                continue;
            }
            let own = tempfile::tempdir().expect("a temporary folder");
            copy_folder(seeds.path(), own.path());
            let file = own.path().join(input.file);
            let mut bytes = fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", input.file));
            let done = mutate_once_or_twice(&mut Dice::new(number), &mut bytes);
            fs::remove_file(&file).expect("it is in a folder of its own");
            fs::write(&file, &bytes).expect("written");
            let mut command = offshoot(own.path(), input.command);
            if !["judge", "tree", "rescore"].contains(&input.command[0]) {
                command.args(["--threads", "1"]);
            }
            let end = watched(command);
            if count == 1 {
                println!("{}\n{done:?}\n{}\n{}", input.file, end.status, end.errors);
            }
            if let Some(what) = complaint(&end) {
                let tail = short(end.errors.trim().lines().last().unwrap_or_default());
                let done: Vec<String> = done.iter().map(|done| short(done)).collect();
                let line = format!("{number}: {} ({done:?}), {:?}: {what}: {tail}", input.file, input.command);
                complaints.lock().expect("no thread panics with it").push(line);
            }
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(work))));
    let complaints = complaints.into_inner().expect("no thread panics with it");
    assert!(complaints.is_empty(), "{} of {count} inputs:\n{}", complaints.len(), complaints.join("\n"));
    if !judging {
        skipped("files of the judge are not mutated here");
    }
}

/// A number that the environment has.
pub fn number(variable: &str) -> Option<u64> {
    std::env::var(variable)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{variable}: {text:?} is no number")))
}

/// What of a long text is shown.
pub fn short(text: &str) -> String {
    text.chars().take(300).collect()
}
