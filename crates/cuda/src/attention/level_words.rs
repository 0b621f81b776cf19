//! An attention plan in the words that kernels/attention/level_lse.cu reads: the items of a row, their spans and pages,
//! as [`AttentionPlan`] lists them. `kernels/attention/level_words.cuh` defines the kernel's side of the layout.

use super::layout::KV_BLOCK_TOKENS;
use offshoot_kv::plan::AttentionPlan;

const HEADER_WORDS: usize = 8;

/// The words of `plan`, with its rows at their present positions.
pub fn level_words(plan: &AttentionPlan) -> Vec<u32> {
    assert_eq!(plan.page_tokens, KV_BLOCK_TOKENS, "pages of a plan on the device");
    let mut words = vec![0; HEADER_WORDS];
    let lists_at = append(&mut words, plan.merge.offsets.iter().copied());
    let listed_at = append(&mut words, plan.merge.values.iter().copied());
    let items_at = append(&mut words, plan.items.iter().flat_map(|item| [item.spans.start, item.spans.end]));
    let spans = plan.spans.iter();
    let spans = spans.flat_map(|span| [span.first_position, span.first_position + span.tokens, span.pages.start]);
    let spans_at = append(&mut words, spans);
    let pages_at = append(&mut words, plan.pages.iter().map(|page| page.0));
    let window = plan.window.unwrap_or(u32::MAX);
    let header = [lists_at, listed_at, items_at, spans_at, pages_at, window];
    words[..header.len()].copy_from_slice(&header);
    words
}

/// Says where they begin.
fn append(words: &mut Vec<u32>, more: impl Iterator<Item = u32>) -> u32 {
    let at = words.len();
    words.extend(more);
    word(at)
}

fn word(number: usize) -> u32 {
    u32::try_from(number).expect("a step has fewer than 2^32 rows, items, spans and pages")
}
