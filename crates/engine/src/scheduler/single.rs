//! What a single branch needs of a step and of the pool, how it gives up its pages, and how it fails for want of them.

use crate::branch::{Branch, KvHold, Stage};
use crate::cache::{Branches, KvCache};
use crate::token_path::position;
use offshoot_core::error::Error;
use offshoot_core::ids::BranchId;
use offshoot_kv::OutOfPages;

/// Number of rows that the waiting `branch` would add to a step: 0 if all its given tokens are computed or scheduled.
pub(super) fn new_rows(branch: &Branch, cache: &KvCache) -> usize {
    let known = |upto: usize| {
        let (path, rest) = cache.look_up(branch, upto);
        cache.prefix.known(path, &rest).0 as usize
    };
    match branch.hold {
        KvHold::Swapped(_) => 1,
        KvHold::Nothing | KvHold::Path(_) => branch.need().map_or(0, |need| need.end - known(need.match_upto)),
    }
}

/// Puts the keys and values of a preempted branch away: to host memory if that pays, else they are dropped.
pub(super) fn put_away(branch: &mut Branch, cache: &mut KvCache) {
    if branch.need().is_none() || !cache.swap_out(branch) {
        drop_own(branch, cache);
    }
}

/// Ends the hold of a preempted branch on all but its given tokens.
pub(super) fn drop_own(branch: &mut Branch, cache: &mut KvCache) {
    let goes_on = branch.need().is_some(); // Otherwise it ends with what was submitted.
    cache.release(branch);
    if goes_on {
        cache.hold_prefix(branch);
    }
}

/// The pages that the waiting `branch` needs at once, if the whole pool has fewer. Not known for a branch that
/// continues on pages it holds, which may be few behind a window.
pub(super) fn never_fits(branch: &Branch, cache: &KvCache) -> Option<usize> {
    let end = branch.need().filter(|_| matches!(branch.hold, KvHold::Nothing))?.end;
    let needed = cache.prefix.to_admit(0, position(end));
    (needed > cache.pages.capacity()).then_some(needed)
}

/// Fails `id`, which runs alone and for which the pool has too few pages.
pub(super) fn fail_alone(id: BranchId, branches: &mut Branches, cache: &mut KvCache, short: OutOfPages) {
    // All pages that are not free are its own, or pinned.
    fail(id, branches, cache, cache.pages.capacity() - cache.pages.free() + short.needed);
}

/// Fails `id`, which needs `needed` pages at once: more than there are.
pub(super) fn fail(id: BranchId, branches: &mut Branches, cache: &mut KvCache, needed: usize) {
    let branch = branches.get_mut(&id).expect("only branches run or wait");
    cache.release(branch);
    branch.stage = Stage::Resting;
    let hint = match cache.pinned_pages {
        0 => "give the engine more memory for keys and values, or shorten the prompt",
        _ => "pinned prefixes take part of it: give the engine more memory for keys and values, or pin fewer",
    };
    branch.fail(Error::OutOfPages { needed, capacity: cache.pages.capacity(), hint });
}
