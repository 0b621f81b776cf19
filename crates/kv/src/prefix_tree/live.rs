//! Orders the rows of a step depth-first and makes the snapshot that planners see. The cost depends on the segments the
//! step reads, not on what else is cached.

use std::ops::Range;

use super::{PrefixTree, Segment};
use crate::{Forest, ForestSegment, StepRow};
use offshoot_core::ids::{GroupIx, PageId, SegmentId};

/// A segment on the path of some row.
struct VisitedSegment {
    /// Its parent's number.
    parent: Option<u32>,
    born: u64,
    id: SegmentId,
}

/// The numbers of the segments of a forest, depth-first, siblings by birth.
fn depth_first_order(visited: &[VisitedSegment]) -> Vec<u32> {
    // Counting sort by parent: the roots, then the children of each number.
    let number_of = |parent: Option<u32>| parent.map_or(0, |parent| parent as usize + 1);
    let mut firsts = vec![0u32; visited.len() + 2];
    visited.iter().for_each(|segment| firsts[number_of(segment.parent) + 1] += 1);
    for of in 0..=visited.len() {
        firsts[of + 1] += firsts[of];
    }
    let mut siblings = vec![0u32; visited.len()];
    let mut next = firsts.clone();
    for (number, segment) in (0u32..).zip(visited) {
        let next = &mut next[number_of(segment.parent)];
        siblings[*next as usize] = number;
        *next += 1;
    }
    for bounds in firsts.windows(2) {
        let family = &mut siblings[bounds[0] as usize..bounds[1] as usize];
        if !family.is_sorted_by_key(|&number| visited[number as usize].born) {
            family.sort_unstable_by_key(|&number| visited[number as usize].born);
        }
    }
    let children = |of: Option<u32>| {
        let of = number_of(of);
        &siblings[firsts[of] as usize..firsts[of + 1] as usize]
    };
    let mut order = Vec::with_capacity(visited.len());
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

    /// Sorts values that contain a row as `depth_first` does. Only checks the order if it is right already, as it is
    /// for most steps that continue the one before.
    pub fn depth_first_by<T: Copy>(&self, rows: &mut [T], row: impl Fn(&T) -> StepRow) {
        if !self.is_depth_first(rows.iter().map(&row)) {
            self.sort_depth_first(rows, row);
        }
    }

    /// Whether `rows` are depth-first: each row is in the segment of the row before, or in a new segment that branches
    /// off the path to it and is younger than its visited siblings.
    fn is_depth_first(&self, rows: impl Iterator<Item = StepRow>) -> bool {
        self.visits.begin();
        let mut path: Vec<SegmentId> = Vec::new();
        // Birth of the youngest visited root, and of the youngest visited child of each segment of the path.
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
        let (visited, owners) = self.visit(rows.iter().map(&row));
        let mut held = vec![0u32; visited.len()];
        owners.iter().for_each(|&owner| held[owner as usize] += 1);
        // For each segment the index of its first row, then of its next one.
        let mut nexts = vec![0u32; visited.len()];
        let mut at = 0;
        for number in depth_first_order(&visited) {
            nexts[number as usize] = at;
            at += held[number as usize];
        }
        let mut sorted = rows.to_vec();
        for (item, &owner) in rows.iter().zip(&owners) {
            let next = &mut nexts[owner as usize];
            sorted[*next as usize] = *item;
            *next += 1;
        }
        for (&end, &held) in nexts.iter().zip(&held).filter(|&(_, &held)| held > 1) {
            let own = &mut sorted[(end - held) as usize..end as usize];
            if !own.is_sorted_by_key(|item| row(item).position) {
                own.sort_by_key(|item| row(item).position);
            }
        }
        rows.copy_from_slice(&sorted);
    }

    /// The segments on the paths of `rows`, numbered in order of visit, and for each row the number of its segment.
    fn visit(&self, rows: impl Iterator<Item = StepRow>) -> (Vec<VisitedSegment>, Vec<u32>) {
        self.visits.begin();
        let (mut visited, mut owners) = (Vec::new(), Vec::with_capacity(rows.size_hint().0));
        for StepRow { segment, position } in rows {
            let owner = self.owner(segment, position);
            let first = visited.len();
            for id in self.ancestry(owner).take_while(|&id| self.visits.number(id).is_none()) {
                let number = super::count(visited.len());
                self.visits.note(id, number);
                // The parent is visited next, unless it was visited before; that case is corrected below.
                visited.push(VisitedSegment { parent: Some(number + 1), born: self.at(id).born, id });
            }
            if let Some(top) = visited[first..].last_mut() {
                top.parent = self.at(top.id).parent.and_then(|above| self.visits.number(above));
            }
            owners.push(self.visits.number(owner).expect("the owner was visited just now"));
        }
        (visited, owners)
    }

    /// The segments that `rows`, in the order of `depth_first`, read, with their pages in the first group. A segment
    /// with rows beneath it has all its tokens; one without ends at its last row. Whether a step of these rows can be
    /// computed now is `check_ready`'s question: rows whose keys and values are stored already may be any part of a
    /// step.
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

    /// Adds `id` to the snapshot with its first row; its tokens, pages and last row follow later. Returns its index.
    fn enter(&self, forest: &mut Forest, id: SegmentId, row: u32) -> u32 {
        let segment = self.at(id);
        let parent = segment.parent.and_then(|above| self.visits.number(above));
        self.close(forest, parent);
        let index = super::count(forest.segments.len());
        self.visits.note(id, index);
        let first_position = segment.first_position;
        let held_from = segment.held_from(self.groups.place(GroupIx(0)).0);
        let (pages, rows) = (0..0, row..row);
        forest.segments.push(ForestSegment { id, parent, first_position, tokens: 0, pages, held_from, rows });
        index
    }

    /// Lists the pages of the segment added last, whose rows are complete once another segment follows. `next_parent`:
    /// the parent of that one; if it is the segment itself, all its tokens are shown.
    fn close(&self, forest: &mut Forest, next_parent: Option<u32>) {
        let Some(index) = forest.segments.len().checked_sub(1) else { return };
        let live = &mut forest.segments[index];
        let segment = self.at(live.id);
        if next_parent.is_some_and(|parent| parent as usize == index) {
            live.tokens = segment.len();
        }
        live.pages = self.push_pages(&mut forest.pages, segment, GroupIx(0), live.end());
    }

    /// Appends the pages that `segment` has of its positions below `end` in `group`; returns where they are.
    fn push_pages(&self, pages: &mut Vec<PageId>, segment: &Segment, group: GroupIx, end: u32) -> Range<u32> {
        let first = super::count(pages.len());
        let (reach, number) = self.groups.place(group);
        let all = &segment.pages[reach][..self.pages_below(segment, reach, end)];
        match self.groups.with(reach) {
            1 => pages.extend_from_slice(all),
            groups => pages.extend(all.iter().skip(number).step_by(groups)),
        }
        first..super::count(pages.len())
    }

    /// Lists the pages of `group` in a forest of this tree, instead of another group's.
    pub fn list_pages(&self, forest: &mut Forest, group: GroupIx) {
        let (reach, _) = self.groups.place(group);
        forest.pages.clear();
        for live in &mut forest.segments {
            let segment = self.at(live.id);
            live.held_from = segment.held_from(reach);
            live.pages = self.push_pages(&mut forest.pages, segment, group, live.end());
        }
        debug_assert_eq!(forest.check(), Ok(()));
    }

    /// Checks that all keys and values of the snapshot exist once its rows are computed: a segment's rows continue
    /// where `computed` ends, and segments with rows beneath them are complete after this step.
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
