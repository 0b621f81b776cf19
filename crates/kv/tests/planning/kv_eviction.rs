//! What the prefix tree gives up, and in which order; and that pages in use are counted once.

use offshoot_core::ids::TokenId;
use offshoot_kv::{PagePool, PathStart, PrefixTree, Usage};

use crate::kv_sharing::tokens;

#[test]
fn pages_in_use_are_counted_once() {
    let (mut tree, mut pool) = (PrefixTree::new(4), PagePool::new(20));
    let prompt = tree.admit(&mut pool, &tokens("question")).unwrap();
    let branch = tree.fork(prompt);
    tree.append(&mut pool, branch, &tokens("because")).unwrap();
    let mut usage = Usage::default();
    assert_eq!(tree.gain(&usage, PathStart::FIRST, &tokens("questionbecause"), 15), 4, "nothing is in use");
    tree.add_path(&mut usage, branch);
    assert_eq!((usage.pages(), tree.leased().pages), (4, 4));
    // A third of the way into the branch's second page.
    assert_eq!(tree.gain(&usage, PathStart::FIRST, &tokens("questionbecame"), 14), 1);
    assert_eq!(tree.gain_after(&usage, prompt, 17), 3);
    let other = tree.admit(&mut pool, &tokens("questionbecame")).unwrap();
    tree.add_new_path(&mut usage, other, u32::MAX, 1);
    assert_eq!((usage.pages(), tree.leased().pages), (5, 5));
}

#[test]
fn released_thoughts_are_found_again_until_they_are_evicted() {
    let (mut tree, mut pool) = (PrefixTree::new(4), PagePool::new(20));
    let prompt = tree.admit(&mut pool, &tokens("question")).unwrap();
    let branch = tree.fork(prompt);
    tree.append(&mut pool, branch, &tokens("because")).unwrap();
    tree.mark_computed(branch, 15);
    tree.release(branch);
    assert_eq!(tree.known(PathStart::FIRST, &tokens("questionbecome")), (11, 11));
    // Its last page goes first.
    assert_eq!(tree.evict(&mut pool, 1), 1);
    assert_eq!((tree.known(PathStart::FIRST, &tokens("questionbecause")), tree.stats().tokens), ((12, 12), 12));
    assert_eq!(tree.evict(&mut pool, 1), 1);
    assert_eq!(tree.known(PathStart::FIRST, &tokens("questionbecome")), (8, 8));
}

#[test]
fn where_one_page_is_wanted_a_long_prompt_loses_one_page() {
    let prompt: Vec<TokenId> = (0..100_000).map(TokenId).collect();
    let (mut tree, mut pool) = (PrefixTree::new(16), PagePool::new(7000));
    let first = tree.admit(&mut pool, &prompt).unwrap();
    tree.mark_computed(first, 100_000);
    // Two go on in mid-page behind a part of it; one of them is still leased.
    let [leased, cached] = [7, 9].map(|last| [&prompt[..50_007], &[TokenId(last); 40]].concat());
    let leased = tree.admit(&mut pool, &leased).unwrap();
    let cached = tree.admit(&mut pool, &cached).unwrap();
    [first, cached].into_iter().for_each(|segment| tree.release(segment));
    let known = |tree: &PrefixTree| tree.known(PathStart::FIRST, &prompt).0;
    // The one that was never computed goes first, page by page.
    for pages_left in (0..3).rev() {
        assert_eq!((tree.evict(&mut pool, 1), known(&tree)), (1, 100_000), "{pages_left} pages are left of it");
        tree.check_integrity(&pool).unwrap();
    }
    for wanted in [1, 1, 10, 1000] {
        let (free, before) = (pool.free(), known(&tree));
        assert_eq!(tree.evict(&mut pool, wanted), wanted);
        assert_eq!(pool.free(), free + wanted);
        assert_eq!(
            known(&tree) as usize,
            (before as usize).div_ceil(16) * 16 - 16 * wanted,
            "the rest is still matched"
        );
        assert_eq!(tree.known(PathStart::FIRST, &prompt).1, known(&tree), "and computed");
        tree.check_integrity(&pool).unwrap();
    }
    // Matched again, it goes on where it was cut.
    let again = tree.admit(&mut pool, &prompt).unwrap();
    assert_eq!(tree.context(again), prompt);
    tree.check_integrity(&pool).unwrap();
    tree.release(again);
    tree.evict(&mut pool, usize::MAX);
    assert_eq!((known(&tree), tree.end(leased)), (50_007, 50_047), "what is leased stays");
    tree.check_integrity(&pool).unwrap();
}

#[test]
fn eviction_takes_the_uncomputed_first_then_the_least_recently_used() {
    let (mut tree, mut pool) = (PrefixTree::new(4), PagePool::new(20));
    let [old, new, never] = ["aaaa", "bbbb", "cccc"].map(|text| tree.admit(&mut pool, &tokens(text)).unwrap());
    tree.mark_computed(old, 4);
    tree.mark_computed(new, 4);
    [old, new, never].into_iter().for_each(|segment| tree.release(segment));
    let again = tree.admit(&mut pool, &tokens("aaaa")).unwrap();
    tree.release(again);
    let known = |tree: &PrefixTree| ["aaaa", "bbbb", "cccc"].map(|text| tree.known(PathStart::FIRST, &tokens(text)).0);
    assert_eq!(tree.evict(&mut pool, 1), 1);
    assert_eq!(known(&tree), [4, 4, 0]);
    assert_eq!(tree.evict(&mut pool, 1), 1);
    assert_eq!(known(&tree), [4, 0, 0]);
}

#[test]
fn dropping_a_thought_frees_its_own_pages_and_keeps_its_siblings() {
    let (mut tree, mut pool) = (PrefixTree::new(4), PagePool::new(20));
    let prompt = tree.admit(&mut pool, &tokens("question")).unwrap();
    let [kept, pruned] = [(); 2].map(|()| tree.fork(prompt));
    tree.append(&mut pool, kept, &tokens("good")).unwrap();
    tree.append(&mut pool, pruned, &tokens("a bad one")).unwrap();
    tree.release(pruned);
    assert_eq!(tree.prune(&mut pool, pruned), 3);
    assert_eq!(tree.prune(&mut pool, kept), 0, "a leased thought stays");
    assert_eq!(tree.context(kept), tokens("questiongood"));
}
