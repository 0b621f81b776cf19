//! Searches whose samples are rollouts, on a model: the same seed gives the same trie, forks are where entropy is
//! highest, and log-probabilities are those that the model gives the same tokens when it is asked.

use offshoot_core::ids::{NodeId, TokenId};
use offshoot_engine::{EngineHandle, GroupEnd, LogprobsMode, Stop, Stragglers};
use offshoot_search::rollout::{RolloutTrie, TrieBuilder};
use offshoot_search::settings::{EntropyBranching, TreePo};
use offshoot_search::tree::{After, Probe, Prompt, SamplingTree};
use offshoot_search::{Assessment, Outcome, SearchJob, entropy_branching, finish_stragglers, sample, tree_po};

use crate::bench::{Mode, params, prompt, roomy, tokenizer};

fn decode(context: &[TokenId], tokens: &[TokenId]) -> String {
    tokenizer().stream(context).text_of(tokens)
}

/// A text of an even number of bytes is right.
fn assess(text: &str) -> Assessment {
    Assessment::graded(Some((text.len() % 3).to_string()), Some(text.len().is_multiple_of(2)))
}

fn tree_of(engine: &EngineHandle) -> SamplingTree {
    SamplingTree::new(engine.clone(), Prompt::from(prompt(5, 40))).unwrap().seed(3).named("rollouts")
}

/// Every eighth token ends a sample.
fn uneven() -> Stop {
    Stop { tokens: (0..256).step_by(8).map(TokenId).collect(), ignore_eos: true, ..Stop::max_tokens(60) }
}

type Driver = fn(&mut SamplingTree, &mut SearchJob<'_>) -> Outcome;

fn by_segments(tree: &mut SamplingTree, job: &mut SearchJob<'_>) -> Outcome {
    let how = TreePo { samples: 12, segment: 5, branches: 2, tokens: 200 };
    tree_po(tree, tree.root(), &how, &decode, job).unwrap()
}

fn by_entropy(tree: &mut SamplingTree, job: &mut SearchJob<'_>) -> Outcome {
    let how = EntropyBranching { paths: 2, forks: 3, branches: 2 };
    entropy_branching(tree, tree.root(), &how, &decode, job).unwrap()
}

fn trie_of(tree: &SamplingTree, job: &SearchJob<'_>, mode: LogprobsMode) -> RolloutTrie {
    let mut builder = TrieBuilder::new();
    builder.tree(tree, 0, &job.leaves, mode).unwrap();
    builder.build()
}

fn searched(engine: &EngineHandle, drive: Driver) -> (SamplingTree, Outcome, RolloutTrie) {
    let (params, stop) = (params(), uneven());
    let mut tree = tree_of(engine);
    let mut job = SearchJob::new(&params, &stop).assessed_by(assess);
    let outcome = drive(&mut tree, &mut job);
    let trie = trie_of(&tree, &job, LogprobsMode::RawLogprobs);
    (tree, outcome, trie)
}

fn the_same_seed_gives_the_same_trie(mode: Mode) {
    for drive in [by_segments as Driver, by_entropy] {
        let (_, outcome, trie) = searched(&mode.engine(roomy()), drive);
        let busy = mode.engine(roomy());
        let other = tree_of(&busy);
        let beside = other.growth(&[other.root()], &params(), &Stop { ignore_eos: true, ..Stop::max_tokens(50) });
        let (_, again, same) = searched(&busy, drive);
        drop(beside);
        assert_eq!(outcome.samples, again.samples);
        assert_eq!(trie, same);
        assert!(trie.tokens().len() < trie.unpacked_tokens() / 2, "samples share what is before a fork");
        let rewards: Vec<f64> = trie.leaves().iter().map(|leaf| leaf.reward.unwrap()).collect();
        let grades: Vec<f64> =
            outcome.samples.iter().map(|sample| f64::from(u8::from(sample.correct == Some(true)))).collect();
        assert_eq!(rewards, grades);
    }
}

fn log_probabilities_are_those_of_the_same_tokens_when_they_are_given(mode: Mode) {
    let engine = mode.engine(roomy());
    for drive in [by_segments as Driver, by_entropy] {
        let (tree, outcome, trie) = searched(&engine, drive);
        assert_eq!(outcome.samples.len(), trie.leaves().len());
        let start = tree.node(tree.root()).tokens.len();
        for (leaf, sample) in outcome.samples.iter().enumerate() {
            let path = trie.path(leaf);
            let sequence = trie.sequence(leaf);
            assert_eq!(sequence.len(), start + sample.tokens);
            let probe = Probe { after: After::Prompt(&sequence[..start]), continuation: &sequence[start..] };
            let given = tree.probe(&[probe]).unwrap().remove(0);
            let bits = |logprob: f32| logprob.to_bits();
            let sampled: Vec<u32> =
                path[start..].iter().map(|&at| bits(trie.tokens()[at as usize].drawn.unwrap().logprob)).collect();
            assert_eq!(sampled, given.tokens.iter().copied().map(bits).collect::<Vec<_>>());
            assert!(path[..start].iter().all(|&at| trie.tokens()[at as usize].drawn.is_none()));
        }
    }
}

fn samples_fork_where_entropy_is_highest(mode: Mode) {
    let (tree, outcome, _) = searched(&mode.engine(roomy()), by_entropy);
    assert_eq!(outcome.samples.len(), 2 * (1 + 3 * 2));
    // The first two samples are the ones that were forked: of each, what was before, and the entropy of each token.
    for sample in 0..2 {
        let path = descend(&tree, sample);
        let entropies: Vec<(f32, bool)> = path
            .iter()
            .enumerate()
            .flat_map(|(piece, &node)| {
                let records = tree.node(node).records().enumerate();
                records.map(move |(at, record)| (record.unwrap().entropy.unwrap(), at == 0 && piece > 0))
            })
            .collect();
        let lowest_forked =
            entropies.iter().filter(|(_, forked)| *forked).map(|&(entropy, _)| entropy).fold(9.0, f32::min);
        let forks = entropies.iter().filter(|(_, forked)| *forked).count();
        let higher = entropies.iter().skip(1).filter(|&&(entropy, forked)| !forked && entropy > lowest_forked).count();
        assert!((2..=3).contains(&forks), "three forks, one of them perhaps at the prompt: {forks}");
        assert_eq!(higher, 0, "no other token has a higher entropy");
    }
}

/// The nodes of sample number `sample` of the root: each piece of what was cut is the first child of the one before.
fn descend(tree: &SamplingTree, sample: usize) -> Vec<NodeId> {
    let mut path = vec![tree.children(tree.root())[sample]];
    while let Some(&next) = tree.children(path[path.len() - 1]).first() {
        path.push(next);
    }
    path
}

/// By the distribution that tokens were drawn from, the log-probabilities are others.
fn a_trie_has_the_log_probabilities_that_are_asked_for(mode: Mode) {
    let engine = mode.engine(roomy());
    let (params, stop) = (params().logprobs_mode(LogprobsMode::ProcessedLogprobs), uneven());
    let mut tree = tree_of(&engine);
    let mut job = SearchJob::new(&params, &stop).assessed_by(assess);
    by_segments(&mut tree, &mut job);
    let [raw, drawn] =
        [LogprobsMode::RawLogprobs, LogprobsMode::ProcessedLogprobs].map(|mode| trie_of(&tree, &job, mode));
    let sum = |trie: &RolloutTrie| -> f64 {
        trie.tokens().iter().filter_map(|token| Some(f64::from(token.drawn?.logprob))).sum()
    };
    assert!(sum(&raw) < sum(&drawn), "a distribution that is cut and sharpened gives its samples more");
}

fn kept_stragglers_become_what_they_would_have_been(mode: Mode) {
    let (params, stop) = (params(), uneven());
    let run = |end: Option<GroupEnd>, late: bool| {
        let mut tree = tree_of(&mode.engine(roomy()));
        let mut job = SearchJob::new(&params, &stop).assessed_by(assess);
        job.group_end = end;
        let root = tree.root();
        let outcome = sample(&mut tree, root, 16, &mut job).unwrap();
        let mut samples = outcome.samples.clone();
        if late {
            assert!(samples.len() >= 5);
            let finished = finish_stragglers(&mut tree, root, &outcome.stragglers, &decode, &mut job).unwrap();
            assert_eq!(finished.len(), outcome.stragglers.len());
            samples.extend(finished);
            samples.sort_by_key(|sample| sample.index);
        }
        let trie = trie_of(&tree, &job, LogprobsMode::RawLogprobs);
        let mut sequences: Vec<(u64, Vec<TokenId>)> =
            (0..).zip(trie.leaves()).map(|(at, leaf)| (leaf.sample, trie.sequence(at))).collect();
        sequences.sort_unstable();
        let texts: Vec<(u64, String)> = samples.into_iter().map(|sample| (sample.index, sample.text)).collect();
        (texts, sequences)
    };
    let end = GroupEnd { stragglers: Stragglers::Keep, ..GroupEnd::new(5.try_into().unwrap()) };
    let (late, whole) = (run(Some(end), true), run(None, false));
    assert_eq!(late.0, whole.0);
    // A stop token that ended a continued sample is among its tokens either way.
    assert_eq!(late.1, whole.1);
}

in_modes! {
    in_turn, run_ahead, replicas:
    the_same_seed_gives_the_same_trie,
    log_probabilities_are_those_of_the_same_tokens_when_they_are_given,
    samples_fork_where_entropy_is_highest,
    a_trie_has_the_log_probabilities_that_are_asked_for,
    kept_stragglers_become_what_they_would_have_been,
}
