//! What prompts and branches share in the prefix tree: pages, also in the middle of one, and tokens that somebody still
//! computes or samples; and what they do not: anything of another salt, other weights or another adapter.

use offshoot_core::ids::{AdapterVersion, TokenId, WeightVersion};
use offshoot_fixtures::forests::{ForestShape, grow};
use offshoot_kv::{AdapterChange, CacheSalt, KvSlot, Origin, PagePool, PathStart, PathTokens, PrefixTree, TokenScore};

/// The letters of a text as tokens.
pub fn tokens(text: &str) -> Vec<TokenId> {
    text.bytes().map(|b| TokenId(b.into())).collect()
}

#[test]
fn grown_forests_are_sound() {
    for shape in ForestShape::ALL {
        for seed in 0..10 {
            let grown = grow(shape, 16, seed);
            let slots = grown.rows.iter().map(|r| grown.tree.slot(r.segment, r.position));
            let distinct: std::collections::HashSet<_> = slots.map(|s| (s.page, s.slot)).collect();
            assert_eq!(distinct.len(), grown.rows.len(), "{shape:?}, seed {seed}");
        }
    }
}

#[test]
fn a_twin_prompt_shares_what_is_registered_but_not_computed() {
    let (mut tree, mut pool) = (PrefixTree::new(4), PagePool::new(10));
    let first = tree.admit(&mut pool, &tokens("the same header, one")).unwrap();
    let free = pool.free();
    let second = tree.admit(&mut pool, &tokens("the same header, two")).unwrap();
    assert_eq!(free - pool.free(), 1, "only the last four tokens are new");
    assert_eq!(tree.computed(second), 0);
    tree.mark_computed(first, 17);
    assert_eq!(tree.computed(second), 17, "what one computes, both have");
    tree.mark_computed(first, 20);
    assert_eq!((tree.computed(first), tree.computed(second)), (20, 17));
}

#[test]
fn a_fork_in_mid_page_shares_the_page_and_writes_to_its_own() {
    let (mut tree, mut pool) = (PrefixTree::new(4), PagePool::new(10));
    let prompt = tree.admit(&mut pool, &tokens("abcdef")).unwrap();
    let branch = tree.fork_at(&mut pool, prompt, 5);
    tree.append(&mut pool, branch, &tokens("xyz")).unwrap();
    let shared = tree.slot(branch, 4);
    assert_eq!(shared, tree.slot(prompt, 4));
    assert_eq!(pool.holders(shared.page), 2);
    let (own, other) = (tree.slot(branch, 5), tree.slot(prompt, 5));
    assert_eq!((own.slot, other.slot, other.page), (1, 1, shared.page));
    assert_ne!(own.page, other.page);
    assert_eq!(tree.context(branch), tokens("abcdexyz"));
}

#[test]
fn a_prompt_that_goes_on_from_a_running_branch_leaves_its_writer_alone() {
    let (mut tree, mut pool) = (PrefixTree::new(4), PagePool::new(20));
    let prompt = tree.admit(&mut pool, &tokens("q")).unwrap();
    let branch = tree.fork(prompt);
    tree.append(&mut pool, branch, &tokens("thought")).unwrap();
    let same = tree.admit(&mut pool, &tokens("qthought")).unwrap();
    let longer = tree.admit(&mut pool, &tokens("qthought and more")).unwrap();
    tree.append(&mut pool, branch, &tokens(" goes on")).unwrap();
    assert_eq!(tree.context(branch), tokens("qthought goes on"));
    assert_eq!(tree.context(same), tokens("qthought"));
    assert_eq!(tree.context(longer), tokens("qthought and more"));
    tree.check_integrity(&pool).unwrap();
}

#[test]
fn prompts_of_other_salts_are_matched_by_their_own_alone() {
    let (mut tree, mut pool) = (PrefixTree::new(4), PagePool::new(40));
    let salted = |salt: Option<CacheSalt>| PathStart::Root(Origin { salt, ..Origin::FIRST });
    let starts = [None, Some(CacheSalt([1; 16])), Some(CacheSalt([2; 16]))].map(salted);
    let [plain, mine, yours] = starts;
    let first = tree.admit(&mut pool, &tokens("question")).unwrap();
    assert_eq!([plain, mine, yours].map(|start| tree.known(start, &tokens("questions")).0), [8, 0, 0]);
    let own = tree.admit_behind(&mut pool, mine, &tokens("question"), u32::MAX).unwrap();
    assert_ne!(first, own);
    let branch = tree.fork(own);
    tree.append(&mut pool, branch, &tokens("because")).unwrap();
    // Splits inside the prompt, and at its very beginning.
    let middle = tree.fork_at(&mut pool, branch, 5);
    tree.append(&mut pool, middle, &tokens("x")).unwrap();
    let begin = tree.fork_at(&mut pool, branch, 0);
    tree.append(&mut pool, begin, &tokens("new")).unwrap();
    tree.check_integrity(&pool).unwrap();
    let lengths = |tree: &PrefixTree, text: &str| starts.map(|start| tree.known(start, &tokens(text)).0);
    assert_eq!(lengths(&tree, "questionbecause"), [8, 15, 0]);
    assert_eq!(lengths(&tree, "questx"), [5, 6, 0]);
    assert_eq!(lengths(&tree, "news"), [0, 3, 0]);
    // Behind a path its own salt holds.
    assert_eq!(tree.known(PathStart::Behind(own), &tokens("be")).0, 10);
    assert_eq!(tree.known(PathStart::Behind(first), &tokens("be")).0, 8);
    [first, own, branch, middle, begin].into_iter().for_each(|id| tree.release(id));
    tree.evict(&mut pool, usize::MAX);
    tree.check_integrity(&pool).unwrap();
    assert_eq!(pool.free(), 40);
}

#[test]
fn what_other_weights_or_another_adapter_computed_is_not_matched() {
    let (mut tree, mut pool) = (PrefixTree::new(4), PagePool::new(40));
    let old = tree.admit(&mut pool, &tokens("question")).unwrap();
    tree.mark_computed(old, 8);
    tree.keep_score(old, 3, TokenScore::new(-1.0, None, &[]));
    let newer = PathStart::Root(Origin { weights: WeightVersion::FIRST.next(), ..Origin::FIRST });
    assert_eq!(tree.known(newer, &tokens("question")), (0, 0));
    let new = tree.admit_behind(&mut pool, newer, &tokens("question"), u32::MAX).unwrap();
    assert_ne!(tree.slot(new, 0).page, tree.slot(old, 0).page);
    assert_eq!((tree.computed(new), tree.scores(new, 3..4, 0).next()), (0, None));
    // An adapter begins where it is first used: what is before is shared.
    let adapters = [None, Some(AdapterVersion(1)), Some(AdapterVersion(2))];
    let branches = adapters.map(|adapter| {
        let branch = tree.fork_with(old, adapter);
        tree.append(&mut pool, branch, &tokens("because")).unwrap();
        assert_eq!(tree.slot(branch, 3), tree.slot(old, 3));
        branch
    });
    let known = adapters.map(|adapter| tree.known_path(PathStart::Adapted(old, adapter), &tokens("become")));
    assert_eq!(known, branches.map(|branch| Some((branch, 11))));
    assert_eq!(tree.known(PathStart::Behind(branches[1]), &tokens("x")).0, 15);
    let adapted = PathStart::Root(Origin::FIRST.with_adapter(adapters[1]));
    assert_eq!(tree.known(adapted, &tokens("question")), (0, 0), "the beginning was computed without it");
    // So it is found from the root.
    let text = tokens("questionbecause");
    let known = [(8, adapters[1]), (8, adapters[2]), (5, adapters[1])].map(|(at, adapter)| {
        let changes = [AdapterChange { at, adapter }];
        tree.known_path(PathStart::FIRST, PathTokens { tokens: &text, changes: &changes })
    });
    assert_eq!(known, [Some((branches[1], 15)), Some((branches[2], 15)), Some((old, 5))]);
    tree.check_integrity(&pool).unwrap();
}

#[test]
fn a_token_that_is_still_drawn_is_matched_by_nobody() {
    let (mut tree, mut pool) = (PrefixTree::new(4), PagePool::new(20));
    let prompt = tree.admit(&mut pool, &tokens("q")).unwrap();
    let branch = tree.fork(prompt);
    tree.append(&mut pool, branch, &tokens("now")).unwrap();
    tree.append_pending(&mut pool, branch).unwrap();
    tree.mark_computed(branch, 5);
    assert_eq!(tree.known(PathStart::FIRST, &tokens("qnow!")), (4, 4));
    let twin = tree.admit(&mut pool, &tokens("qnow!")).unwrap();
    tree.check_integrity(&pool).unwrap();
    // The twin split the branch, whose writer goes on undisturbed.
    tree.settle(branch, TokenId(b'!'.into()));
    assert_eq!((tree.context(branch), tree.computed(branch)), (tokens("qnow!"), 5));
    assert_ne!(tree.slot(branch, 4).page, tree.slot(twin, 4).page);
    tree.append_pending(&mut pool, branch).unwrap();
    let free = pool.free();
    tree.take_back(&mut pool, branch);
    assert_eq!((tree.context(branch), pool.free()), (tokens("qnow!"), free), "its page has other tokens");
    tree.check_integrity(&pool).unwrap();
}

#[test]
fn the_first_child_goes_on_in_the_last_page_and_no_other() {
    let (mut tree, mut pool) = (PrefixTree::new(8), PagePool::new(20));
    let prompt = tree.admit(&mut pool, &tokens("question")).unwrap();
    let longer = tree.admit(&mut pool, &tokens("question: why")).unwrap();
    assert_eq!(20 - pool.free(), 2);
    let [first, second, third] = [(); 3].map(|()| tree.fork(longer));
    tree.append(&mut pool, first, &tokens("ab")).unwrap();
    let shared = tree.slot(longer, 12).page;
    assert_eq!((tree.slot(first, 13), 20 - pool.free()), (KvSlot { page: shared, slot: 5 }, 2));
    tree.append(&mut pool, second, &tokens("cd")).unwrap();
    assert_ne!(tree.slot(second, 13).page, shared, "the slots behind the prompt are another's");
    // A grandchild goes on behind its parent, in the page of all three.
    let beneath = tree.fork(first);
    tree.append(&mut pool, beneath, &tokens("e")).unwrap();
    assert_eq!(tree.slot(beneath, 15), KvSlot { page: shared, slot: 7 });
    assert_eq!((pool.holders(shared), tree.leased().pages), (3, 3));
    tree.check_integrity(&pool).unwrap();
    // What a branch gives up, the next one may have.
    [beneath, first].into_iter().for_each(|segment| tree.release(segment));
    assert_eq!(tree.prune(&mut pool, beneath), 0, "the page is still the prompt's");
    tree.append(&mut pool, third, &tokens("fghi")).unwrap();
    assert_eq!((tree.slot(third, 13).page, 20 - pool.free()), (shared, 4));
    // Whole pages are copied to one that stands apart.
    let apart = tree.fork(prompt);
    tree.append_apart(&mut pool, apart, &tokens("xyz"), tree.end(apart)).unwrap();
    let late = tree.fork(tree.parent(third).unwrap());
    tree.append_apart(&mut pool, late, &tokens("xyz"), tree.end(late)).unwrap();
    assert_eq!(pool.holders(tree.slot(late, 13).page), 1);
    tree.check_integrity(&pool).unwrap();
}

#[test]
fn a_prompt_goes_on_where_another_ends_in_mid_page() {
    let (mut tree, mut pool) = (PrefixTree::new(8), PagePool::new(20));
    // Each is the one before and three tokens more: one row of pages for all.
    let text: Vec<TokenId> = (0..60).map(TokenId).collect();
    for end in (3..=60).step_by(3) {
        tree.admit(&mut pool, &text[..end]).unwrap();
        assert_eq!(20 - pool.free(), end.div_ceil(8));
        tree.check_integrity(&pool).unwrap();
    }
    // One that leaves them in mid-page has a page of its own there.
    let other = tree.admit(&mut pool, &[&text[..30], &[TokenId(99)]].concat()).unwrap();
    assert_eq!((20 - pool.free(), tree.slot(other, 30).slot), (9, 6));
}

#[test]
#[should_panic(expected = "is sealed")]
fn a_forked_branch_cannot_grow() {
    let (mut tree, mut pool) = (PrefixTree::new(4), PagePool::new(4));
    let prompt = tree.admit(&mut pool, &tokens("q")).unwrap();
    let branch = tree.fork(prompt);
    tree.append(&mut pool, branch, &tokens("a")).unwrap();
    tree.fork(branch);
    let _ = tree.append(&mut pool, branch, &tokens("b"));
}
