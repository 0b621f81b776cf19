//! The tree of a job's prompts against naive definitions: sets of prefixes, a list of pages, all antichains.

use std::collections::{BTreeMap, HashSet};

use offshoot_core::dice::Dice;
use offshoot_core::ids::TokenId;
use offshoot_kv::{DistinctTokens, PackedPrompts, PromptTree, Prompts};
use proptest::prelude::*;

type Text = Vec<TokenId>;

/// Few words and short texts, so that prompts share, begin and equal each other; some share a long beginning.
fn prompts() -> impl Strategy<Value = Vec<Text>> {
    let word = || (0..3u32).prop_map(TokenId);
    let text = prop::collection::vec(word(), 0..12);
    let long = (0..3usize, prop::collection::vec(word(), 0..6)).prop_map(|(kind, rest)| {
        let shared = (0..40).map(|at| TokenId(if at == 35 { kind as u32 } else { 7 }));
        shared.chain(rest).collect()
    });
    prop::collection::vec(prop_oneof![text, long], 0..24)
}

/// All beginnings of all prompts but the empty one.
fn beginnings(prompts: &[Text]) -> HashSet<&[TokenId]> {
    prompts.iter().flat_map(|text| (1..=text.len()).map(|end| &text[..end])).collect()
}

proptest! {
    #[test]
    fn prompts_stand_in_the_order_of_their_tokens(prompts in prompts()) {
        let tree = PromptTree::new(prompts.as_slice());
        let mut naive: Vec<usize> = (0..prompts.len()).collect();
        naive.sort_by_key(|&prompt| &prompts[prompt]);
        let order: Vec<usize> = tree.sorted().iter().map(|sorted| sorted.prompt as usize).collect();
        prop_assert_eq!(&order, &naive);
        for (at, sorted) in tree.sorted().iter().enumerate() {
            let shared = |other: &usize| {
                prompts[*other].iter().zip(&prompts[order[at]]).take_while(|(a, b)| a == b).count()
            };
            prop_assert_eq!(sorted.shared as usize, order[..at].iter().map(shared).max().unwrap_or(0));
        }
    }

    #[test]
    fn a_node_ends_where_prompts_part_or_end(prompts in prompts()) {
        let tree = PromptTree::new(prompts.as_slice());
        let all = beginnings(&prompts);
        let ends = |text: &&[TokenId]| {
            let longer = all.iter().filter(|other| other.len() == text.len() + 1 && other.starts_with(text)).count();
            longer != 1 || prompts.iter().any(|prompt| prompt == text)
        };
        let expected: HashSet<&[TokenId]> = all.iter().copied().filter(ends).collect();
        let mut found = HashSet::new();
        for (index, node) in tree.nodes().iter().enumerate() {
            let beneath = &tree.sorted()[node.prompts.start as usize..node.prompts.end as usize];
            let path = &prompts[beneath[0].prompt as usize][..node.end as usize];
            prop_assert!(found.insert(path), "a node stands twice");
            let mut holders: Vec<usize> = beneath.iter().map(|sorted| sorted.prompt as usize).collect();
            holders.sort_unstable();
            let naive: Vec<usize> = (0..prompts.len()).filter(|&p| prompts[p].starts_with(path)).collect();
            prop_assert_eq!(holders, naive);
            prop_assert_eq!(tree.tokens(index, prompts.as_slice()), &path[node.first as usize..]);
            prop_assert!(tree.own(index).all(|at| prompts[tree.sorted()[at].prompt as usize] == path));
            prop_assert_eq!(tree.own(index).len(), prompts.iter().filter(|prompt| *prompt == path).count());
            let parent = node.parent.map(|parent| &tree.nodes()[parent as usize]);
            prop_assert_eq!(node.first, parent.map_or(0, |parent| parent.end));
            prop_assert!(parent.is_none_or(|parent| parent.prompts.start <= node.prompts.start
                && node.prompts.end <= parent.prompts.end));
            prop_assert!(node.parent.is_none_or(|parent| (parent as usize) < index));
        }
        prop_assert_eq!(found, expected);
        prop_assert_eq!(tree.distinct_tokens(), all.len() as u64);
        prop_assert_eq!(tree.logical_tokens(), prompts.iter().map(|text| text.len() as u64).sum::<u64>());
    }

    #[test]
    fn prompts_that_arrive_one_by_one_share_what_earlier_ones_have(prompts in prompts()) {
        let mut seen = DistinctTokens::default();
        for (at, prompt) in prompts.iter().enumerate() {
            let common = |earlier: &Text| earlier.iter().zip(prompt).take_while(|(a, b)| a == b).count();
            prop_assert_eq!(seen.insert(prompt), prompts[..at].iter().map(common).max().unwrap_or(0));
        }
        prop_assert_eq!(seen.count() as u64, PromptTree::new(prompts.as_slice()).distinct_tokens());
    }

    #[test]
    fn a_cache_finds_what_a_list_of_pages_finds(prompts in prompts(), capacity in 0..80u64, page in 1..6u32) {
        let tree = PromptTree::new(prompts.as_slice());
        let mut pages: Vec<&[TokenId]> = Vec::new();
        let mut found = 0;
        for text in &prompts {
            let own: Vec<&[TokenId]> = (1..=text.len() / page as usize).map(|n| &text[..n * page as usize]).collect();
            found += own.iter().filter(|page| pages.contains(page)).count() as u64;
            for used in own.iter().rev() {
                pages.retain(|page| page != used);
                pages.insert(0, used);
            }
            pages.truncate((capacity / u64::from(page)) as usize);
        }
        prop_assert_eq!(tree.lru(capacity, page).computed, tree.logical_tokens() - found * u64::from(page));
    }

    #[test]
    fn no_other_single_level_saves_more(
        prompts in prop::collection::vec(prop::collection::vec((0..2u32).prop_map(TokenId), 0..6), 0..7)
    ) {
        let tree = PromptTree::new(prompts.as_slice());
        let path = |node: usize| {
            std::iter::successors(Some(node), |&node| tree.nodes()[node].parent.map(|parent| parent as usize))
        };
        let saved = |nodes: &[usize]| -> u64 {
            let saved = |&node: &usize| {
                let node = &tree.nodes()[node];
                (node.prompts.len() as u64 - 1) * u64::from(node.end)
            };
            nodes.iter().map(saved).sum()
        };
        let apart = |nodes: &[usize]| nodes.iter().all(|&node| path(node).skip(1).all(|above| !nodes.contains(&above)));
        let count = tree.nodes().len();
        let subsets = (0u32..1 << count).map(|set| (0..count).filter(|&node| set & 1 << node != 0).collect::<Vec<_>>());
        let best = subsets.filter(|nodes| apart(nodes)).map(|nodes| saved(&nodes)).max().unwrap();
        let chosen: Vec<usize> = tree.single_level_nodes().into_iter().map(|node| node as usize).collect();
        prop_assert!(apart(&chosen));
        prop_assert_eq!(saved(&chosen), best);
        prop_assert_eq!(tree.single_level().computed, tree.logical_tokens() - best);
    }

    #[test]
    fn each_policy_computes_at_least_the_tree(prompts in prompts(), capacity in 0..200u64) {
        let tree = PromptTree::new(prompts.as_slice());
        let least = tree.all_levels();
        for saving in [tree.no_sharing(), tree.single_level(), tree.lru(capacity, 1)] {
            prop_assert!(least.computed <= saving.computed && saving.computed <= least.logical);
            prop_assert!(saving.ratio() <= least.ratio());
        }
        prop_assert_eq!(tree.lru(tree.logical_tokens(), 1), least);
        prop_assert_eq!(tree.lru(0, 1), tree.no_sharing());
    }

    #[test]
    fn siblings_stand_by_falling_ratio(prompts in prompts(), seed in any::<u64>()) {
        let mut dice = Dice::new(seed);
        let draws: Vec<u64> = prompts.iter().map(|_| u64::from(dice.within(0, 5))).collect();
        let tree = PromptTree::new(prompts.as_slice());
        let mut naive = Vec::new();
        by_ratio(&prompts, &draws, (0..prompts.len()).collect(), 0, &mut naive);
        let order: Vec<usize> = tree.order_by(&draws).into_iter().map(|prompt| prompt as usize).collect();
        prop_assert_eq!(order, naive);
    }

    #[test]
    fn packed_prompts_are_the_same_prompts(prompts in prompts()) {
        let mut packed = PackedPrompts::default();
        prompts.iter().for_each(|text| packed.push(text.iter().copied()));
        prop_assert!((0..prompts.len()).all(|prompt| packed.tokens(prompt) == prompts[prompt]));
        prop_assert_eq!(PromptTree::new(&packed), PromptTree::new(prompts.as_slice()));
    }
}

/// The definition of `order_by`: of `these`, which share their first `from` tokens, those that end there, then the
/// others by their next token, what draws most for its distinct tokens first.
fn by_ratio(prompts: &[Text], draws: &[u64], these: Vec<usize>, from: usize, order: &mut Vec<usize>) {
    let (ending, longer): (Vec<usize>, Vec<usize>) = these.into_iter().partition(|&p| prompts[p].len() == from);
    order.extend(ending);
    let mut groups: BTreeMap<TokenId, Vec<usize>> = BTreeMap::new();
    for prompt in longer {
        groups.entry(prompts[prompt][from]).or_default().push(prompt);
    }
    let mut groups: Vec<Vec<usize>> = groups.into_values().collect();
    let drawn = |group: &[usize]| group.iter().map(|&prompt| draws[prompt]).sum::<u64>();
    let tokens = |group: &[usize]| {
        let texts: Vec<Text> = group.iter().map(|&prompt| prompts[prompt][from..].to_vec()).collect();
        beginnings(&texts).len() as u64
    };
    groups.sort_by(|a, b| (drawn(b) * tokens(a)).cmp(&(drawn(a) * tokens(b))));
    for group in groups {
        by_ratio(prompts, draws, group, from + 1, order);
    }
}

fn text(tokens: impl IntoIterator<Item = u32>) -> Text {
    tokens.into_iter().map(TokenId).collect()
}

#[test]
fn prompts_that_are_all_equal_are_one_node() {
    let tree = PromptTree::new(vec![text(0..100); 1000].as_slice());
    assert_eq!(tree.nodes().len(), 1);
    assert_eq!((tree.distinct_tokens(), tree.single_level().computed), (100, 100));
    assert!(tree.sorted().iter().map(|sorted| sorted.prompt).eq(0..1000), "equal prompts stay as they arrived");
    assert_eq!(tree.lru(100, 16).computed, 100 + 999 * 4, "six whole pages are found, four tokens are not");
}

#[test]
fn prompts_that_are_all_different_share_nothing() {
    let prompts: Vec<Text> = (0..1000).rev().map(|first| text(first..first + 50)).collect();
    let tree = PromptTree::new(prompts.as_slice());
    assert_eq!(tree.nodes().len(), 1000);
    let all = [tree.no_sharing(), tree.single_level(), tree.all_levels(), tree.lru(1 << 40, 16)];
    assert!(all.iter().all(|saving| saving.computed == 50_000 && saving.ratio() == 0.0));
}

#[test]
fn a_prompt_that_is_the_beginning_of_another_ends_inside_it() {
    let prompts: Vec<Text> = (0..200).map(|length| text(0..length)).collect();
    let tree = PromptTree::new(prompts.as_slice());
    assert_eq!((tree.nodes().len(), tree.distinct_tokens()), (199, 199));
    assert!(tree.nodes().iter().all(|node| node.tokens() == 1));
    // (prompts of at least n tokens - 1) x n is most for n = 99 and 100.
    assert_eq!(tree.single_level_nodes(), [98]);
}

#[test]
fn no_prompts_and_empty_prompts_have_no_nodes() {
    for prompts in [vec![], vec![Text::new(); 3]] {
        let tree = PromptTree::new(prompts.as_slice());
        assert!(tree.nodes().is_empty() && tree.single_level_nodes().is_empty());
        assert_eq!((tree.distinct_tokens(), tree.all_levels().ratio(), tree.lru(10, 1).computed), (0, 0.0, 0));
        assert!(tree.order_by(&vec![1; prompts.len()]).into_iter().eq(0..prompts.len() as u32));
    }
}

#[test]
fn a_million_short_prompts_count_every_text_once() {
    let mut dice = Dice::new(1);
    let mut packed = PackedPrompts::default();
    let mut distinct = HashSet::new();
    for _ in 0..1_000_000 {
        let words: Vec<u32> = (0..dice.within(0, 4)).map(|_| dice.within(0, 30)).collect();
        packed.push(words.iter().copied().map(TokenId));
        distinct.extend((1..=words.len()).map(|end| words[..end].to_vec()));
    }
    let tree = PromptTree::new(&packed);
    assert_eq!(tree.distinct_tokens(), distinct.len() as u64);
    assert_eq!(tree.lru(1 << 40, 1), tree.all_levels());
}
