//! How the panels of a linear layer are shared out among threads, and the claims to the shares. `drive` multiplies
//! them.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How panels are shared out.
#[derive(Clone, Copy)]
pub enum PanelShares {
    /// `each` panels a share, a multiple of those of a call or of its largest remainder: only the last share ends with
    /// single panels.
    Even { each: usize, all: usize },
    /// Half of what each of `threads` threads has still to do, so that shares become smaller and threads end at about
    /// the same time, also if one was delayed: multiples of `per_call`, but single panels where no thread would get
    /// two.
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

    /// The number of shares.
    pub fn count(self) -> usize {
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
