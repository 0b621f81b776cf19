//! The prefix tree where layers have windows: what they have passed is freed, and a prompt holds no more pages than are
//! counted for it.

use offshoot_core::ids::TokenId;
use offshoot_kv::{PageGroups, PagePool, PathStart, PrefixTree, Usage, Window};

use crate::kv_sharing::tokens;

#[test]
fn what_a_window_has_passed_is_freed_and_matched_by_nobody() {
    let eight = PageGroups::windowed(Window { tokens: 8, unit: 4 });
    let (mut tree, mut pool) = (PrefixTree::with_groups(4, eight), PagePool::new(20));
    let prompt = tree.admit(&mut pool, &tokens("qqqq")).unwrap();
    tree.lay_ahead(&mut pool, prompt).unwrap();
    let branch = tree.fork(prompt);
    tree.release(prompt);
    let mut text = tokens("qqqq");
    for letter in b'a'..=b'z' {
        tree.append(&mut pool, branch, &[TokenId(letter.into())]).unwrap();
        text.push(TokenId(letter.into()));
        tree.mark_computed(branch, tree.end(branch));
        tree.free_behind(&mut pool, branch, tree.end(branch).saturating_sub(9) / 4 * 4);
        tree.check_integrity(&pool).unwrap();
        assert!(20 - pool.free() <= 1 + 4, "the prompt, and pages for the window and a token more");
        assert!(tree.path(branch).len() <= 3, "what is gone is one segment");
    }
    assert_eq!(tree.context(branch), text);
    assert_eq!(tree.known(PathStart::FIRST, &text), (30, 30), "the window before its end is there");
    assert_eq!(tree.known(PathStart::FIRST, &text[..20]), (4, 4), "the one before position 20 is gone");
    let longer = tree.admit_behind(&mut pool, PathStart::Behind(branch), &tokens("!"), u32::MAX).unwrap();
    assert_eq!(tree.end(longer), 31);
    assert_eq!(tree.within(longer, 29), tree.within(prompt, 4), "what ends where keys are gone is no beginning");
    // Another copy of the beginning is laid out anew, beside what was freed.
    let twin = tree.admit(&mut pool, &text[..20]).unwrap();
    tree.lay_upto(&mut pool, twin, 20).unwrap();
    assert!((0..20).all(|position| tree.has_slots(twin, position)));
    tree.check_integrity(&pool).unwrap();
    tree.mark_computed(twin, 20);
    assert_eq!(tree.known(PathStart::FIRST, &text[..20]), (20, 20));
    [branch, longer, twin].into_iter().for_each(|segment| tree.release(segment));
    assert_eq!(tree.evict(&mut pool, 3), 3);
    assert_eq!(tree.known(PathStart::FIRST, &text[..20]), (20, 20), "the least recently used goes first");
    tree.evict(&mut pool, usize::MAX);
    assert_eq!(pool.free(), 20);
    tree.check_integrity(&pool).unwrap();
}

/// While a prompt is computed, it needs no more pages than are counted for it, however long it is.
#[test]
fn a_prompt_holds_what_is_counted_of_it() {
    const AHEAD: u32 = 10;
    for (all, windowed) in [(0, 1), (1, 1), (2, 3)] {
        for page_tokens in [1, 4, 16] {
            let window = Window { tokens: 13, unit: 2 * page_tokens };
            let groups = PageGroups::mixed(all, windowed, window);
            let end = 400;
            let text: Vec<TokenId> = (0..end).map(TokenId).collect();
            let mut tree = PrefixTree::with_groups(page_tokens, groups).laying_ahead(AHEAD);
            let most = tree.to_admit(0, end);
            let numbers = (13 + 2 * page_tokens + AHEAD).div_ceil(page_tokens) as usize + 1;
            assert_eq!(most, all * end.div_ceil(page_tokens) as usize + windowed * numbers);
            let mut pool = PagePool::new(most);
            let prompt = tree.admit(&mut pool, &text).unwrap();
            let mut usage = Usage::default();
            tree.add_path(&mut usage, prompt);
            assert_eq!(usage.committed(), most, "it takes the rest while it is computed");
            while tree.computed(prompt) < end {
                if tree.lay_ahead(&mut pool, prompt).is_err() {
                    assert!(tree.free_behind_prompts(&mut pool, &[]) > 0);
                    tree.lay_ahead(&mut pool, prompt).unwrap();
                }
                tree.check_integrity(&pool).unwrap();
                let mut usage = Usage::default();
                tree.add_path(&mut usage, prompt);
                assert!(usage.committed() <= most, "{} pages of {most}", usage.committed());
                tree.mark_computed(prompt, end.min(tree.computed(prompt) + AHEAD));
            }
            // Whoever begins at its end finds the window; whoever parts from it before, does not.
            assert_eq!(tree.known(PathStart::FIRST, &text), (end, end));
            assert_eq!(tree.known(PathStart::FIRST, &text[..300]), (0, 0));
            tree.release(prompt);
            tree.evict(&mut pool, usize::MAX);
            assert_eq!(pool.free(), pool.capacity());
        }
    }
}
