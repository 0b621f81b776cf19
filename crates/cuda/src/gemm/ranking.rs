//! Ranks algorithms by times and results: which deserve an exact timing, which to use, and whether two results are the
//! same. `autotune` measures the times.

use super::algorithm::MOST_SPLIT_K;
use offshoot_backend::Dtype;

/// Minimum speed-up over the first algorithm, so that noise does not choose.
const CLEARLY: f64 = 0.01;

/// Most algorithms timed exactly, beside variants of the best.
const FINALISTS: usize = 12;

/// Numbers of parts into which to split the sums of an algorithm with `waves` waves: each must leave less of the last
/// wave idle than smaller ones, and parts must not be too short.
pub(super) fn splits_worth_trying(waves: f32, inner: usize) -> Vec<u32> {
    const SHORTEST: usize = 512;
    const MOST_WAVES: f32 = 4.0;
    let busy = |parts: u32| waves * parts as f32 / (waves * parts as f32).ceil();
    let mut best = busy(1);
    let mut worth = Vec::new();
    for parts in 2..=MOST_SPLIT_K {
        if inner / parts as usize >= SHORTEST && waves * parts as f32 <= MOST_WAVES && busy(parts) > best + 0.05 {
            best = busy(parts);
            worth.push(parts);
        }
    }
    worth
}

/// The algorithms to time exactly: the first, then those near the fastest, fastest first.
pub(super) fn near(rough: &[Option<f64>]) -> Vec<usize> {
    let least = rough.iter().flatten().copied().fold(f64::INFINITY, f64::min);
    // The time of enqueueing varies by some microseconds.
    let mut near = sorted(rough);
    near.retain(|&at| at != 0 && rough[at].is_some_and(|us| us <= 1.3 * least + 3.0));
    near.truncate(FINALISTS - 1);
    std::iter::once(0).filter(|_| !rough.is_empty()).chain(near).collect()
}

/// The algorithms to use, best first: those clearly faster than the first, then the first, then the others if the first
/// was not timed.
pub(super) fn ranking(exact: &[Option<f64>]) -> Vec<usize> {
    let mut ranking = sorted(exact);
    if let Some(first) = exact.first().copied().flatten() {
        ranking.retain(|&at| at != 0 && exact[at].is_some_and(|us| us < (1.0 - CLEARLY) * first));
        ranking.push(0);
    }
    ranking
}

/// Timed algorithms, fastest first; equal ones in their order.
fn sorted(us: &[Option<f64>]) -> Vec<usize> {
    let mut timed: Vec<(f64, usize)> = us.iter().enumerate().filter_map(|(at, us)| Some(((*us)?, at))).collect();
    timed.sort_by(|(us, at), (other, its)| us.total_cmp(other).then(at.cmp(its)));
    timed.into_iter().map(|(_, at)| at).collect()
}

/// Whether two results of one row differ by no more than the order of f32 sums and the rounding to `out` explain.
/// Bound: `inner` roundings of a number as large as the row's values; real errors grow with the square root of `inner`.
pub(super) fn agree(expected: &[f32], found: &[f32], inner: usize, out: Dtype) -> bool {
    let finite = expected.iter().map(|x| f64::from(*x)).filter(|x| x.is_finite());
    let size = (finite.clone().map(|x| x * x).sum::<f64>() / finite.count().max(1) as f64).sqrt();
    let sums = inner as f64 * 2f64.powi(-23) * size;
    let rounding = match out {
        Dtype::F32 => 2f64.powi(-23),
        Dtype::F16 => 2f64.powi(-10),
        Dtype::Bf16 => 2f64.powi(-7),
    };
    let same = |a: f64, b: f64| (a - b).abs() <= sums + rounding * a.abs().max(b.abs());
    // Padded rows may hold anything.
    let pairs = expected.iter().zip(found).map(|(a, b)| (f64::from(*a), f64::from(*b)));
    pairs.into_iter().all(|(a, b)| if a.is_finite() { same(a, b) } else { !b.is_finite() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_kept_unless_another_is_clearly_faster() {
        assert_eq!(ranking(&[Some(10.0), Some(9.0), Some(8.0), None, Some(9.95), Some(11.0)]), [2, 1, 0]);
        assert_eq!(ranking(&[Some(10.0), Some(9.95), Some(10.0)]), [0]);
        assert_eq!(ranking(&[None, Some(9.0), Some(8.0)]), [2, 1]);
        assert_eq!(ranking(&[None, None]), [0; 0]);
        assert_eq!(ranking(&[]), [0; 0]);
    }

    #[test]
    fn what_is_far_from_the_fastest_is_not_timed_again() {
        assert_eq!(near(&[Some(200.0), Some(130.0), None, Some(100.0), Some(134.0)]), [0, 3, 1]);
        assert_eq!(near(&[None, Some(5.0)]), [0, 1]);
        assert_eq!(near(&[]), [0; 0]);
        let many: Vec<Option<f64>> = (0..40).map(|i| Some(100.0 - f64::from(i) / 10.0)).collect();
        let near = near(&many);
        assert_eq!((near.len(), near[0], near[1]), (FINALISTS, 0, 39));
    }

    #[test]
    fn sums_are_split_where_the_device_is_idle_otherwise() {
        // 32 thread blocks on 132 multiprocessors: four parts fill it, more do no better.
        assert_eq!(splits_worth_trying(32.0 / 132.0, 14336), [2, 3, 4]);
        // 96: two and three parts leave as much of their last wave idle as one does.
        assert_eq!(splits_worth_trying(96.0 / 132.0, 4096), [4]);
        // Full already; too short to split; so many waves that the last hardly counts.
        assert_eq!(splits_worth_trying(1.0, 14336), [0; 0]);
        assert_eq!(splits_worth_trying(0.2, 768), [0; 0]);
        assert_eq!(splits_worth_trying(2.2, 14336), [0; 0]);
        // What the library cannot tell.
        assert_eq!(splits_worth_trying(0.0, 4096), [0; 0]);
    }

    #[test]
    fn results_agree_by_rounding_and_order_alone() {
        let row: Vec<f32> = (0..512).map(|i| (i % 37) as f32 / 8.0 - 2.0).collect();
        let off = |by: f32| row.iter().map(|x| x + by).collect::<Vec<_>>();
        assert!(agree(&row, &row, 4096, Dtype::F32));
        assert!(agree(&row, &off(1e-4), 4096, Dtype::F32));
        assert!(!agree(&row, &off(0.01), 4096, Dtype::F32), "as far off as products of cut operands");
        let rounded: Vec<f32> = row.iter().map(|x| x * (1.0 + 1.0 / 256.0)).collect();
        assert!(agree(&row, &rounded, 4096, Dtype::Bf16) && !agree(&row, &rounded, 4096, Dtype::F16));
        let mut one_wrong = row.clone();
        one_wrong[300] = 0.0;
        assert!(!agree(&row, &one_wrong, 4096, Dtype::Bf16));
        let nan = vec![f32::NAN; 512];
        assert!(agree(&nan, &nan, 64, Dtype::F32) && !agree(&row, &nan, 64, Dtype::F32));
    }
}
