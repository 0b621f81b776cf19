//! `--dry-run`: what a job would be, before a model is loaded: the first prompt as rendered, tokens by level, memory.

use std::fmt::Write;

use crate::error::Result;
use crate::report::{bytes, count};

use super::{Prepared, RunOptions, worker};

pub fn report(prepared: &Prepared, options: &RunOptions) -> Result<String> {
    let first = &prepared.prompts[0];
    let config = &prepared.folder.config;
    let samples = prepared.task.method.samples() as usize;
    let in_flight = worker::in_flight(prepared, options.budget.max_branches);
    let kv_bytes = config.kv_bytes_per_token(prepared.facts.dtype);
    let kv = |tokens: usize| bytes((tokens * kv_bytes) as u64);
    let longest = prepared.prompts.iter().map(|prompt| prompt.tokens.len()).max().unwrap_or(0);
    let own = (prepared.task.sampling.max_tokens as usize).min(config.context - longest);
    let per_item = longest + samples * own;

    let mut page = String::new();
    let mut line = |name: &str, value: String| {
        writeln!(page, "{name:<11} {value}").expect("writing to a string cannot fail");
    };
    line("task", format!("{}, {} with {samples} samples", prepared.task.name, prepared.task.method.name()));
    line("model", format!("{}, {} context", prepared.model.display(), count(config.context as u64)));
    line("weights", bytes(config.weight_bytes(prepared.facts.dtype) as u64));
    line("items", format!("{}, {in_flight} at once", prepared.prompts.len()));
    line(
        "prompts",
        format!(
            "{} tokens, {} of them distinct: {:.1} % shared",
            count(prepared.prompt_tokens() as u64),
            count(prepared.distinct_tokens() as u64),
            100.0 * (1.0 - prepared.distinct_tokens() as f64 / prepared.prompt_tokens() as f64)
        ),
    );
    line("levels", levels(first.level_ends.as_slice()));
    line("kv", format!("{} a token; one item at its longest {}", kv(1), kv(per_item)));
    line(
        "kv at once",
        format!("{} at most; without sharing {}", kv(in_flight * per_item), kv(in_flight * samples * (longest + own))),
    );
    writeln!(page, "\nfirst prompt (item `{}`, {} tokens):\n{}", first.item.id, first.tokens.len(), first.text)
        .expect("writing to a string cannot fail");
    Ok(page)
}

/// `428 + 63 tokens`: the first prompt's levels, root first.
fn levels(ends: &[usize]) -> String {
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let lengths: Vec<String> = starts.zip(ends).map(|(start, end)| (end - start).to_string()).collect();
    format!("{} tokens in the first prompt", lengths.join(" + "))
}
