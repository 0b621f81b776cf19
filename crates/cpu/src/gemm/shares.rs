//! How the panels of a linear layer are shared out among threads, and the claims to the shares. `drive` multiplies them.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How panels are shared out.
#[derive(Clone, Copy)]
pub enum PanelShares {
    /// `each` panels a share, a multiple of those of a call or of its largest remainder: only the last share ends with
    /// single panels.
    Even { each: usize, all: usize },
    /// Half of what each of `threads` threads has still to do, so that shares become smaller and threads end at about the
    /// same time, also if one was delayed: multiples of `per_call`, but single panels where no thread would get two.
    Shrinking { per_call: usize, threads: usize, all: usize },
}

impl PanelShares {
    /// The share that begins with panel `from`, unless that is past the end.
    fn at(self, from: usize) -> Option<Range<usize>> {
        let (each, all) = match self {
            PanelShares::Even { each, all } => (each, all),
            PanelShares::Shrinking { threads, all, .. } if all.saturating_sub(from) <= threads => (1, all),
            PanelShares::Shrinking { per_call, threads, all } => {
                ((all - from).div_ceil(2 * threads).div_ceil(per_call) * per_call, all)
            }
        };
        (from < all).then(|| from..(from + each).min(all))
    }

    pub fn iter(self) -> impl Iterator<Item = Range<usize>> {
        std::iter::successors(self.at(0), move |share| self.at(share.end))
    }

    pub fn len(self) -> usize {
        self.iter().count()
    }

    pub fn get(self, share: usize) -> Range<usize> {
        self.iter().nth(share).expect("a share of these panels")
    }
}

/// Gives each share to the first thread that asks.
pub struct ShareClaims {
    shares: PanelShares,
    /// The first panel that is in no share yet.
    from: AtomicUsize,
}

impl ShareClaims {
    pub fn new(shares: PanelShares) -> Self {
        Self { shares, from: AtomicUsize::new(0) }
    }

    pub fn next(&self) -> Option<Range<usize>> {
        let claim = |from| Some(self.shares.at(from)?.end);
        let from = self.from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim).ok()?;
        self.shares.at(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_all_panels_and_shrink() {
        for (all, threads, per_call) in (0..200).flat_map(|all| [(all, 1, 2), (all, 2, 2), (all, 3, 1), (all, 64, 8)]) {
            for shares in
                [PanelShares::Even { each: 3 * per_call, all }, PanelShares::Shrinking { per_call, threads, all }]
            {
                let listed: Vec<_> = shares.iter().collect();
                assert!(listed.iter().cloned().flatten().eq(0..all));
                let claims = ShareClaims::new(shares);
                let claimed: Vec<_> = std::iter::from_fn(|| claims.next()).collect();
                assert_eq!((claimed, claims.next()), (listed.clone(), None));
                assert!((0..shares.len()).all(|i| shares.get(i) == listed[i]));
                let whole =
                    |share: &Range<usize>| share.len().is_multiple_of(per_call) || share.end == all || share.len() == 1;
                assert!(listed.iter().all(whole));
                assert!(listed.is_sorted_by(|a, b| a.len() >= b.len()));
            }
        }
        let shares = PanelShares::Shrinking { per_call: 2, threads: 2, all: 48 };
        assert_eq!(shares.iter().map(|share| share.len()).collect::<Vec<_>>(), [12, 10, 8, 6, 4, 2, 2, 2, 1, 1]);
    }

    #[test]
    fn threads_that_claim_at_once_get_each_share_once() {
        let shares = PanelShares::Shrinking { per_call: 2, threads: 4, all: 5000 };
        let claims = ShareClaims::new(shares);
        let mut claimed = Vec::new();
        std::thread::scope(|scope| {
            let claim = || std::iter::from_fn(|| claims.next()).collect::<Vec<_>>();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(claim)).collect();
            claimed.extend(threads.into_iter().flat_map(|thread| thread.join().expect("claiming does not panic")));
        });
        claimed.sort_by_key(|share| share.start);
        assert_eq!(claimed, shares.iter().collect::<Vec<_>>());
    }
}
