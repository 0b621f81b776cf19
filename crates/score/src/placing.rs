//! Places a written answer on branches of the scorer's engine. The answer's trunk, its tokens up to its own end, is a
//! branch that stays, so that longer answers go on from it; what a template writes behind it is a branch of its own,
//! which is given up once its value is there. What an answer has in common with the one before is neither computed nor
//! valued again: a value follows from the tokens up to its own.

use std::sync::Arc;

use crate::rendered::Rendered;
use crate::resolved::WrittenAnswer;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{BranchId, TokenId};
use offshoot_engine::{EngineHandle, EventReceiver, Extend, PositionValues, RootOptions};

/// The values at one token.
type Values = Arc<[f32]>;

/// An answer on its branches.
pub(crate) struct Placed {
    written: Arc<WrittenAnswer>,
    /// For each place at which values are read, these, once they are known.
    values: Vec<Option<Values>>,
    /// `None`: the answer has no tokens that a longer one would have.
    trunk: Option<Trunk>,
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

/// Where an answer is to be placed.
pub(crate) struct Place<'a> {
    pub engine: &'a EngineHandle,
    /// The root whose place in the engine's queue it shares.
    pub beside: Option<BranchId>,
    /// The answer that it goes on from.
    pub parent: Option<&'a Placed>,
    /// Some answer to the same question.
    pub begun: &'a Rendered,
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
        let rendered = &written.rendered;
        let (tokens, context) = (rendered.tokens.len(), self.engine.facts().context);
        if tokens > context {
            let what = "an answer with its question, in the scorer's form,".to_owned();
            return Err(Error::ContextTooLong { what, tokens, context });
        }
        let before = self.parent.map(|parent| (&parent.written.rendered, &*parent.values));
        let needed = Needed::of(rendered, before);
        let shared = self.beside.map_or(0, |_| common_tokens(self.begun, rendered));
        let computed = tokens - needed.common.max(shared).min(tokens);
        let mut made = Vec::new();
        let started = self.branches(rendered, &needed, &mut made).and_then(|(trunk, end, extends)| {
            receiver.start(extends)?;
            Ok((trunk, end))
        });
        match started {
            Ok((trunk, end)) => Ok(Placed { written: Arc::new(written), values: needed.values, trunk, end, computed }),
            Err(error) => {
                self.engine.release(&made);
                Err(error)
            }
        }
    }

    /// The branches of an answer, and how they are extended; those that were made are added to `made`.
    fn branches(
        &self,
        rendered: &Rendered,
        needed: &Needed,
        made: &mut Vec<BranchId>,
    ) -> Result<(Option<Trunk>, Option<BranchId>, Vec<Extend>)> {
        let Rendered { tokens, trunk: trunk_end, .. } = rendered;
        let rests = self.parent.filter(|_| needed.goes_on).and_then(Placed::resting_trunk);
        let mut extends = Vec::new();
        // A branch with the first `end` tokens of the answer; what it is to be given.
        let mut open = |from: Option<(BranchId, usize)>, end: usize| -> Result<(BranchId, Vec<TokenId>)> {
            let (branch, given) = match from {
                Some((branch, len)) => (self.engine.fork(branch, 1)?[0], tokens[len..end].to_vec()),
                None => {
                    let place = RootOptions { beside: self.beside, ..RootOptions::default() };
                    (self.engine.root_with(tokens[..end].to_vec(), place)?, Vec::new())
                }
            };
            made.push(branch);
            Ok((branch, given))
        };
        let trunk = match *trunk_end {
            0 => None,
            end => {
                let (branch, given) = open(rests, end)?;
                // Its last row is computed, whether its value is read or not, so that the branch holds its keys and
                // values for longer answers.
                let is_new = rests.is_none_or(|(_, len)| len < end);
                let at = match needed.in_trunk.is_empty() && is_new {
                    true => positions(vec![end - 1]),
                    false => needed.in_trunk.clone(),
                };
                let is_extended = !at.is_empty();
                if is_extended {
                    extends.push(Extend::given_with_values(branch, given, at));
                }
                Some(Trunk { branch, is_root: rests.is_none(), is_extended })
            }
        };
        let end = match needed.behind.is_empty() {
            true => None,
            false => {
                // A trunk that is being extended cannot be forked; what both compute is computed once.
                let own = trunk.as_ref().filter(|trunk| !trunk.is_extended).map(|trunk| (trunk.branch, *trunk_end));
                let (branch, given) = open(own.or(rests), tokens.len())?;
                extends.push(Extend::given_with_values(branch, given, needed.behind.clone()));
                Some(branch)
            }
        };
        Ok((trunk, end, extends))
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
        match &self.trunk {
            Some(trunk) => Some(trunk.branch).filter(|_| trunk.is_root),
            None => self.end,
        }
    }

    /// Its branches.
    pub fn branches(&self) -> impl Iterator<Item = BranchId> {
        self.trunk.iter().map(|trunk| trunk.branch).chain(self.end)
    }

    /// Those of its branches that are being extended.
    pub fn extended(&self) -> impl Iterator<Item = BranchId> {
        let trunk = self.trunk.iter().filter(|trunk| trunk.is_extended);
        trunk.map(|trunk| trunk.branch).chain(self.end)
    }

    /// Its trunk, if that can be forked, and the number of its tokens.
    fn resting_trunk(&self) -> Option<(BranchId, usize)> {
        let trunk = self.trunk.as_ref().filter(|trunk| !trunk.is_extended)?;
        Some((trunk.branch, self.written.rendered.trunk))
    }

    /// Adds the values that one of its branches has computed. Returns the branch if it is not needed any more.
    pub fn note(&mut self, branch: BranchId, values: Vec<PositionValues>) -> Option<BranchId> {
        for PositionValues { at, values } in values {
            let reads = &self.written.rendered.reads;
            if let Ok(ix) = reads.binary_search_by_key(&(at as usize), |place| place.at) {
                self.values[ix] = Some(values.into());
            }
        }
        if let Some(trunk) = self.trunk.as_mut().filter(|trunk| trunk.branch == branch) {
            trunk.is_extended = false;
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
