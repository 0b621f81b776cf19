//! Scores in the prefix tree follow their tokens: they are found where these are computed, split with them, and go with
//! their pages.

use offshoot_core::ids::TokenId;
use offshoot_kv::{MOST_KEPT_TOP, PagePool, PrefixTree, TokenScore};

use crate::kv_sharing::tokens;

#[test]
fn scores_follow_their_tokens() {
    let (mut tree, mut pool) = (PrefixTree::new(4), PagePool::new(20));
    let score = |logprob: f32, tops: u32| {
        let top: Vec<_> = (0..tops).map(|token| (TokenId(token), -(token as f32))).collect();
        TokenScore::new(logprob, None, &top)
    };
    let found = |tree: &PrefixTree, segment, positions: std::ops::Range<u32>, tops| -> Vec<f32> {
        tree.scores(segment, positions, tops).map(|score| score.logprob).collect()
    };
    let whole = tree.admit(&mut pool, &tokens("a question")).unwrap();
    tree.keep_score(whole, 1, score(-1.0, 0));
    assert!(found(&tree, whole, 1..10, 0).is_empty(), "nothing is computed yet");
    tree.mark_computed(whole, 7);
    (0..10).for_each(|at| tree.keep_score(whole, at, score(-(at as f32), 1)));
    assert_eq!(found(&tree, whole, 1..10, 1), [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0], "up to the next row");
    assert!(found(&tree, whole, 0..10, 0).is_empty(), "nothing is before the first token");
    assert!(found(&tree, whole, 1..10, 2).is_empty());
    // More of the likeliest tokens replace fewer, and fewer do not replace more.
    tree.keep_score(whole, 2, score(-2.5, 3));
    tree.keep_score(whole, 2, score(-2.0, 1));
    assert_eq!(found(&tree, whole, 2..10, 3), [-2.5]);
    tree.keep_score(whole, 3, score(-3.5, MOST_KEPT_TOP as u32 + 1));
    assert_eq!(found(&tree, whole, 3..4, MOST_KEPT_TOP), [-3.5]);
    assert!(found(&tree, whole, 3..4, MOST_KEPT_TOP + 1).is_empty(), "no more than these are kept");
    // A prompt that parts inside splits them.
    let other = tree.admit(&mut pool, &tokens("a quiz")).unwrap();
    assert_eq!(found(&tree, other, 1..6, 0), [-1.0, -2.5, -3.5]);
    assert_eq!(found(&tree, whole, 1..10, 0), [-1.0, -2.5, -3.5, -4.0, -5.0, -6.0, -7.0]);
    tree.check_integrity(&pool).unwrap();
    // They go with their pages.
    [whole, other].into_iter().for_each(|segment| tree.release(segment));
    while pool.free() < 19 {
        assert_eq!(tree.evict(&mut pool, 1), 1);
        tree.check_integrity(&pool).unwrap();
    }
    let again = tree.admit(&mut pool, &tokens("a question")).unwrap();
    assert_eq!(found(&tree, again, 1..10, 0), [-1.0, -2.5, -3.5]);
    tree.check_integrity(&pool).unwrap();
}
