//! What a step leaves behind: computed positions, drawn tokens, stops, events, counters.

use crate::backend::{Backend, Sampled};
use crate::engine::Engine;
use crate::engine::branch::{Branch, Drawing, Work};
use crate::engine::request::{Event, FinishReason};
use crate::engine::scheduler::Schedule;
use crate::error::Error;
use crate::ids::TokenId;

impl<B: Backend> Engine<B> {
    /// `drawn` answers `schedule.asks`, one by one.
    pub(super) fn commit(&mut self, schedule: &Schedule, drawn: Vec<Sampled>) {
        self.count_rows(schedule);
        self.count_memory();
        for row in &schedule.rows {
            self.cache.prefix.mark_computed(row.at.segment, row.at.position + 1);
        }
        for (ask, drawn) in schedule.asks.iter().zip(drawn) {
            let branch = self.branches.get_mut(&ask.branch).expect("branches change only between steps");
            self.metrics.prompt_tokens_logical += branch.count_given(ask.position);
            if !drawn.logprob.is_finite() {
                branch.fail(Error::value(
                    "the model's logits",
                    "finite numbers",
                    "NaN or infinity, as its weights hold",
                ));
                self.scheduler.remove(ask.branch);
                continue;
            }
            let finished = match branch.work {
                Work::Draw(_) => {
                    self.metrics.tokens_sampled += 1;
                    accept(branch, drawn, &self.facts.eos, self.facts.context)
                }
                Work::Score(_) => record(branch, drawn),
                Work::Rest => None,
            };
            if let Some(reason) = finished {
                branch.finish(reason);
                self.scheduler.remove(ask.branch);
            }
        }
        self.metrics.preemptions = self.scheduler.preemptions;
    }

    fn count_rows(&mut self, schedule: &Schedule) {
        self.metrics.steps += 1;
        self.metrics.rows += schedule.rows.len() as u64;
        for row in &schedule.rows {
            let branch = self.branches.get_mut(&row.branch).expect("branches change only between steps");
            let position = row.at.position as usize;
            let again = self.cache.prefix.computed(row.at.segment) > row.at.position;
            if again {
                continue; // A last row asked for once more.
            }
            self.metrics.tokens_recomputed += u64::from(position < branch.computed_once);
            self.metrics.prompt_tokens_computed += u64::from(!branch.is_drawn(position));
            branch.computed_once = branch.computed_once.max(position + 1);
        }
    }

    /// Memory as it is now.
    pub(super) fn count_memory(&mut self) {
        let (page_bytes, prefix) = (self.facts.page_bytes as u64, &self.cache.prefix);
        let held = prefix.leased_pages();
        self.metrics.kv_bytes_held = held as u64 * page_bytes;
        self.metrics.kv_bytes_cached = (prefix.stats().pages - held) as u64 * page_bytes;
        if self.metrics.kv_bytes_held > self.metrics.kv_bytes_peak {
            let used = self.branches.values().filter_map(|branch| branch.lease.filter(|lease| lease.used));
            let pages = used.map(|lease| prefix.end(lease.segment).div_ceil(prefix.page_tokens()));
            self.metrics.kv_bytes_peak = self.metrics.kv_bytes_held;
            self.metrics.kv_bytes_peak_unshared = pages.map(u64::from).sum::<u64>() * page_bytes;
        }
    }
}

/// Takes the token that a branch drew. Says why the extend ends, if it does.
fn accept(branch: &mut Branch, drawn: Sampled, eos: &[TokenId], context: usize) -> Option<FinishReason> {
    let Work::Draw(drawing) = &mut branch.work else { return None };
    let Sampled { token, logprob, top } = drawn;
    let stops = stop_token(drawing, token, eos);
    if stops.is_some() && !drawing.stop.include_stop {
        drawing.stop_logprob = Some(logprob);
        return stops;
    }
    drawing.logprobs.push(logprob);
    if drawing.params.top_logprobs.is_some() {
        drawing.top.push(top.clone());
    }
    if let Some(counts) = &mut drawing.counts {
        counts.add(token, true);
    }
    let drawn = drawing.logprobs.len();
    let piece = drawing.text.push(token, drawn >= drawing.stop.min_tokens);
    let at_limit = drawn >= drawing.stop.max_tokens;
    // Whoever asked may have gone; a dropped extension cancels its branches.
    drop(drawing.events.send(Event::Token { branch: branch.id, token, logprob, top, text: piece.text }));
    branch.push_drawn(token);
    stops.or(piece.stopped_by.map(FinishReason::StopString)).or(at_limit.then_some(FinishReason::Length)).or((branch
        .tokens
        .len()
        >= context)
        .then_some(FinishReason::ContextFull))
}

fn stop_token(drawing: &Drawing, token: TokenId, eos: &[TokenId]) -> Option<FinishReason> {
    if drawing.stop.tokens.contains(&token) {
        return Some(FinishReason::StopToken(token));
    }
    (eos.contains(&token) && !drawing.stop.ignore_eos).then_some(FinishReason::EndOfText)
}

/// Takes the log-probability of a given token.
fn record(branch: &mut Branch, drawn: Sampled) -> Option<FinishReason> {
    let Work::Score(scoring) = &mut branch.work else { return None };
    scoring.logprobs.push(drawn.logprob);
    (scoring.begin + scoring.logprobs.len() == branch.tokens.len()).then_some(FinishReason::Given)
}
