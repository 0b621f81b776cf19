//! Tensor parallelism: [`Ranks`] is a [`Backend`] of several devices that compute one model together.
//! Every op is passed on to all ranks, with what each has of its operands (`Split`, `Share`); sums over ranks go
//! through a [`Ranked`] backend's fabric. Page ids, plans and uniforms name no device, so all ranks do the same step
//! and draw the same tokens, and nothing but partial sums and shares of logits passes between them.
//!
//! # Exact sums
//! An exact sum over inputs has [`PARTS`] parts, neighbouring inputs each, folded pair by pair as a balanced tree. Each
//! rank computes its parts one by one, and the fabric folds them and those of the other ranks in the same tree, so the
//! bits do not depend on the number of ranks. Otherwise a rank's parts are one product. Parts are rounded to the dtype
//! of activations, as they are sent; of exact sums, what is folded of them is rounded too, but for the last sum. Of
//! others only the last is, where more than two ranks add up: large ones are sent on as sums.

mod backend;
mod cut;
mod loading;
pub mod meeting;
pub mod members;
mod products;

use std::sync::{Arc, Mutex};

pub use backend::divides_experts;

use super::{
    ActivationDtype, Backend, DeltaHeads, Dtype, HeadLayout, MatrixPart, Scoring, Share, Split, StepBatch, StepShape,
};
use members::Members;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::LayerIx;
use offshoot_core::setting::TENSOR_PARALLEL;
use offshoot_kv::plan::Member;

/// Parts of an exact sum over inputs; the largest number of ranks.
pub const PARTS: usize = 8;

/// How many ranks a model may have: such as divide the parts.
pub const RANKS: [usize; 4] = [1, 2, 4, PARTS];

/// A backend several of which can be the ranks of one model.
pub trait Ranked: Backend + Sized {
    /// Through which the ranks exchange buffers. Their calls meet in the order in which each rank makes them.
    type Fabric: Send + Sync + 'static;

    /// Whether all ranks have one memory, so that free bytes of one are those of all.
    const SHARES_MEMORY: bool;

    /// Whether ranks that have the same key head can divide its keys and values by positions, if their fabric does. If
    /// not, each has copies, and the ops of members are not called.
    const DIVIDES_POSITIONS: bool;

    /// Connects `ranks`.
    fn connect(ranks: &mut [Self]) -> Result<Self::Fabric>;
    /// Makes ready to exchange sums of parts that are held as `part`, as `how` says, before a step needs to.
    fn prepare_sums(&mut self, fabric: &Self::Fabric, rank: usize, part: ActivationDtype, how: Reduced) -> Result<()> {
        let _ = (fabric, rank, part, how);
        Ok(())
    }
    /// Wakes all ranks that wait for others, now and later: what they computed since then is void. A rank that asks
    /// for an exchange afterwards panics with [`Aborted`].
    fn abort(fabric: &Self::Fabric);
    fn is_aborted(fabric: &Self::Fabric) -> bool;
    /// Whether the ranks of this fabric can divide positions.
    fn divides_positions(fabric: &Self::Fabric) -> bool {
        let _ = fabric;
        Self::DIVIDES_POSITIONS
    }
    /// Waits for what was enqueued, if anything was, also where an error is known; it is ignored, as the backend is not
    /// used again.
    fn settle(&mut self) {}
    /// `out`, a buffer of sums, becomes the sum of all parts of all ranks, or is increased by it. Parts are rounded to
    /// `wire`, and folded pair by pair as a balanced tree: those of a rank, a power of two, then the ranks in order. So
    /// all have the same bits.
    fn all_reduce(
        &mut self,
        fabric: &Self::Fabric,
        rank: usize,
        out: &mut Self::Buffer,
        parts: &[&Self::Buffer],
        how: Reduced,
    );
    /// As `matrix`, for the rows of one rank of a matrix of `outputs` rows: products of all numbers of ranks have the
    /// same bits where they must.
    fn matrix_of_outputs(&mut self, parts: &[MatrixPart<'_>], outputs: usize) -> Result<Self::Matrix> {
        let _ = outputs;
        self.matrix(parts)
    }
    /// Whether `run` will repeat a step of this shape without asking for its ops: the same on all ranks.
    fn repeats(&self, step: &Self::Step, shape: StepShape) -> bool {
        let _ = (step, shape);
        false
    }
    /// How often `step` has forgotten what it repeats, as addresses have changed. Members' plans differ in size, so those
    /// of one may change alone; but all ranks repeat a step, or none.
    fn moves(&self, step: &Self::Step) -> u64 {
        let _ = step;
        0
    }
    /// As of the rank that has forgotten most often.
    fn set_moves(&mut self, step: &mut Self::Step, moves: u64) {
        let _ = (step, moves);
    }
    /// `out[r] = [x[r] of rank 0, x[r] of rank 1, ..]`
    fn all_gather(&mut self, fabric: &Self::Fabric, rank: usize, out: &mut Self::Buffer, x: &Self::Buffer);
    /// As `resize`, for the buffers of a sum's parts.
    fn resize_parts(&mut self, parts: &mut [&mut Self::Buffer], rows: usize) -> Result<()> {
        parts.iter_mut().try_for_each(|part| self.resize(part, rows))
    }
    /// Makes ready the matrices of a sum's parts for `linear_of_parts`.
    fn join_parts(&mut self, parts: &mut [Self::Matrix]) -> Result<()> {
        let _ = parts;
        Ok(())
    }
    /// `outs[i] = w[i] x[.., i * inputs ..]`, over as many columns of `x` as each `w` has inputs, read where they lie:
    /// the bits of `linear` of copies. Whether this backend does so; if not, nothing is done.
    fn linear_of_parts(&mut self, outs: &mut [&mut Self::Buffer], x: &Self::Buffer, w: &[Self::Matrix]) -> bool {
        let _ = (outs, x, w);
        false
    }
    /// `load` of the batch of all as `member` of a group. What depends on positions is then its own: the rows that
    /// `kv_append` stores, and the plans. `advance` advances it as the batch of all.
    fn load_member(
        &mut self,
        fabric: &Self::Fabric,
        rank: usize,
        step: &mut Self::Step,
        batch: StepBatch,
        member: Member,
    ) -> Result<StepShape> {
        let _ = (fabric, rank, step, batch, member);
        unreachable!("asked of backends that divide positions")
    }
    /// `tree_attention` of a step that was loaded as a member of a group, neighbouring ranks: each attends to its
    /// positions with all query heads of the group's key head, and they merge what they found through its log-sum-exp,
    /// in the order of members. `out`, `[R, q_heads * head_dim / members]`, becomes that of the rank's share of the
    /// heads. The first member alone is given sinks: one is one score of a row.
    #[expect(clippy::too_many_arguments, reason = "operands of one op, each named once")]
    fn tree_attention_of_members(
        &mut self,
        fabric: &Self::Fabric,
        rank: usize,
        out: &mut Self::Buffer,
        qkv: &Self::Buffer,
        kv: &Self::Kv,
        layer: LayerIx,
        step: &mut Self::Step,
        plan: usize,
        scoring: Scoring<'_, Self::Vector>,
    ) {
        let _ = (fabric, rank, out, qkv, kv, layer, step, plan, scoring);
        unreachable!("asked of backends that divide positions")
    }
    /// `out[r][i] = x[r][first + i]`; both hold the same.
    fn columns(&mut self, out: &mut Self::Buffer, x: &Self::Buffer, first: usize);
}

/// How sums of ranks are exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduced {
    /// What each part is rounded to; if sums are exact, every sum of parts but the last, too, whichever rank makes it;
    /// if not, the sum of all of more than two ranks.
    pub wire: Dtype,
    /// Whether there are always [`PARTS`] parts.
    pub exact: bool,
    /// Whether the sum is added to what is there.
    pub adds: bool,
}

impl Reduced {
    /// The sum of two neighbours, one of `left` sums that their level leaves, where `ranks` ranks fold their own sums.
    pub fn sum(self, ranks: usize, a: f32, b: f32, left: usize) -> f32 {
        let rounds = if left > 1 { self.exact } else { !self.exact && ranks > 2 };
        if rounds { self.wire.round(a + b) } else { a + b }
    }
}

/// Folds neighbouring numbers into the first, pair by pair as a balanced tree; their number is a power of two.
/// `add(a, b, left)`: their sum, one of `left` sums that its level leaves.
pub fn folded<T: Copy>(parts: &mut [T], mut add: impl FnMut(T, T, usize) -> T) -> T {
    let mut count = parts.len();
    while count > 1 {
        count /= 2;
        for i in 0..count {
            parts[i] = add(parts[2 * i], parts[2 * i + 1], count);
        }
    }
    parts[0]
}

/// A number of ranks.
fn small(ranks: usize) -> u32 {
    u32::try_from(ranks).expect("there are few ranks")
}

/// The panic of a rank that waited for one that has failed.
#[derive(Debug)]
pub struct Aborted;

/// The panic of a rank that cannot do its part of an exchange, for which the others wait.
#[derive(Debug)]
pub struct FailedExchange(pub Error);

/// Something of each rank, which the rank's thread changes.
type Each<T> = Arc<Vec<Mutex<T>>>;

/// The ranks of one model, as one backend.
pub struct Ranks<B: Ranked> {
    members: Members<B>,
    exact: bool,
    /// How many neighbouring ranks have the same key head, and divide its keys and values by positions; 1 if each has
    /// all of its own.
    sharing: usize,
    /// Parts of an exact sum that one rank computes; 1 if sums are not exact.
    parts: usize,
    /// Ops of the step that `run` collects, to be passed on together.
    recorded: Option<Vec<Op<B>>>,
    /// What parts of sums are held as, and what they are computed from, in the buffers that there are.
    parts_held: Vec<ActivationDtype>,
    inputs_held: Vec<ActivationDtype>,
}

/// One rank, as ops see it.
pub struct Rank<'a, B: Ranked> {
    pub number: usize,
    pub backend: &'a mut B,
    pub fabric: &'a B::Fabric,
}

/// An op, which every rank carries out.
enum Op<B: Ranked> {
    Plain(PlainOp<B>),
    OnStep(StepOp<B>),
}

type PlainOp<B> = Box<dyn Fn(&mut Rank<'_, B>) + Send + Sync>;

/// One that also reads the loaded step.
type StepOp<B> = Box<dyn Fn(&mut Rank<'_, B>, &mut <B as Backend>::Step) + Send + Sync>;

/// A buffer, as `share` says.
pub struct RankBuffer<B: Backend> {
    share: Share,
    holds: ActivationDtype,
    /// Columns of `own`.
    width: usize,
    /// Of [`Share::Parts`], the first part.
    own: Each<B::Buffer>,
    /// Of [`Share::Summed`], as many as parts of a sum; of [`Share::Gathered`], the rank's columns alone; of
    /// [`Share::Parts`], all but the first.
    parts: Vec<Each<B::Buffer>>,
    /// Of [`Share::Columns`], if a rank computes several parts of a sum: the columns of one of them.
    columns: Option<Each<B::Buffer>>,
}

/// What of a matrix a rank has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Portion {
    Whole,
    Outputs,
    Inputs,
}

/// The matrices of every rank: one, or one for each part of a sum over inputs.
pub struct RankMatrix<B: Backend> {
    each: Arc<Vec<Vec<B::Matrix>>>,
    portion: Portion,
}

impl<B: Backend> RankMatrix<B> {
    /// Whether a rank multiplies its share in several parts, whose inputs are copies.
    fn is_cut(&self) -> bool {
        self.each.iter().any(|parts| parts.len() > 1)
    }
}

/// As [`RankMatrix`].
pub struct RankExperts<B: Backend> {
    each: Arc<Vec<Vec<B::Experts>>>,
    portion: Portion,
}

/// Every rank's share of a vector, or all of it.
pub struct RankVector<B: Backend>(Arc<Vec<B::Vector>>);

pub struct RankRoutes<B: Backend>(Each<B::Routes>);

pub struct RankKv<B: Backend> {
    each: Each<B::Kv>,
    /// Which positions each has; `None`: all.
    members: Vec<Option<Member>>,
}

pub struct RankRope<B: Backend>(Each<B::Rope>);

pub struct RankStep<B: Backend>(Each<B::Step>);

impl<B: Ranked> Ranks<B> {
    /// `exact`: whether sums over inputs have the same bits for every number of ranks.
    ///
    /// # Errors
    ///
    /// They are not 1, 2, 4 or 8, or cannot be connected.
    pub fn new(mut ranks: Vec<B>, exact: bool) -> Result<Self> {
        let count = ranks.len();
        if !RANKS.contains(&count) {
            return Err(Error::value(TENSOR_PARALLEL, "1, 2, 4 or 8 devices", count.to_string()));
        }
        let fabric = B::connect(&mut ranks)?;
        let parts = if exact { PARTS / count } else { 1 };
        let (parts_held, inputs_held) = (Vec::new(), Vec::new());
        let sharing = 1;
        Ok(Self {
            members: Members::new(ranks, fabric)?,
            exact,
            sharing,
            parts,
            recorded: None,
            parts_held,
            inputs_held,
        })
    }

    /// Whether the ranks can divide keys and values by positions.
    pub fn can_share_positions(&self) -> bool {
        B::divides_positions(self.members.fabric())
    }

    /// The same, for a model whose key heads are on `members` ranks each: these divide keys and values by positions. It
    /// is said before anything is loaded. Panics if the ranks cannot, or sums are exact: where partial results are
    /// merged would depend on the number of ranks.
    #[must_use]
    pub fn sharing_positions(self, members: usize) -> Self {
        let can = self.can_share_positions() && !self.exact && self.count().is_multiple_of(members);
        assert!(members == 1 || can, "{members} members of {} ranks divide positions", self.count());
        Self { sharing: members, ..self }
    }

    /// The rank's part in its group; `None` if it has all positions.
    fn member(&self, rank: usize) -> Option<Member> {
        let page_tokens = self.members.first().page_tokens();
        let [number, of] = [rank % self.sharing, self.sharing].map(small);
        (self.sharing > 1).then_some(Member { number, of, page_tokens })
    }

    /// The number of ranks.
    pub fn count(&self) -> usize {
        self.members.count()
    }

    /// The heads of one rank. Those that divide positions have all queries of their key head.
    fn heads(&self, heads: HeadLayout) -> HeadLayout {
        let count = self.count();
        // Layers that read another one's keys have none of their own.
        let shares = self.sharing == 1 || heads.kv_heads == 0 || heads.copies(count) == self.sharing;
        assert!(shares, "{heads} heads on {count} ranks, of which {} share a key head", self.sharing);
        let own = heads.of_rank(count).map(|own| HeadLayout { q_heads: self.sharing * own.q_heads, ..own });
        own.unwrap_or_else(|| panic!("{heads} heads on {count} ranks, which `ModelConfig::check_ranks` refuses"))
    }

    /// The same of a delta-rule layer.
    fn delta_heads(&self, heads: DeltaHeads) -> DeltaHeads {
        let count = self.count();
        let divides = heads.key_heads.is_multiple_of(count) && heads.value_heads.is_multiple_of(count);
        assert!(divides, "{heads} on {count} ranks, which `ModelConfig::check_ranks` refuses");
        DeltaHeads { key_heads: heads.key_heads / count, value_heads: heads.value_heads / count, ..heads }
    }

    /// What of a matrix that is divided so every rank has.
    fn portion(&self, split: &Split) -> Portion {
        match split {
            Split::Outputs(segments) if segments.iter().all(|one| one.share(0, self.count(), 1).is_some()) => {
                Portion::Outputs
            }
            Split::Whole | Split::Outputs(_) => Portion::Whole,
            Split::Inputs => Portion::Inputs,
        }
    }

    /// Carries out an op, or keeps it for the step that is recorded.
    fn op(&mut self, op: impl Fn(&mut Rank<'_, B>) + Send + Sync + 'static) {
        match &mut self.recorded {
            Some(recorded) => recorded.push(Op::Plain(Box::new(op))),
            None => drop(self.members.each(|mut rank| op(&mut rank))),
        }
    }

    /// The same of an op that reads the step.
    fn op_on(&mut self, step: &RankStep<B>, op: impl Fn(&mut Rank<'_, B>, &mut B::Step) + Send + Sync + 'static) {
        match &mut self.recorded {
            Some(recorded) => recorded.push(Op::OnStep(Box::new(op))),
            None => drop(self.members.each(|mut rank| {
                let step = &mut *members::lock(&step.0[rank.number]);
                op(&mut rank, step);
            })),
        }
    }

    /// `out` becomes, or is increased by, the sum over all parts of all ranks. `write_parts(rank, to)` writes those of
    /// the rank. They are rounded as `inputs` are, from which they are computed.
    fn sum(
        &mut self,
        out: &RankBuffer<B>,
        inputs: ActivationDtype,
        adds: bool,
        write_parts: impl Fn(&mut Rank<'_, B>, &mut [&mut B::Buffer]) + Send + Sync + 'static,
    ) {
        let is_summed = matches!(out.share, Share::Summed { .. });
        assert!(is_summed, "a layer whose inputs are divided writes a buffer of sums");
        let (own, parts) = (out.own.clone(), out.parts.clone());
        let how = self.reduced(inputs, adds);
        self.op(move |rank| {
            let at = rank.number;
            let mut own = members::lock(&own[at]);
            let mut parts: Vec<_> = parts.iter().map(|part| members::lock(&part[at])).collect();
            let mut parts: Vec<&mut B::Buffer> = parts.iter_mut().map(|part| &mut **part).collect();
            write_parts(rank, &mut parts);
            let parts: Vec<&B::Buffer> = parts.iter().map(|part| &**part).collect();
            rank.backend.all_reduce(rank.fabric, at, &mut own, &parts, how);
        });
    }

    /// How parts are added up that are computed from `inputs`.
    fn reduced(&self, inputs: ActivationDtype, adds: bool) -> Reduced {
        let (exact, is_sent) = (self.exact, self.exact || self.count() > 1);
        let wire = match inputs {
            ActivationDtype::Operands(dtype) if is_sent => dtype,
            ActivationDtype::Operands(_) | ActivationDtype::Sums => Dtype::F32,
        };
        Reduced { wire, exact, adds }
    }

    /// Notes a buffer of sums, or of what sums are computed from, and prepares what may be added up with it.
    fn prepare_sums(&mut self, share: Share, holds: ActivationDtype) -> Result<()> {
        let (noted, holds) = match share {
            Share::Summed { parts } => (&mut self.parts_held, parts),
            Share::Columns | Share::Parts => (&mut self.inputs_held, holds),
            Share::Whole | Share::Gathered | Share::Heads(_) => return Ok(()),
        };
        if noted.contains(&holds) {
            return Ok(());
        }
        noted.push(holds);
        for &part in &self.parts_held {
            for &inputs in &self.inputs_held {
                let how = self.reduced(inputs, false);
                self.members.try_each(|rank| rank.backend.prepare_sums(rank.fabric, rank.number, part, how))?;
            }
        }
        Ok(())
    }
}
