//! How many tokens the prefix tree compares: as many as it is given, and those of no sibling more than once.

use offshoot_core::ids::TokenId;
use offshoot_kv::{PagePool, PathStart, PrefixTree};

use crate::kv_sharing::tokens;

/// Tokens compared while all of `prompts` are admitted, and admitted again.
fn compared(prompts: &[Vec<TokenId>]) -> u64 {
    let tokens: usize = prompts.iter().map(Vec::len).sum();
    let (mut tree, mut pool) = (PrefixTree::new(16), PagePool::new(tokens / 16 + prompts.len()));
    for prompt in prompts.iter().chain(prompts) {
        tree.admit(&mut pool, prompt).unwrap();
    }
    tree.check_integrity(&pool).unwrap();
    tree.compared()
}

#[test]
fn prompts_are_matched_in_time_linear_in_their_tokens() {
    let number = |n: u32| vec![TokenId(n % 600), TokenId(n / 600)];
    let equal = vec![(0..1000).map(TokenId).collect::<Vec<_>>(); 200];
    let different: Vec<_> = (0..200_000).map(number).collect();
    let one_token: Vec<_> = (0..200_000).map(|n| vec![TokenId(n)]).collect();
    let beginnings: Vec<Vec<TokenId>> = (1..=600).map(|end| (0..end).map(TokenId).collect()).collect();
    let backwards: Vec<_> = beginnings.iter().rev().cloned().collect();
    let empty = vec![Vec::new(); 100];
    for prompts in [equal, different, one_token, beginnings, backwards, empty] {
        let tokens: usize = prompts.iter().map(Vec::len).sum();
        // Each once or twice, and one comparison for each segment of a path; a segment has a token.
        let most = 4 * (tokens + prompts.len()) as u64;
        let compared = compared(&prompts);
        assert!(compared <= most, "{compared} comparisons for {} prompts of {tokens} tokens", prompts.len());
    }
}

#[test]
fn siblings_alike_are_not_looked_at_by_what_goes_on_behind_one_of_them() {
    const SIBLINGS: usize = 2000;
    let (mut tree, mut pool) = (PrefixTree::new(4), PagePool::new(5 * SIBLINGS));
    let prompt = tree.admit(&mut pool, &tokens("question")).unwrap();
    let siblings: Vec<_> = (0..SIBLINGS).map(|_| tree.fork(prompt)).collect();
    for &sibling in &siblings {
        tree.append(&mut pool, sibling, &tokens("because")).unwrap();
    }
    let mut ends = Vec::new();
    for &sibling in &siblings {
        let twins =
            [(); 3].map(|()| tree.admit_behind(&mut pool, PathStart::Behind(sibling), &tokens("!"), u32::MAX).unwrap());
        assert_eq!(twins, [twins[0]; 3], "what is given the same behind one of them is shared");
        assert_eq!(tree.context(twins[0]), tokens("questionbecause!"));
        ends.push(twins[0]);
    }
    assert!(ends.windows(2).all(|pair| pair[0] != pair[1]), "each goes on in its own path");
    tree.check_integrity(&pool).unwrap();
    assert!(tree.compared() <= 6 * SIBLINGS as u64, "{} comparisons for {SIBLINGS} siblings", tree.compared());
}
