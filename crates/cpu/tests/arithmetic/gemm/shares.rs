//! How panels are shared out among threads.

use std::ops::Range;

use offshoot_cpu::gemm::shares::{PanelShares, ShareClaims};

#[test]
fn shares_cover_all_panels_and_shrink() {
    for (all, threads, per_call) in (0..200).flat_map(|all| [(all, 1, 2), (all, 2, 2), (all, 3, 1), (all, 64, 8)]) {
        for shares in [PanelShares::Even { each: 3 * per_call, all }, PanelShares::Shrinking { per_call, threads, all }]
        {
            let listed: Vec<_> = shares.iter().collect();
            assert!(listed.iter().cloned().flatten().eq(0..all));
            let claims = ShareClaims::new(shares);
            let claimed: Vec<_> = std::iter::from_fn(|| claims.next()).collect();
            assert_eq!((claimed, claims.next()), (listed.clone(), None));
            assert!((0..shares.count()).all(|i| shares.get(i) == listed[i]));
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
