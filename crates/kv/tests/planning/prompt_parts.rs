//! Jobs cut into parts, against sets of prefixes and all cuts; and what parts and batches compute of whole jobs.

use std::collections::HashSet;

use offshoot_core::dice::Dice;
use offshoot_core::ids::TokenId;
use offshoot_kv::{PromptTree, TokenCosts, tokens_in_batches};
use proptest::prelude::*;

type Text = Vec<TokenId>;

/// Few words, so that prompts share, begin and equal each other; some share a long beginning.
fn prompts() -> impl Strategy<Value = Vec<Text>> {
    let word = || (0..3u32).prop_map(TokenId);
    let text = prop::collection::vec(word(), 0..10);
    let long = (0..3usize, prop::collection::vec(word(), 0..6)).prop_map(|(kind, rest)| {
        let shared = (0..40).map(|at| TokenId(if at == 25 { kind as u32 } else { 7 }));
        shared.chain(rest).collect()
    });
    prop::collection::vec(prop_oneof![text, long], 0..20)
}

/// All beginnings of these prompts but the empty one: the tokens that a process computes.
fn distinct<'p>(prompts: impl Iterator<Item = &'p Text>) -> u64 {
    let beginnings = prompts.flat_map(|text| (1..=text.len()).map(|end| &text[..end]));
    beginnings.collect::<HashSet<&[TokenId]>>().len() as u64
}

proptest! {
    #[test]
    fn parts_hold_each_prompt_once_and_are_the_best_cut_of_their_order(
        prompts in prompts(),
        costs in (1..4u16, 0..4u16),
        parts in 1..6usize,
        seed in any::<u64>(),
    ) {
        let mut dice = Dice::new(seed);
        let outputs: Vec<u64> = prompts.iter().map(|_| u64::from(dice.within(0, 30))).collect();
        let costs = TokenCosts { prompt: costs.0, output: costs.1 };
        let cut = PromptTree::new(prompts.as_slice()).parts(&outputs, costs, parts);
        prop_assert_eq!(cut.parts.len(), parts);

        let in_order = cut.parts.iter().flat_map(|part| &part.prompts);
        let order: Vec<usize> = in_order.map(|&prompt| prompt as usize).collect();
        let mut sorted = order.clone();
        sorted.sort_unstable();
        prop_assert_eq!(sorted, (0..prompts.len()).collect::<Vec<_>>());
        let filled = parts.min(prompts.len());
        prop_assert!(cut.parts[..filled].iter().all(|part| !part.prompts.is_empty()));

        let all = distinct(prompts.iter());
        prop_assert_eq!(cut.distinct_tokens, all);
        let work = |some: &[usize]| {
            let sampled: u64 = some.iter().map(|&prompt| outputs[prompt]).sum();
            let computed = distinct(some.iter().map(|&prompt| &prompts[prompt]));
            (computed, sampled, computed * u64::from(costs.prompt) + sampled * u64::from(costs.output))
        };
        for part in &cut.parts {
            let some: Vec<usize> = part.prompts.iter().map(|&prompt| prompt as usize).collect();
            prop_assert_eq!((part.prompt_tokens, part.output_tokens, part.work), work(&some));
            prop_assert!(part.work <= cut.most_work);
        }
        prop_assert_eq!(cut.tokens_twice(), cut.parts.iter().map(|part| part.prompt_tokens).sum::<u64>() - all);
        if filled == 0 {
            return Ok(());
        }

        // All cuts of the same order into parts that are not empty: the least of their largest parts, then the fewest
        // tokens computed within the bound.
        let table: Vec<Vec<_>> =
            (0..order.len()).map(|from| (from + 1..=order.len()).map(|to| work(&order[from..to])).collect()).collect();
        let of = |from: usize, to: usize| table[from][to - from - 1];
        let best = |most: u64| {
            let mut fewest = vec![vec![None; order.len() + 1]; filled + 1];
            fewest[0][0] = Some((0, 0));
            for part in 1..=filled {
                for to in 1..=order.len() {
                    let ways = (0..to).filter_map(|from| {
                        let (tokens, largest): (u64, u64) = fewest[part - 1][from]?;
                        let (computed, _, work) = of(from, to);
                        (work <= most).then_some((tokens + computed, largest.max(work)))
                    });
                    fewest[part][to] = match most {
                        u64::MAX => ways.min_by_key(|&(_, largest)| largest),
                        _ => ways.min(),
                    };
                }
            }
            fewest[filled][order.len()]
        };
        let (_, least) = best(u64::MAX).unwrap();
        let share = work(&order).2.div_ceil(filled as u64);
        prop_assert_eq!(cut.most_work, least.max(share + share * 5 / 100));
        prop_assert_eq!(cut.prompt_tokens(), best(cut.most_work).unwrap().0);
    }

    #[test]
    fn batches_compute_what_each_has(prompts in prompts(), size in 1..9usize) {
        let naive: u64 = prompts.chunks(size).map(|batch| distinct(batch.iter())).sum();
        prop_assert_eq!(tokens_in_batches(prompts.as_slice(), size), naive);
    }
}

/// Groups with a prefix of their own, and questions behind it, in a random order: the prompts with the group of each.
struct GroupedJob {
    prompts: Vec<Text>,
    group: Vec<usize>,
    /// Tokens of each group's prefix, and of each question.
    prefix: Vec<usize>,
    question: usize,
}

impl GroupedJob {
    fn new(prefix: Vec<usize>, questions: &[usize], question: usize, dice: &mut Dice) -> GroupedJob {
        let mut group: Vec<usize> =
            questions.iter().enumerate().flat_map(|(group, &count)| std::iter::repeat_n(group, count)).collect();
        for at in (1..group.len()).rev() {
            group.swap(at, dice.within(0, at as u32) as usize);
        }
        let own = |group: usize, at: usize| TokenId(((group as u32) << 16) + at as u32);
        let text = |(number, &group): (usize, &usize)| {
            let asked = (0..question).map(|at| TokenId(1 << 31 | (number * question + at) as u32));
            (0..prefix[group]).map(|at| own(group, at)).chain(asked).collect()
        };
        let prompts = group.iter().enumerate().map(text).collect();
        GroupedJob { prompts, group, prefix, question }
    }

    fn outputs(&self, each: u64) -> Vec<u64> {
        vec![each; self.prompts.len()]
    }

    /// Tokens of the prefixes of the groups of these prompts, once each, and of all their questions.
    fn computed(&self, prompts: impl Iterator<Item = usize> + Clone) -> u64 {
        let groups: HashSet<usize> = prompts.clone().map(|prompt| self.group[prompt]).collect();
        let prefixes: usize = groups.into_iter().map(|group| self.prefix[group]).sum();
        (prefixes + prompts.count() * self.question) as u64
    }

    fn in_batches(&self, size: usize) -> u64 {
        let all: Vec<usize> = (0..self.prompts.len()).collect();
        all.chunks(size).map(|batch| self.computed(batch.iter().copied())).sum()
    }
}

/// The parts' counts are those of the job's groups; they compute at most 1.03 times one process' tokens, and no part
/// more than 1.05 times its share of the work.
#[track_caller]
fn parts_compute_little_twice(job: &GroupedJob, each: u64, parts: usize) -> (u64, u64) {
    let cut = PromptTree::new(job.prompts.as_slice()).parts(&job.outputs(each), TokenCosts::default(), parts);
    let one = job.computed(0..job.prompts.len());
    assert_eq!(cut.distinct_tokens, one);
    for part in &cut.parts {
        assert_eq!(part.prompt_tokens, job.computed(part.prompts.iter().map(|&prompt| prompt as usize)));
    }
    let total = one + each * job.prompts.len() as u64;
    let most = cut.parts.iter().map(|part| part.work).max().expect("there are parts");
    assert!(100 * most * parts as u64 <= 105 * (total + 20 * parts as u64), "{most} of {total} in {parts} parts");
    assert!(100 * cut.prompt_tokens() <= 103 * one, "{} of {one} in {parts} parts", cut.prompt_tokens());
    let batches = tokens_in_batches(job.prompts.as_slice(), 32);
    assert_eq!(batches, job.in_batches(32));
    (cut.prompt_tokens(), batches)
}

#[test]
fn shapes_of_batch_llm_are_cut_between_their_groups() {
    // Prefixes of 2,000 tokens, questions of 200, as many prompts a prefix as its sharing degree says.
    for (groups, degree) in [(16, 16), (64, 4), (32, 16), (24, 64)] {
        let job = GroupedJob::new(vec![2000; groups], &vec![degree; groups], 200, &mut Dice::new(groups as u64));
        let one = (groups * 2000 + groups * degree * 200) as u64;
        for parts in [2, 4, 8] {
            let (computed, batches) = parts_compute_little_twice(&job, 100, parts);
            assert_eq!(computed, one, "whole groups fill equal parts");
            assert!(batches > computed);
        }
    }
}

#[test]
fn questions_about_documents_are_cut_into_parts_that_compute_almost_nothing_twice() {
    let dice = &mut Dice::new(24);
    // 2,000 questions about 40 documents: alike; of 2,000 to 8,000 tokens; asked unequally often.
    let equal = GroupedJob::new(vec![5000; 40], &[50; 40], 30, dice);
    let (computed, batches) = parts_compute_little_twice(&equal, 64, 8);
    assert_eq!(computed, 40 * 5000 + 2000 * 30);
    assert_eq!(batches, 7_130_000);
    for seed in 0..20 {
        let dice = &mut Dice::new(seed);
        let lengths = (0..40).map(|_| dice.within(2000, 8000) as usize).collect();
        let mut asked = vec![10; 40];
        for _ in 0..1600 {
            asked[dice.within(0, 39) as usize] += 1;
        }
        let job = GroupedJob::new(lengths, &asked, 30, dice);
        let (computed, batches) = parts_compute_little_twice(&job, 64, 8);
        assert!(batches > 15 * computed, "{batches} in batches, {computed} in parts");
    }
}

#[test]
fn a_group_larger_than_its_share_is_split_and_the_others_stay_whole() {
    let dice = &mut Dice::new(5);
    // One document has half of all questions; a system prompt stands before all.
    let mut asked = vec![20; 21];
    asked[0] = 400;
    let job = GroupedJob::new(vec![300; 21], &asked, 40, dice);
    let system: Text = (0..100).map(|at| TokenId(u32::MAX - at)).collect();
    let prompts: Vec<Text> = job.prompts.iter().map(|prompt| [&system[..], prompt].concat()).collect();
    let cut = PromptTree::new(prompts.as_slice()).parts(&job.outputs(20), TokenCosts::default(), 4);
    // Each of the other three parts repeats the system prompt; one cut at least is inside of the large document.
    assert_eq!(cut.tokens_twice(), 3 * 100 + 300);
    let share = (cut.distinct_tokens + 20 * prompts.len() as u64).div_ceil(4);
    assert!(cut.parts.iter().all(|part| 100 * part.work <= 106 * share), "{:?}", cut.parts);
}
