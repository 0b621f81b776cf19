//! How many pages texts take, counted before they are there as the prefix tree will count them: for refusing what can
//! never fit, and for estimates. Pages behind windows count as freed.

use super::{PageGroups, Reach, Window};

/// The number of page numbers that positions `first .. end` touch; 0 if there are none.
pub(crate) fn numbers_between(page_tokens: u32, first: u32, end: u32) -> usize {
    if first >= end { 0 } else { ((end - 1) / page_tokens - first / page_tokens + 1) as usize }
}

/// What decides how many pages a text takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCounts {
    pub page_tokens: u32,
    /// A token has a slot in a page of each.
    pub groups: PageGroups,
    /// Most pages of a path in each group with a window; `None` if there is none.
    pub window_pages: Option<usize>,
}

impl PageCounts {
    /// Most pages of a path that ends at `end` and shares none, at any time while it is computed.
    pub fn of_path(&self, end: u32) -> usize {
        let numbers = numbers_between(self.page_tokens, 0, end);
        let windowed = self.window_pages.map_or(numbers, |most| numbers.min(most));
        self.groups.with(Reach::All) * numbers + self.groups.with(Reach::Window) * windowed
    }

    /// Pages of a run of a prompt's tokens at positions `first .. end` once they are computed, with the window before
    /// the end.
    pub fn of_prompt(&self, first: u32, end: u32) -> usize {
        self.of_run(first, end, |window| window.passed(end))
    }

    /// Pages of the tokens at positions `first .. end` that a sample has added, at its end.
    pub fn of_sample(&self, first: u32, end: u32) -> usize {
        let kept = |window: Window| u32::try_from(window.most_kept()).expect("windows are counted in u32");
        self.of_run(first, end, |window| end.saturating_sub(kept(window)))
    }

    /// Pages of positions `first .. end`; those of groups with a window from `held_from(window)` on.
    fn of_run(&self, first: u32, end: u32, held_from: impl Fn(Window) -> u32) -> usize {
        let from = self.groups.window().map_or(first, held_from).max(first);
        let of = |reach, from| self.groups.with(reach) * numbers_between(self.page_tokens, from, end);
        of(Reach::All, first) + of(Reach::Window, from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_take_few_pages_in_groups_with_a_window() {
        let window = Window { tokens: 100, unit: 64 };
        let counts = PageCounts { page_tokens: 16, groups: PageGroups::mixed(1, 2, window), window_pages: Some(30) };
        // 6,000 positions are 375 page numbers; the window before the end begins at 5,888.
        assert_eq!(counts.of_path(6000), 375 + 2 * 30);
        assert_eq!(counts.of_prompt(0, 6000), 375 + 2 * 7);
        assert_eq!(counts.of_path(32), 3 * 2);
        // A sample keeps 230 positions: 5,770 on begin in the page of 5,760.
        assert_eq!(window.most_kept(), 230);
        assert_eq!(counts.of_sample(5000, 6000), 63 + 2 * 15);
        let all = PageCounts { groups: PageGroups::ONE, window_pages: None, ..counts };
        assert_eq!((all.of_path(6000), all.of_prompt(0, 6000), all.of_sample(5000, 6000)), (375, 375, 63));
    }
}
