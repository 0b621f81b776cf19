//! The engine's counters and what it holds, in Prometheus' text format. They are those of its last turn: reading them
//! waits for no step.

use offshoot_engine::{EngineFacts, LiveMetrics};

use super::metrics::{counter, gauge};

/// Name (between `offshoot_engine_` and `_total`), help and value of a sum since the engine started.
type CounterRow = (&'static str, &'static str, fn(&LiveMetrics) -> u64);
/// Name (behind `offshoot_engine_`), help and value of what is now.
type GaugeRow = (&'static str, &'static str, fn(&LiveMetrics) -> usize);

const COUNTERS: [CounterRow; 29] = [
    ("steps", "Steps submitted", |live| live.metrics.steps),
    ("rows", "Query tokens computed", |live| live.metrics.rows),
    ("prompt_tokens_logical", "Prompt tokens as if nothing were shared", |live| live.metrics.prompt_tokens_logical),
    ("prompt_tokens_computed", "Prompt tokens computed", |live| live.metrics.prompt_tokens_computed),
    ("prompt_tokens_copied", "Prompt tokens copied between devices", |live| live.metrics.prompt_tokens_copied),
    ("scores_reused", "Prompt tokens whose log-probabilities were in the cache", |live| live.metrics.scores_reused),
    ("values_read", "Positions whose values a scorer has computed", |live| live.metrics.values_read),
    ("values_reused", "Positions whose values were in the cache", |live| live.metrics.values_reused),
    ("tokens_sampled", "Tokens sampled", |live| live.metrics.tokens_sampled),
    ("tokens_forced", "Tokens sampled that the form of their text forced", |live| live.metrics.tokens_forced),
    ("masks_requested", "Times that it was asked what a form allows next", |live| live.metrics.masks_requested),
    ("masks_computed", "Masks of forms computed, one for each state at most", |live| live.metrics.masks_computed),
    ("masks_shared", "Masks of forms that another sample in the same state or place of the grammar had", |live| {
        live.metrics.masks_shared
    }),
    ("mask_places_shared", "Those that one in the same place of a grammar had", |live| live.metrics.mask_places_shared),
    ("mask_sets_shared", "Masks computed whose tokens another mask had", |live| live.metrics.mask_sets_shared),
    ("masks_empty", "Masks that allow no token", |live| live.metrics.masks_empty),
    ("masks_failed", "Masks that take too much work to find", |live| live.metrics.masks_failed),
    ("matchers_replayed", "Places in forms found again from their tokens", |live| live.metrics.matchers_replayed),
    ("matcher_tokens_replayed", "Tokens read for that", |live| live.metrics.matcher_tokens_replayed),
    ("tokens_discarded", "Tokens sampled after their branch had ended", |live| live.metrics.tokens_discarded),
    ("latent_tokens_expanded", "Tokens whose latents were expanded to copies that are kept", |live| {
        live.metrics.latent_tokens_expanded
    }),
    ("latent_tokens_expanded_again", "Tokens whose latents were expanded for one step, in every such step", |live| {
        live.metrics.latent_tokens_expanded_again
    }),
    ("latent_copies_evicted", "Pages of copies of latents that were given up for others", |live| {
        live.metrics.latent_copies_evicted
    }),
    ("tokens_recomputed", "Tokens recomputed after preemption or eviction", |live| live.metrics.tokens_recomputed),
    ("preemptions", "Preemptions of branches", |live| live.metrics.preemptions),
    ("swapped_out_bytes", "Keys and values moved to host memory", |live| live.metrics.swapped_out_bytes),
    ("swapped_in_bytes", "Keys and values moved back from it", |live| live.metrics.swapped_in_bytes),
    ("kv_read_bytes", "Keys and values read", |live| live.metrics.kv_bytes_read),
    ("kv_read_flat_bytes", "Those that would have been read without sharing", |live| live.metrics.kv_bytes_read_flat),
];

const GAUGES: [GaugeRow; 14] = [
    ("branches", "Branches, also those at rest", |live| live.branches),
    ("branches_running", "Branches that run", |live| live.running),
    ("branches_waiting", "Branches that wait for pages or rows", |live| live.waiting),
    ("kv_pages", "Pages of the pool for keys and values", |live| live.pages.total),
    ("kv_pages_held", "Pages that branches and pins hold", |live| live.pages.held),
    ("kv_pages_pinned", "Those of them that pins hold", |live| live.pages.pinned),
    ("kv_pages_cached", "Pages that nobody holds, whose keys and values can still be found", |live| live.pages.cached),
    ("kv_pages_free", "Free pages", |live| live.pages.free),
    ("latent_copies_held", "Pages that have copies of latents", |live| live.metrics.latent_copies_held as usize),
    ("forms", "Forms in use", |live| live.metrics.forms_held as usize),
    ("form_lanes", "Copies of their lexers", |live| live.metrics.form_lanes_held as usize),
    ("form_lane_bytes", "Bytes of these", |live| live.metrics.lane_bytes_held as usize),
    ("mask_bytes", "Bytes of masks that are kept", |live| live.metrics.mask_bytes_held as usize),
    ("matcher_bytes", "Bytes of samples' places in their forms, about", |live| {
        live.metrics.matcher_bytes_held as usize
    }),
];

/// Appends the engine's values.
pub fn write(live: &LiveMetrics, facts: &EngineFacts, out: &mut String) {
    for (name, help, value) in COUNTERS {
        counter(out, &format!("offshoot_engine_{name}_total"), help, value(live));
    }
    for (name, help, value) in GAUGES {
        gauge(out, &format!("offshoot_engine_{name}"), help, value(live) as f64);
    }
    let page_bytes = "Bytes of a page for keys and values, all layers of a page group";
    gauge(out, "offshoot_engine_kv_page_bytes", page_bytes, facts.page_bytes as f64);
    let held = "Bytes of the pages that branches and pins hold";
    gauge(out, "offshoot_engine_kv_held_bytes", held, (live.pages.held * facts.page_bytes) as f64);
    let peak = "The most bytes that branches and pins held";
    gauge(out, "offshoot_engine_kv_peak_bytes", peak, live.metrics.kv_bytes_peak as f64);
    let masking = "Seconds that steps waited for what forms allow";
    counter(out, "offshoot_engine_masking_seconds_total", masking, live.metrics.seconds_masking);
}

/// Appends what the engine of a scorer beside a generator has computed.
pub fn write_scorer(live: &LiveMetrics, out: &mut String) {
    let metrics = &live.metrics;
    let counters = [
        ("steps", "Steps of the scorer", metrics.steps),
        ("prompt_tokens_logical", "Tokens of scored texts as if nothing were shared", metrics.prompt_tokens_logical),
        ("prompt_tokens_computed", "Tokens of scored texts computed", metrics.prompt_tokens_computed),
    ];
    for (name, help, value) in counters {
        counter(out, &format!("offshoot_scorer_{name}_total"), help, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prometheus' rules for names: lower case, a sum ends in `_total`, what is now does not, and no name comes twice.
    #[test]
    fn names_are_distinct_and_of_prometheus_form() {
        let names: Vec<&str> = COUNTERS.iter().map(|row| row.0).chain(GAUGES.iter().map(|row| row.0)).collect();
        let distinct: std::collections::HashSet<&&str> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
        for name in names {
            assert!(!name.ends_with("_total") && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'));
        }
    }
}
