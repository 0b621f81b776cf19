//! Places a written answer on branches of the scorer's engine. The answer's trunk, its tokens up to its own end, is a
//! branch that stays, so that longer answers go on from it; what a template writes behind it is a branch of its own,
//! which is given up once its value is there. What an answer has in common with the one before is neither computed nor
//! valued again: a value follows from the tokens up to its own.

use std::sync::Arc;

use crate::rendered::Rendered;
use crate::resolved::WrittenAnswer;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::BranchId;
use offshoot_engine::{EngineHandle, EventReceiver, Extend, PositionValues, RootOptions};

/// The values at one token.
type Values = Arc<[f32]>;

/// An answer on its branches.
pub(crate) struct Placed {
    written: Arc<WrittenAnswer>,
    /// For each place at which values are read, these, once they are known.
    values: Vec<Option<Values>>,
    trunk: Trunk,
    /// What computes the values behind the trunk.
    end: Option<BranchId>,
    computed: usize,
}

struct Trunk {
    branch: BranchId,
    /// Whether it goes on from no other branch.
    is_root: bool,
    /// Whether it is being extended.
    is_extended: bool,
}

/// What a longer answer takes over from the one that it goes on from, which may be given up meanwhile.
pub(crate) struct Before {
    /// The answer's text in the scorer's form.
    pub written: Arc<WrittenAnswer>,
    values: Vec<Option<Values>>,
    /// A branch that goes on from the answer's trunk.
    branch: Option<BranchId>,
}

impl Before {
    /// The branch that was made for the longer answer.
    pub fn branch(&self) -> Option<BranchId> {
        self.branch
    }
}

/// Where an answer is to be placed.
pub(crate) struct Place<'a> {
    pub engine: &'a EngineHandle,
    /// The root whose place in the engine's queue it shares.
    pub beside: Option<BranchId>,
    /// What it takes over.
    pub before: Option<Before>,
    /// The answer to the same question that was placed last.
    pub last: Option<&'a Rendered>,
}

/// What an answer needs to have computed.
#[derive(Debug, PartialEq)]
struct Needed {
    /// Number of tokens that it has in common with the answer before.
    common: usize,
    /// Whether its trunk goes on from that of the answer before.
    goes_on: bool,
    /// The values that are known.
    values: Vec<Option<Values>>,
    /// Where in its trunk values are to be read.
    in_trunk: Vec<u32>,
    /// Where behind its trunk values are to be read.
    behind: Vec<u32>,
}

impl Needed {
    /// `before`: the tokens of the answer before, and its values.
    fn of(rendered: &Rendered, before: Option<(&Rendered, &[Option<Values>])>) -> Needed {
        let common = before.map_or(0, |(before, _)| common_tokens(before, rendered));
        let goes_on = before.is_some_and(|(before, _)| before.trunk <= common.min(rendered.trunk));
        let known = |at: usize| -> Option<Values> {
            let (before, values) = before.filter(|_| at < common)?;
            let ix = before.reads.binary_search_by_key(&at, |place| place.at).ok()?;
            values[ix].clone()
        };
        let values: Vec<Option<Values>> = rendered.reads.iter().map(|place| known(place.at)).collect();
        let open = rendered.reads.iter().zip(&values).filter(|(_, known)| known.is_none());
        let (in_trunk, behind) = open.map(|(place, _)| place.at).partition::<Vec<_>, _>(|&at| at < rendered.trunk);
        Needed { common, goes_on, values, in_trunk: positions(in_trunk), behind: positions(behind) }
    }
}

impl Place<'_> {
    /// Begins to compute the values of an answer.
    ///
    /// # Errors
    ///
    /// It is longer than the scorer's context; the engine has stopped, or takes no work.
    pub fn begin(&self, receiver: &mut EventReceiver, written: WrittenAnswer) -> Result<Placed> {
        let mut made: Vec<BranchId> = self.before.iter().filter_map(Before::branch).collect();
        let placed = self.placed(receiver, written, &mut made);
        if placed.is_err() {
            self.engine.release(&made);
        }
        placed
    }

    /// As [`begin`](Self::begin). `made`: the branches that the answer has, to which those that are made are added.
    fn placed(&self, receiver: &mut EventReceiver, written: WrittenAnswer, made: &mut Vec<BranchId>) -> Result<Placed> {
        let rendered = &written.rendered;
        let (tokens, context) = (rendered.tokens.len(), self.engine.facts().context);
        if tokens > context {
            let what = "an answer with its question, in the scorer's form,".to_owned();
            return Err(Error::BeyondScorersContext { what, tokens, context });
        }
        let needed =
            Needed::of(rendered, self.before.as_ref().map(|before| (&before.written.rendered, &*before.values)));
        let shared = self.last.map_or(0, |last| common_tokens(last, rendered));
        let computed = tokens - needed.common.max(shared);
        let mut extends = Vec::new();
        let (branch, is_root, len) = self.open(rendered, &needed, made)?;
        // A branch that is being extended cannot be forked. What both compute is computed once.
        let end = match needed.behind.is_empty() {
            true => None,
            false => {
                let end = self.engine.fork(branch, 1)?[0];
                made.push(end);
                extends.push(Extend::given_with_values(end, rendered.tokens[len..].to_vec(), needed.behind.clone()));
                Some(end)
            }
        };
        // The trunk's last row is computed, whether its value is read or not, so that the branch holds its keys and
        // values for longer answers.
        let at = match needed.in_trunk.is_empty() && (is_root || len < rendered.trunk) {
            true => positions(vec![rendered.trunk - 1]),
            false => needed.in_trunk.clone(),
        };
        let is_extended = !at.is_empty();
        if is_extended {
            let given = rendered.tokens[len..rendered.trunk].to_vec();
            extends.insert(0, Extend::given_with_values(branch, given, at));
        }
        receiver.start(extends)?;
        let trunk = Trunk { branch, is_root, is_extended };
        Ok(Placed { written: Arc::new(written), values: needed.values, trunk, end, computed })
    }

    /// The branch of an answer's trunk, whether it is a root, and how many of the answer's tokens it has.
    fn open(&self, rendered: &Rendered, needed: &Needed, made: &mut Vec<BranchId>) -> Result<(BranchId, bool, usize)> {
        if let Some(before) = &self.before
            && let Some(branch) = before.branch
        {
            if needed.goes_on {
                return Ok((branch, false, before.written.rendered.trunk));
            }
            self.engine.release(&[branch]);
            made.retain(|&made| made != branch);
        }
        let place = RootOptions { beside: self.beside, ..RootOptions::default() };
        let root = self.engine.root_with(rendered.tokens[..rendered.trunk].to_vec(), place)?;
        made.push(root);
        Ok((root, true, rendered.trunk))
    }
}

impl Placed {
    /// The answer's text in the scorer's form.
    pub fn written(&self) -> &Arc<WrittenAnswer> {
        &self.written
    }

    /// How many tokens were computed for it.
    pub fn computed(&self) -> usize {
        self.computed
    }

    /// The root that was made for it.
    pub fn root(&self) -> Option<BranchId> {
        Some(self.trunk.branch).filter(|_| self.trunk.is_root)
    }

    /// Its branches.
    pub fn branches(&self) -> impl Iterator<Item = BranchId> {
        std::iter::once(self.trunk.branch).chain(self.end)
    }

    /// Those of its branches that are being extended.
    pub fn extended(&self) -> impl Iterator<Item = BranchId> {
        Some(self.trunk.branch).filter(|_| self.trunk.is_extended).into_iter().chain(self.end)
    }

    /// What an answer takes over that goes on from this one, with a branch of its own.
    pub fn before(&self, engine: &EngineHandle) -> Before {
        // An engine that has stopped says so when the answer is placed.
        let forked = (!self.trunk.is_extended).then(|| engine.fork(self.trunk.branch, 1));
        let branch = forked.and_then(Result::ok).map(|forks| forks[0]);
        Before { written: Arc::clone(&self.written), values: self.values.clone(), branch }
    }

    /// Adds the values that one of its branches has computed. Returns the branch if it is not needed any more.
    pub fn note(&mut self, branch: BranchId, values: Vec<PositionValues>) -> Option<BranchId> {
        for PositionValues { at, values } in values {
            let reads = &self.written.rendered.reads;
            if let Ok(ix) = reads.binary_search_by_key(&(at as usize), |place| place.at) {
                self.values[ix] = Some(values.into());
            }
        }
        if self.trunk.branch == branch {
            self.trunk.is_extended = false;
        }
        self.end.take_if(|end| *end == branch)
    }

    /// All values of the answer, once nothing is computed for it any more.
    pub fn values(&self) -> Option<Result<Vec<Values>>> {
        if self.extended().next().is_some() {
            return None;
        }
        let values: Option<Vec<Values>> = self.values.iter().cloned().collect();
        Some(values.ok_or_else(|| Error::Internal("the scorer's engine has left out a value".to_owned())))
    }
}

/// Number of tokens with which both begin.
fn common_tokens(a: &Rendered, b: &Rendered) -> usize {
    a.tokens.iter().zip(&b.tokens).take_while(|(a, b)| a == b).count()
}

fn positions(at: Vec<usize>) -> Vec<u32> {
    at.into_iter().map(|at| u32::try_from(at).expect("a context has fewer tokens")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendered::ReadPlace;
    use offshoot_core::ids::TokenId;

    fn rendered(tokens: &[u32], trunk: usize, reads: &[usize]) -> Rendered {
        let tokens = tokens.iter().copied().map(TokenId).collect();
        Rendered { tokens, trunk, reads: reads.iter().map(|&at| ReadPlace { at, step: 0 }).collect() }
    }

    fn known(values: &[f32]) -> Vec<Option<Values>> {
        values.iter().map(|&value| Some(Values::from([value]))).collect()
    }

    #[test]
    fn an_answer_needs_what_the_one_before_lacks() {
        let before = rendered(&[1, 2, 9, 3, 9], 5, &[2, 4]);
        let values = known(&[0.5, 0.25]);
        let longer = Needed::of(&rendered(&[1, 2, 9, 3, 9, 4, 9], 7, &[2, 4, 6]), Some((&before, &values)));
        let mut all = known(&[0.5, 0.25]);
        all.push(None);
        let expected = Needed { common: 5, goes_on: true, values: all, in_trunk: vec![6], behind: Vec::new() };
        assert_eq!(longer, expected);
        // Its second step is another one.
        let other = Needed::of(&rendered(&[1, 2, 9, 4, 9], 5, &[2, 4]), Some((&before, &values)));
        assert!(!other.goes_on && other.common == 3);
        assert_eq!((other.values, other.in_trunk), (vec![known(&[0.5]).remove(0), None], vec![4]));
        let alone = Needed::of(&before, None);
        assert_eq!((alone.common, alone.goes_on, alone.in_trunk), (0, false, vec![2, 4]));
    }

    #[test]
    fn what_a_template_writes_behind_an_answer_is_no_part_of_longer_ones() {
        let before = rendered(&[1, 2, 7, 8], 2, &[3]);
        let values = known(&[0.5]);
        let longer = Needed::of(&rendered(&[1, 2, 3, 7, 8], 3, &[4]), Some((&before, &values)));
        let expected = Needed { common: 2, goes_on: true, values: vec![None], in_trunk: Vec::new(), behind: vec![4] };
        assert_eq!(longer, expected);
        // The same text again, and one that ends before the trunk does.
        let same = Needed::of(&before, Some((&before, &values)));
        assert!(same.goes_on && same.values == values && same.behind.is_empty());
        assert!(!Needed::of(&rendered(&[1, 7, 8], 1, &[2]), Some((&before, &values))).goes_on);
    }
}
