//! `--dry-run`: describes a run without loading a model: the first prompt as rendered, tokens by level, memory.

use std::fmt::Write;

use crate::error::Result;
use crate::figures::{bytes, count, saved};
use crate::kv::PromptTree;
use crate::launch::LaunchSizes;
use crate::tokenizer::LevelTokens;

use super::{PreparedRun, RunOptions, worker};

pub fn report(prepared: &PreparedRun, options: &RunOptions) -> Result<String> {
    let (prompts, left_out) = prepared.encode_all()?;
    let distinct = PromptTree::new(prompts.as_slice()).distinct_tokens();
    let first = &prompts[0];
    let config = &prepared.folder.config;
    let samples = prepared.task.method.samples() as usize;
    let each = prepared.launch(options).sizes()?;
    let LaunchSizes { kv_bytes_per_token, state_bytes, weights, active_weights: active, .. } = each[0];
    let branches = each.iter().map(|sizes| sizes.branches).sum();
    // A sample has the pool of one device.
    let pool = each.iter().map(|sizes| sizes.pool).min().unwrap_or(0);
    let states = each.iter().map(|sizes| sizes.states).min().unwrap_or(0);
    let in_flight = worker::in_flight(prepared, branches);
    let kv = |tokens: usize| bytes((tokens * kv_bytes_per_token) as u64);
    let longest = prompts.iter().map(|prompt| prompt.tokens().len()).max().unwrap_or(0);
    let own = prepared.own_tokens().min(config.context - longest);
    let at_once = distinct as usize + in_flight * samples * own;

    let mut page = String::new();
    let mut line = |name: &str, value: String| {
        writeln!(page, "{name:<11} {value}").expect("writing to a string cannot fail");
    };
    line("task", format!("{}, {}", prepared.task.name, prepared.task.method.described()));
    line("model", format!("{}, {} context", prepared.model.display(), count(config.context as u64)));
    for LaunchSizes { device, ranks, weights, pool, .. } in &each {
        let (of, on_each) = (*ranks, if *ranks > 1 { " on each" } else { "" });
        let memory = match (each.len(), ranks) {
            (1, 1) => String::new(),
            _ => format!(": weights {}, kv pool {}{on_each}", bytes((weights / of) as u64), bytes((pool / of) as u64)),
        };
        line("device", format!("{device}{memory}"));
    }
    let of_each = if each.len() > 1 { " on each device" } else { "" };
    let used = if active < weights { format!(", a token uses {}", bytes(active as u64)) } else { String::new() };
    line("weights", format!("{}{of_each}{used}", bytes(weights as u64)));
    line("items", format!("{}, {in_flight} at once on {branches} branches", prompts.len()));
    for error in &left_out {
        line("left out", error.to_string());
    }
    let asked = prompts.iter().map(|prompt| prompt.tokens().len() as u64).sum();
    let shared = match asked {
        0 => String::new(),
        asked => format!(": {} shared", saved(distinct, asked)),
    };
    line("prompts", format!("{} tokens, {} of them distinct{shared}", count(asked), count(distinct)));
    line("levels", levels(&first.levels));
    line("kv", format!("{} a token; one item at its longest {}", kv(1), kv(longest + samples * own)));
    line(
        "kv at once",
        format!("{} at most; without sharing {}", kv(at_once), kv(in_flight * samples * (longest + own))),
    );
    let one_sample = (longest + own) * kv_bytes_per_token;
    let too_little = match one_sample > pool {
        true => format!(": too little for the longest sample, which may take {}", bytes(one_sample as u64)),
        false => String::new(),
    };
    line("kv pool", format!("{}{of_each}{too_little}", bytes(pool as u64)));
    if states > 0 {
        let (all, each) = (bytes((states * state_bytes) as u64), bytes(state_bytes as u64));
        line("states", format!("{all}{of_each}: {} of {each}, two for each branch that runs", count(states as u64)));
    }
    writeln!(page, "\nfirst prompt (item `{}`, {} tokens):\n{}", first.item.id, first.tokens().len(), first.text)
        .expect("writing to a string cannot fail");
    Ok(page)
}

/// `428 + 63 tokens`: the first prompt's levels, root first.
fn levels(levels: &LevelTokens) -> String {
    let lengths: Vec<String> = levels.levels().map(|level| level.len().to_string()).collect();
    format!("{} tokens in the first prompt", lengths.join(" + "))
}
