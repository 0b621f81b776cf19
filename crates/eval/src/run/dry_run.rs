//! `--dry-run`: describes a run without loading a model: the first item's prompt as rendered, tokens by level, memory,
//! and what a judge would be asked.

use std::fmt::Write;

use crate::task::Item;
use offshoot_core::error::Result;
use offshoot_core::figures::{bytes, count, saved};
use offshoot_engine::CopyMemory;
use offshoot_kv::PromptTree;
use offshoot_launch::{LaunchSizes, SecondSizes};
use offshoot_text::LevelTokens;
use offshoot_text::reasoning::ContentStart;

use super::judge::PlannedQuestions;
use super::options::RunOptions;
use super::prepare::{PreparedRun, RunAdapter};
use super::prompts::ItemPrompt;

pub fn report(prepared: &PreparedRun, options: &RunOptions) -> Result<String> {
    let (prompts, left_out) = prepared.encode_all()?;
    let tree = PromptTree::new(prompts.as_slice());
    let distinct = tree.distinct_tokens();
    // The prompts are in the order in which they are computed.
    let first = prompts.iter().min_by_key(|prompt| prompt.item.index).expect("a run without prompts is refused");
    let context = prepared.context.tokens;
    let samples = prepared.task.method.samples() as usize;
    let each = prepared.launch(options).sizes()?;
    let LaunchSizes { kv_bytes_per_token, state_bytes, weights, active_weights: active, adapters, .. } = each[0];
    let branches = each.iter().map(|sizes| sizes.branches).sum();
    // A sample has the pool of one device.
    let pool = each.iter().map(|sizes| sizes.pool).min().unwrap_or(0);
    let states = each.iter().map(|sizes| sizes.states).min().unwrap_or(0);
    let in_flight = prepared.in_flight(branches);
    let LaunchSizes { page_bytes, pages, .. } = each[0];
    let kv = |pages: usize| bytes((pages * page_bytes) as u64);
    let end = |prompt: &ItemPrompt<'_>| position(prompt.tokens().len());
    // The last token has no keys and values.
    let last = |prompt: &ItemPrompt<'_>| {
        end(prompt) + position(prepared.more_tokens(context, prompt).count().saturating_sub(1))
    };
    // What one sample of a prompt adds.
    let own = |prompt: &ItemPrompt<'_>| pages.of_sample(end(prompt), last(prompt));
    let most = |count: &dyn Fn(&ItemPrompt<'_>) -> usize| prompts.iter().map(count).max().unwrap_or(0);
    // With sharing, no more than without: a first sample may go on in the last page of its prompt.
    let item = most(&|prompt| {
        let shared = pages.of_prompt(0, end(prompt)) + samples * own(prompt);
        shared.min(samples * pages.of_path(last(prompt)))
    });
    let path = most(&|prompt| pages.of_path(last(prompt)));
    let shared: usize = tree.nodes().iter().map(|node| pages.of_prompt(node.first, node.end)).sum();
    let unshared = in_flight * samples * path;
    let at_once = (in_flight * item).min(shared + in_flight * samples * most(&own));

    let mut page = String::new();
    let mut line = |name: &str, value: String| {
        writeln!(page, "{name:<11} {value}").expect("writing to a string cannot fail");
    };
    line("task", format!("{}, {}", prepared.task.name, prepared.task.method.described()));
    if let Some(form) = &prepared.task.sampling.form {
        line("form", format!("{}{}", form.described(), begins(first.content)));
    }
    line("model", format!("{}, {} context", prepared.model.display(), count(context as u64)));
    if let Some(RunAdapter { path, rank, .. }) = &prepared.adapter {
        line("adapter", format!("{}, of rank {rank}", path.display()));
    }
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
    let items: Vec<&Item> = prompts.iter().map(|prompt| prompt.item).collect();
    let questions = PlannedQuestions::of(prepared, &items)?;
    if let (Some(PlannedQuestions { most, .. }), Some(judge)) = (&questions, &prepared.judge) {
        let most = most.map_or("as many as thoughts".to_owned(), |most| format!("{} at most", count(most as u64)));
        line("questions", format!("{most}, about samples, to {}", judge.described()));
    }
    let freed = match pages.groups.window() {
        Some(_) => ", freed behind windows",
        None => "",
    };
    let each_token = bytes(kv_bytes_per_token as u64);
    let held = match (each[0].position_members, each[0].kv_copies) {
        (1, 1) => String::new(),
        (1, copies) => format!(" in {copies} copies"),
        (members, _) => format!(", divided by positions among {members}"),
    };
    line("kv", format!("{each_token} a token{held}{freed}; one item at its longest {}", kv(item)));
    line("kv at once", format!("{} at most; without sharing {}", kv(at_once), kv(unshared)));
    let too_little = match path > pool / page_bytes {
        true => format!(": too little for the longest sample, which may take {}", kv(path)),
        false => String::new(),
    };
    line("kv pool", format!("{}{of_each}{too_little}", bytes(pool as u64)));
    if let Some(copies) = Some(each[0].copies).filter(CopyMemory::is_of_latents) {
        line("copies", format!("{copies}{of_each}"));
    }
    if let Some(SecondSizes { kind, sizes: second }) = &each[0].second {
        let [of_second, of_both] = [second.pool, second.pool + pool].map(|pool| bytes(pool as u64));
        let tokens = second.pool / second.kv_bytes_per_token.max(1);
        let (weights_of_second, tokens) = (bytes(second.weights as u64), count(tokens as u64));
        line(kind.name(), format!("weights {weights_of_second}, kv pool {of_second} for {tokens} tokens"));
        let all = [second.weights, weights, second.pool, pool].into_iter().sum::<usize>();
        line("both models", format!("kv pools {of_both}; with their weights {}", bytes(all as u64)));
    }
    if adapters > 0 {
        line("adapters", format!("{} kept free", bytes(adapters as u64)));
    }
    if states > 0 {
        let (all, each) = (bytes((states * state_bytes) as u64), bytes(state_bytes as u64));
        line("states", format!("{all}{of_each}: {} of {each}, two for each branch that runs", count(states as u64)));
    }
    writeln!(page, "\nfirst prompt (item `{}`, {} tokens):\n{}", first.item.id, first.tokens().len(), first.text)
        .expect("writing to a string cannot fail");
    if let Some(PlannedQuestions { first: (key, text), .. }) = questions {
        writeln!(page, "\nfirst question to the judge (`{key}`):\n{text}").expect("writing to a string cannot fail");
    }
    Ok(page)
}

/// Where in a sample the form begins, behind the description of the form.
fn begins(content: ContentStart) -> &'static str {
    match content {
        ContentStart::AtOnce => "",
        ContentStart::BehindReasoning { .. } => ", behind the reasoning",
        ContentStart::FinalChannel => ", in the final channel",
    }
}

fn position(tokens: usize) -> u32 {
    u32::try_from(tokens).expect("positions fit u32, as contexts do")
}

/// `428 + 63 tokens`: the first prompt's levels, root first.
fn levels(levels: &LevelTokens) -> String {
    let lengths: Vec<String> = levels.levels().map(|level| level.len().to_string()).collect();
    format!("{} tokens in the first prompt", lengths.join(" + "))
}
