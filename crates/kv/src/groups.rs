//! Page groups: which layers of a model keep their keys and values in the same pages, and which positions these must
//! hold. Which layers are in which group is said by the model (`model::config`).
//!
//! # One pool
//! All groups have equally many layers, so that a page of any group has the same bytes and one free list serves them
//! all: memory moves between the groups as texts get longer or shorter, and nothing has to be divided beforehand. A
//! token has a slot in each group. A model whose layers are all alike has one group, and a page holds all its layers.
//!
//! Layers without a window read all positions. Layers with a window read the last positions only, so their pages behind
//! it can be freed ([`Window::passed`]). If the windows differ, the longest counts for all.

use offshoot_core::ids::GroupIx;

/// Where a layer keeps its keys and values: in the pages of `group`, in their part number `part`. Layers of several
/// groups use the same part, each in pages of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerPlace {
    pub group: GroupIx,
    pub part: usize,
}

/// How far behind a row keys and values are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The longest window of all layers that have one, in positions, the row's own included.
    pub tokens: u32,
    /// Keys and values are freed up to multiples of this many positions: whole pages and whole tiles.
    pub unit: u32,
}

impl Window {
    /// The position below which rows from `next - 1` on read nothing. Not from `next` on: the last row may be requested
    /// again and its slot taken back.
    pub fn passed(self, next: u32) -> u32 {
        let unread = next.saturating_sub(self.tokens);
        unread - unread % self.unit
    }

    /// Tokens with pages after which a decoding branch frees some.
    pub fn patience(self) -> u32 {
        self.tokens + 2 * self.unit
    }

    /// Most positions of a prompt for which it needs whole pages while it is computed `rows` at a time, with a position
    /// more than a step computes.
    pub fn most_of_prompt(self, rows: u32) -> u32 {
        (self.tokens + self.unit).saturating_add(rows)
    }

    /// Most tokens of its own for which a decoding branch keeps pages, with one step submitted and one scheduled.
    pub fn most_kept(self) -> usize {
        self.patience() as usize + 2
    }
}

/// Which positions the pages of a group hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All: its layers have no window.
    All,
    /// The positions that the window of later rows still reaches.
    Window,
}

impl Reach {
    pub const BOTH: [Reach; 2] = [Reach::All, Reach::Window];
}

/// The page groups of a model: first those that hold all positions, then those with a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageGroups {
    all: usize,
    /// The groups with a window, if there are any.
    windowed: Option<(usize, Window)>,
}

impl PageGroups {
    /// One group that holds all positions.
    pub const ONE: PageGroups = PageGroups { all: 1, windowed: None };

    /// One group whose layers all have a window.
    pub fn windowed(window: Window) -> Self {
        Self::mixed(0, 1, window)
    }

    /// `all` groups that hold all positions, and `windowed` ones. Panics if there is none of the latter.
    pub fn mixed(all: usize, windowed: usize, window: Window) -> Self {
        assert!(windowed > 0, "a window belongs to a group");
        Self { all, windowed: Some((windowed, window)) }
    }

    /// The number of groups: a token's pages.
    pub fn count(&self) -> usize {
        self.all + self.with(Reach::Window)
    }

    /// The number of groups of this reach.
    pub fn with(&self, reach: Reach) -> usize {
        match reach {
            Reach::All => self.all,
            Reach::Window => self.windowed.map_or(0, |(groups, _)| groups),
        }
    }

    /// The window of the groups that have one.
    pub fn window(&self) -> Option<Window> {
        self.windowed.map(|(_, window)| window)
    }

    /// The reach of `group`, and its number among the groups of that reach.
    pub fn place(&self, group: GroupIx) -> (Reach, usize) {
        match group.ix().checked_sub(self.all) {
            None => (Reach::All, group.ix()),
            Some(number) => (Reach::Window, number),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = GroupIx> + use<> {
        (0..self.count()).map(GroupIx::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_hold_all_positions_come_first() {
        let window = Window { tokens: 100, unit: 64 };
        let groups = PageGroups::mixed(1, 5, window);
        assert_eq!(groups.count(), 6);
        let places: Vec<_> = groups.iter().map(|group| groups.place(group)).collect();
        assert_eq!(places[..3], [(Reach::All, 0), (Reach::Window, 0), (Reach::Window, 1)]);
        assert_eq!(PageGroups::windowed(window).place(GroupIx(0)), (Reach::Window, 0));
        assert_eq!((PageGroups::ONE.count(), PageGroups::ONE.window()), (1, None));
    }

    #[test]
    fn a_window_has_passed_whole_units_behind_its_last_row() {
        let window = Window { tokens: 100, unit: 64 };
        assert_eq!([0, 100, 163, 164, 228].map(|next| window.passed(next)), [0, 0, 0, 64, 128]);
    }
}
