//! What is live in one step: the order of its rows and the snapshot that planners see. Costs are those of the live
//! segments, whatever else the tree caches.

use std::cell::Cell;

use super::PrefixTree;
use crate::ids::SegmentId;
use crate::kv::{Forest, ForestSegment, StepRow};

/// A number for each segment met in the current round, so that a walk need not clear or search anything.
#[derive(Debug, Default)]
pub(super) struct Visits {
    round: Cell<u64>,
    notes: Vec<Cell<(u64, u32)>>,
}

impl Visits {
    pub fn grow(&mut self) {
        self.notes.push(Cell::new((0, 0)));
    }

    fn begin(&self) {
        self.round.set(self.round.get() + 1);
    }

    fn note(&self, id: SegmentId, number: u32) {
        self.notes[id.ix()].set((self.round.get(), number));
    }

    fn number(&self, id: SegmentId) -> Option<u32> {
        let (round, number) = self.notes[id.ix()].get();
        (round == self.round.get()).then_some(number)
    }
}

/// A segment above some rows.
struct Met {
    /// Its parent's number.
    parent: Option<u32>,
    born: u64,
    id: SegmentId,
}

/// The numbers of `met`, a whole forest, depth-first.
fn depth_first_order(met: &[Met]) -> Vec<u32> {
    // Siblings side by side: the roots, then the children of each number.
    let number_of = |parent: Option<u32>| parent.map_or(0, |parent| parent as usize + 1);
    let mut firsts = vec![0u32; met.len() + 2];
    met.iter().for_each(|segment| firsts[number_of(segment.parent) + 1] += 1);
    for of in 0..=met.len() {
        firsts[of + 1] += firsts[of];
    }
    let mut siblings = vec![0u32; met.len()];
    let mut next = firsts.clone();
    for (number, segment) in (0u32..).zip(met) {
        let next = &mut next[number_of(segment.parent)];
        siblings[*next as usize] = number;
        *next += 1;
    }
    for bounds in firsts.windows(2) {
        let family = &mut siblings[bounds[0] as usize..bounds[1] as usize];
        if !family.is_sorted_by_key(|&number| met[number as usize].born) {
            family.sort_unstable_by_key(|&number| met[number as usize].born);
        }
    }
    let children = |of: Option<u32>| {
        let of = number_of(of);
        &siblings[firsts[of] as usize..firsts[of + 1] as usize]
    };
    let mut order = Vec::with_capacity(met.len());
    let mut stack: Vec<u32> = children(None).iter().rev().copied().collect();
    while let Some(next) = stack.pop() {
        order.push(next);
        stack.extend(children(Some(next)).iter().rev());
    }
    order
}

impl PrefixTree {
    /// Sorts rows depth-first: a segment's rows by position, then those of its children, oldest first. Rows of equal
    /// segment and position keep their order.
    pub fn depth_first(&self, rows: &mut [StepRow]) {
        self.depth_first_by(rows, |&row| row);
    }

    /// The same for whatever carries a row with it. Rows that stand so already, as those of a step mostly do that goes
    /// on from the one before, are only looked at.
    pub fn depth_first_by<T: Copy>(&self, rows: &mut [T], row: impl Fn(&T) -> StepRow) {
        if !self.is_depth_first(rows.iter().map(&row)) {
            self.sort_depth_first(rows, row);
        }
    }

    /// Walks along `rows`: each goes on in the segment of the one before, or in a new one beneath the path to it,
    /// younger than its siblings there.
    fn is_depth_first(&self, rows: impl Iterator<Item = StepRow>) -> bool {
        self.visits.begin();
        let mut path: Vec<SegmentId> = Vec::new();
        // When the youngest child was born that was met of nothing, and of each segment of the path.
        let mut youngest: Vec<u64> = vec![0];
        let mut new = Vec::new();
        let mut last = None;
        for StepRow { segment, position } in rows {
            let owner = self.owner(segment, position);
            if let Some((_, before)) = last.filter(|&(before, _)| before == owner) {
                if position < before {
                    return false;
                }
                last = Some((owner, position));
                continue;
            }
            last = Some((owner, position));
            new.clear();
            new.extend(self.ancestry(owner).take_while(|&id| self.visits.number(id).is_none()));
            let Some(top) = new.last().map(|&id| self.at(id)) else { return false };
            let depth = match top.parent {
                None => 0,
                Some(above) => match self.visits.number(above).map(|depth| depth as usize) {
                    Some(depth) if path.get(depth) == Some(&above) => depth + 1,
                    _ => return false,
                },
            };
            if std::mem::replace(&mut youngest[depth], top.born) > top.born {
                return false;
            }
            path.truncate(depth);
            youngest.truncate(depth + 1);
            for &id in new.iter().rev() {
                self.visits.note(id, super::count(path.len()));
                path.push(id);
                youngest.push(0);
            }
        }
        true
    }

    fn sort_depth_first<T: Copy>(&self, rows: &mut [T], row: impl Fn(&T) -> StepRow) {
        let (met, owners) = self.met(rows.iter().map(&row));
        let mut held = vec![0u32; met.len()];
        owners.iter().for_each(|&owner| held[owner as usize] += 1);
        // Where the rows of each segment begin, then where its next one goes.
        let mut places = vec![0u32; met.len()];
        let mut at = 0;
        for number in depth_first_order(&met) {
            places[number as usize] = at;
            at += held[number as usize];
        }
        let mut sorted = rows.to_vec();
        for (item, &owner) in rows.iter().zip(&owners) {
            let place = &mut places[owner as usize];
            sorted[*place as usize] = *item;
            *place += 1;
        }
        for (&end, &held) in places.iter().zip(&held).filter(|&(_, &held)| held > 1) {
            let own = &mut sorted[(end - held) as usize..end as usize];
            if !own.is_sorted_by_key(|item| row(item).position) {
                own.sort_by_key(|item| row(item).position);
            }
        }
        rows.copy_from_slice(&sorted);
    }

    /// The segments above `rows`, numbered as they are met, and the number of each row's own.
    fn met(&self, rows: impl Iterator<Item = StepRow>) -> (Vec<Met>, Vec<u32>) {
        self.visits.begin();
        let (mut met, mut owners) = (Vec::new(), Vec::with_capacity(rows.size_hint().0));
        for StepRow { segment, position } in rows {
            let owner = self.owner(segment, position);
            let first = met.len();
            for id in self.ancestry(owner).take_while(|&id| self.visits.number(id).is_none()) {
                let number = super::count(met.len());
                self.visits.note(id, number);
                // Whose parent is new has it behind it.
                met.push(Met { parent: Some(number + 1), born: self.at(id).born, id });
            }
            if let Some(top) = met[first..].last_mut() {
                top.parent = self.at(top.id).parent.and_then(|above| self.visits.number(above));
            }
            owners.push(self.visits.number(owner).expect("the owner was visited just now"));
        }
        (met, owners)
    }

    /// The segments that `rows` need, for rows in the order of `depth_first`. A segment with rows beneath it shows all
    /// its tokens; one without ends at its last row. Whether a step of these rows can be computed now is
    /// `check_ready`'s question: rows whose keys and values are stored already may be any part of a step.
    pub fn forest(&self, rows: &[StepRow]) -> Forest {
        let mut forest = Forest {
            page_tokens: self.page_tokens,
            segments: Vec::with_capacity(rows.len()),
            pages: Vec::with_capacity(4 * rows.len()),
            row_positions: Vec::with_capacity(rows.len()),
            row_segments: Vec::with_capacity(rows.len()),
        };
        self.visits.begin();
        let mut new = Vec::new();
        for (row, &StepRow { segment, position }) in (0u32..).zip(rows) {
            let owner = self.owner(segment, position);
            let index = self.visits.number(owner).unwrap_or_else(|| {
                let above = self.at(owner).parent.filter(|&above| self.visits.number(above).is_none());
                let above = above.into_iter().flat_map(|above| self.ancestry(above));
                new.extend(above.take_while(|&id| self.visits.number(id).is_none()));
                for id in new.drain(..).rev() {
                    self.enter(&mut forest, id, row);
                }
                self.enter(&mut forest, owner, row)
            });
            let live = &mut forest.segments[index as usize];
            live.rows.end = row + 1;
            live.tokens = position + 1 - live.first_position;
            forest.row_positions.push(position);
            forest.row_segments.push(index);
        }
        self.close(&mut forest, None);
        for index in (0..forest.segments.len()).rev() {
            let Some(parent) = forest.segments[index].parent else { continue };
            let end = forest.segments[index].rows.end;
            let above = &mut forest.segments[parent as usize].rows;
            above.end = above.end.max(end);
        }
        debug_assert_eq!(forest.check(), Ok(()));
        forest
    }

    /// Lets `id` enter the snapshot with its first row; tokens, pages and last row are not known yet. Returns its
    /// index.
    fn enter(&self, forest: &mut Forest, id: SegmentId, row: u32) -> u32 {
        let segment = self.at(id);
        let parent = segment.parent.and_then(|above| self.visits.number(above));
        self.close(forest, parent);
        let index = super::count(forest.segments.len());
        self.visits.note(id, index);
        let first_position = segment.first_position;
        forest.segments.push(ForestSegment { id, parent, first_position, tokens: 0, pages: 0..0, rows: row..row });
        index
    }

    /// Lists the pages of the segment that entered the snapshot last, whose rows are all known when another follows it:
    /// one whose parent is `next_parent`. What is beneath it comes at once, and then it is whole.
    fn close(&self, forest: &mut Forest, next_parent: Option<u32>) {
        let Some(index) = forest.segments.len().checked_sub(1) else { return };
        let live = &mut forest.segments[index];
        let segment = self.at(live.id);
        if next_parent.is_some_and(|parent| parent as usize == index) {
            live.tokens = segment.len();
        }
        let first = super::count(forest.pages.len());
        let pages = match segment.hollow {
            true => 0,
            false => self.pages_between(live.first_position, live.first_position + live.tokens),
        };
        forest.pages.extend_from_slice(&segment.pages[..pages]);
        live.pages = first..super::count(forest.pages.len());
    }

    /// Whether all keys and values that the snapshot shows exist once its rows are computed: rows go on where
    /// `computed` ends, and what has rows beneath it is finished in this step at the latest.
    pub fn check_ready(&self, forest: &Forest) -> Result<(), String> {
        for (index, live) in forest.segments.iter().enumerate() {
            let mut ready = live.first_position + self.at(live.id).computed;
            for &position in &forest.row_positions[forest.own_rows(index)] {
                if position > ready {
                    return Err(format!("segment {}: row at {position}, but {ready} is not computed", live.id));
                }
                ready = ready.max(position + 1);
            }
            let end = live.first_position + live.tokens;
            if ready < end {
                return Err(format!("segment {}: rows beneath it need {end} positions, {ready} are ready", live.id));
            }
        }
        Ok(())
    }
}
