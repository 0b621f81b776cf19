//! Which adapters the tokens of a path are computed with. Nearly every path has one or none for all of its tokens;
//! where a branch went on with another one, its path names the positions at which the adapter changes.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use offshoot_core::ids::AdapterVersion;
use offshoot_kv::AdapterChange;

/// The changes of the adapter along a path, by rising position. Before the first one there is none, and neighbours
/// differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PathAdapters(Arc<[AdapterChange]>);

impl PathAdapters {
    /// This adapter, or none, for all tokens.
    pub fn of(adapter: Option<AdapterVersion>) -> Self {
        Self::default().set_from(0, adapter)
    }

    /// A path's adapters, from the places where they change, in rising order. Neighbours may have one adapter.
    fn of_changes(changes: impl IntoIterator<Item = AdapterChange>) -> Self {
        let mut distinct: Vec<AdapterChange> = Vec::new();
        for change in changes {
            if distinct.last().and_then(|last| last.adapter) != change.adapter {
                distinct.push(change);
            }
        }
        PathAdapters(distinct.into())
    }

    /// The adapter of all tokens from the last change on.
    pub fn last(&self) -> Option<AdapterVersion> {
        self.0.last().and_then(|last| last.adapter)
    }

    /// The adapter of the token at `position`.
    pub fn at(&self, position: usize) -> Option<AdapterVersion> {
        let begun = self.0.partition_point(|change| change.at <= position);
        begun.checked_sub(1).and_then(|last| self.0[last].adapter)
    }

    /// These up to `position`, and `adapter` from there on.
    pub fn set_from(&self, position: usize, adapter: Option<AdapterVersion>) -> Self {
        let before = self.0.iter().copied().take_while(|change| change.at < position);
        Self::of_changes(before.chain([AdapterChange { at: position, adapter }]))
    }

    /// These with the version `to` in the place of `from`.
    pub fn replaced(&self, from: AdapterVersion, to: AdapterVersion) -> Self {
        let replaced = |adapter: AdapterVersion| if adapter == from { to } else { adapter };
        let change = |change: &AdapterChange| AdapterChange { adapter: change.adapter.map(replaced), ..*change };
        Self::of_changes(self.0.iter().map(change))
    }

    /// All versions among them.
    pub fn versions(&self) -> BTreeSet<AdapterVersion> {
        self.0.iter().filter_map(|change| change.adapter).collect()
    }

    /// The versions that tokens before the last change have.
    pub fn before_last(&self) -> impl Iterator<Item = AdapterVersion> + use<'_> {
        let before = self.0.split_last().map_or(&[][..], |(_, before)| before);
        before.iter().filter_map(|change| change.adapter)
    }

    /// The first position whose adapter differs; `None`: none does.
    pub fn first_difference(&self, other: &Self) -> Option<usize> {
        let alike = self.0.iter().zip(&*other.0).take_while(|(own, other)| own == other).count();
        let next = [self, other].into_iter().filter_map(|all| all.0.get(alike)).map(|change| change.at);
        next.min()
    }

    /// The first position with an adapter; `None`: none has one.
    pub fn first(&self) -> Option<usize> {
        self.0.first().map(|first| first.at)
    }

    /// The runs of tokens with one adapter at `positions`: where each begins, and its adapter.
    pub fn runs(&self, positions: Range<usize>) -> impl Iterator<Item = (usize, Option<AdapterVersion>)> + use<'_> {
        let Range { start, end } = positions;
        let within = self.0.iter().filter(move |change| start < change.at && change.at < end);
        std::iter::once((start, self.at(start))).chain(within.map(|change| (change.at, change.adapter)))
    }

    /// The changes at `positions` behind the first of these, counted from that.
    pub fn within(&self, positions: Range<usize>) -> Vec<AdapterChange> {
        let begin = positions.start;
        self.runs(positions).skip(1).map(|(at, adapter)| AdapterChange { at: at - begin, adapter }).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn version(number: u64) -> Option<AdapterVersion> {
        number.checked_sub(1).map(AdapterVersion)
    }

    proptest! {
        #[test]
        fn changes_say_what_a_list_of_adapters_says(
            steps in prop::collection::vec((0_usize..12, 0_u64..4), 0..6),
            others in prop::collection::vec((0_usize..12, 0_u64..4), 0..6),
        ) {
            const END: usize = 16;
            let build = |steps: &[(usize, u64)]| {
                let (mut path, mut all) = (PathAdapters::default(), [None; END]);
                for &(position, number) in steps {
                    path = path.set_from(position, version(number));
                    all[position..].fill(version(number));
                }
                (path, all)
            };
            let ((path, all), (other, all_others)) = (build(&steps), build(&others));
            let check = |path: &PathAdapters, all: &[Option<AdapterVersion>]| {
                prop_assert!((0..END).all(|at| path.at(at) == all[at]));
                prop_assert_eq!(path.last(), all[END - 1]);
                prop_assert_eq!(path.first(), all.iter().position(Option::is_some));
                prop_assert_eq!(path.versions(), all.iter().copied().flatten().collect::<BTreeSet<_>>());
                for begin in 0..END {
                    let mut again = PathAdapters::of(all[begin]);
                    for change in path.within(begin..END) {
                        again = again.set_from(change.at, change.adapter);
                    }
                    prop_assert!((begin..END).all(|at| again.at(at - begin) == all[at]));
                }
                Ok(())
            };
            check(&path, &all)?;
            prop_assert_eq!(path.first_difference(&other), (0..END).find(|&at| all[at] != all_others[at]));
            let replaced = all.map(|adapter| if adapter == version(1) { version(2) } else { adapter });
            check(&path.replaced(AdapterVersion(0), AdapterVersion(1)), &replaced)?;
        }
    }
}
