//! Tensor parallelism: [`Ranks`] are several devices that compute one model together. Each is a [`Rank`], a [`Backend`]
//! that has its share of all operands (`Split`, `Share`); it does what one device would do, on a thread of its own
//! ([`members`]), and meets the others inside of ops alone, where sums over ranks go through a [`Ranked`] backend's
//! fabric. Page ids, plans and uniforms name no device, so all ranks do the same step and draw the same tokens, and
//! nothing but partial sums and shares of logits passes between them.
//!
//! # Exact sums
//! An exact sum over inputs has [`PARTS`] parts, neighbouring inputs each, folded pair by pair as a balanced tree. Each
//! rank computes its parts one by one, and the fabric folds them and those of the other ranks in the same tree, so the
//! bits do not depend on the number of ranks. Otherwise a rank's parts are one product. Parts are rounded to the dtype
//! of activations, as they are sent; of exact sums, what is folded of them is rounded too, but for the last sum. Of
//! others only the last is, where more than two ranks add up: large ones are sent on as sums.

mod backend;
mod cut;
mod fabric;
pub mod meeting;
pub mod members;
mod products;

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

pub use cut::divides_experts;
pub use fabric::{Fabric, FailedExchange};
pub use meeting::Aborted;

use super::{ActivationDtype, Backend, Dtype, HeadLayout, HeldPart, LayerState, MatrixPart, Share, Split, StepRows};
use members::Members;
use offshoot_core::error::{Error, Result};
use offshoot_core::setting::TENSOR_PARALLEL;
use offshoot_kv::plan::Member;

/// Parts of an exact sum over inputs; the largest number of ranks.
pub const PARTS: usize = 8;

/// How many ranks a model may have: such as divide the parts.
pub const RANKS: [usize; 4] = [1, 2, 4, PARTS];

/// A backend several of which can be the ranks of one model.
pub trait Ranked: Backend + Sized {
    type Fabric: Fabric + 'static;

    /// Whether all ranks have one memory, so that free bytes of one are those of all.
    const SHARES_MEMORY: bool;

    /// Whether ranks that have the same key head can divide its keys and values by positions, if their fabric does. If
    /// not, each has copies. Those that do are *members* of a group, neighbours ([`Place::member`]): each stores its
    /// part of the rows of `kv_append`, and attends to it in `tree_attention` with all query heads of the group's key
    /// head. They merge what they found through its log-sum-exp, in the order of members; `out`, `[R, q_heads *
    /// head_dim / members]`, becomes that of the rank's share of the heads.
    const DIVIDES_POSITIONS: bool;

    /// Connects `ranks`.
    fn connect(ranks: &[Self]) -> Result<Self::Fabric>;
    /// Makes ready to exchange sums of parts that are held as `part`, as `how` says, before a step needs to.
    fn prepare_sums(&mut self, fabric: &Self::Fabric, rank: usize, part: ActivationDtype, how: Reduced) -> Result<()> {
        let _ = (fabric, rank, part, how);
        Ok(())
    }
    /// Where the device is told its place among the ranks of a model.
    fn place(&self) -> &Option<Place<Self::Fabric>>;
    fn place_mut(&mut self) -> &mut Option<Place<Self::Fabric>>;
    /// Whether the ranks of this fabric can divide positions.
    fn divides_positions(fabric: &Self::Fabric) -> bool {
        let _ = fabric;
        Self::DIVIDES_POSITIONS
    }
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
    /// As `replace_matrix`, for what `matrix_of_outputs` has loaded.
    fn replace_matrix_of_outputs(
        &mut self,
        old: &Self::Matrix,
        parts: &[MatrixPart<'_>],
        outputs: usize,
    ) -> Result<Self::Matrix> {
        let _ = outputs;
        let parts: Vec<_> = parts.iter().map(|&part| HeldPart { part, becomes: None }).collect();
        self.replace_matrix(old, &parts, &Split::Whole)
    }
    /// How often what `run` repeats of `step` was forgotten, as addresses have changed. Ranks may differ in it, but all
    /// repeat a step, or none.
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

/// A device's place among the ranks of a model.
pub struct Place<F> {
    number: usize,
    count: usize,
    /// How many neighbouring ranks have the same key head, and divide its keys and values by positions; 1 if each has
    /// all of its own.
    sharing: usize,
    exact: bool,
    fabric: Arc<F>,
}

impl<F> Place<F> {
    /// From 0 on.
    pub fn number(&self) -> usize {
        self.number
    }

    /// The rank's part in its group: the only one, if it has all positions. `page_tokens`: slots of its own pages.
    pub fn member(&self, page_tokens: u32) -> Member {
        Member { number: small(self.number % self.sharing), of: small(self.sharing), page_tokens }
    }

    pub fn fabric(&self) -> &F {
        &self.fabric
    }

    /// The fabric; `None` where the device is alone.
    pub fn fabric_of_several(&self) -> Option<&F> {
        (self.count > 1).then_some(&self.fabric)
    }
}

/// The devices of one model, connected; none has loaded anything.
pub struct Ranks<B: Ranked>(Vec<Rank<B>>);

/// One of the devices of a model, as a backend of its share.
#[repr(transparent)]
pub struct Rank<B: Ranked>(B);

/// A rank's buffer, as `share` says.
pub struct RankBuffer<B: Backend> {
    share: Share,
    /// The rank's buffer; the first part if `share` is [`Share::Parts`].
    own: B::Buffer,
    /// For [`Share::Summed`], as many buffers as parts of a sum; for [`Share::Gathered`], the rank's columns alone; for
    /// [`Share::Parts`], all but the first.
    parts: Vec<B::Buffer>,
    /// For [`Share::Columns`], if a rank computes several parts of a sum: the columns of one of them.
    columns: Option<RefCell<B::Buffer>>,
    /// Columns of one of them.
    part_width: usize,
}

/// What of a matrix a rank has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Portion {
    Whole,
    Outputs,
    Inputs,
}

/// A rank's share of a matrix, or of a mixture's experts: one, or one for each part of a sum over inputs.
pub struct RankShare<M> {
    each: Vec<M>,
    portion: Portion,
}

/// What adapters add to a rank's share of a layer: one table, or one for each part of a sum over inputs.
pub struct RankLora<L> {
    each: Vec<L>,
    portion: Portion,
    /// Inputs of each table.
    inputs: usize,
}

/// The operands of `Backend::add_lora` beside those of a product.
struct LoraOperands<'a, B: Backend> {
    lora: &'a RankLora<B::Lora>,
    rows: StepRows,
    step: &'a B::Step,
}

impl<B: Ranked> LoraOperands<'_, B> {
    /// Adds to what a product of part `part` of a sum wrote; to the only one, if there is no sum.
    fn add(&self, device: &mut B, part: usize, out: &mut B::Buffer, x: &B::Buffer) {
        device.add_lora(out, x, &self.lora.each[part], self.rows, self.step);
    }
}

impl<B: Ranked> Ranks<B> {
    /// `exact`: whether sums over inputs have the same bits for every number of ranks.
    ///
    /// # Errors
    ///
    /// They are not 1, 2, 4 or 8, or cannot be connected.
    pub fn new(devices: Vec<B>, exact: bool) -> Result<Self> {
        let count = devices.len();
        if !RANKS.contains(&count) {
            return Err(Error::value(TENSOR_PARALLEL, "1, 2, 4 or 8 devices", count.to_string()));
        }
        let fabric = Arc::new(B::connect(&devices)?);
        let ranks = devices.into_iter().enumerate().map(|(number, mut device)| {
            *device.place_mut() = Some(Place { number, count, sharing: 1, exact, fabric: fabric.clone() });
            Rank(device)
        });
        Ok(Self(ranks.collect()))
    }

    /// The first, which speaks for all.
    pub fn first(&self) -> &Rank<B> {
        &self.0[0]
    }

    pub fn first_mut(&mut self) -> &mut Rank<B> {
        &mut self.0[0]
    }

    /// Whether the ranks can divide keys and values by positions.
    pub fn can_share_positions(&self) -> bool {
        B::divides_positions(&self.first().place().fabric)
    }

    /// The ranks of a model of which every key head is on `members` ranks: these divide its keys and values by
    /// positions. Panics if the ranks cannot, or sums are exact: where partial results are merged would depend on the
    /// number of ranks.
    #[must_use]
    pub fn sharing_positions(mut self, members: usize) -> Self {
        let Place { count, exact, .. } = *self.first().place();
        let can = self.can_share_positions() && !exact && count.is_multiple_of(members);
        assert!(members == 1 || can, "{members} members of {count} ranks divide positions");
        self.0.iter_mut().for_each(|rank| rank.place_mut().sharing = members);
        self
    }

    /// Bytes that can still be allocated on all together.
    ///
    /// # Errors
    ///
    /// One of them cannot say.
    pub fn free_bytes(&self) -> Result<usize> {
        let free = self.0.iter().map(Rank::free_bytes).collect::<Result<Vec<_>>>()?;
        Ok(free.into_iter().min().expect("there is a rank"))
    }

    /// What `make` makes of each rank, on the thread that it has from now on.
    ///
    /// # Errors
    ///
    /// The first rank's that has one, or no thread can be started.
    pub fn start<T: Send>(self, make: impl Fn(Rank<B>) -> Result<T> + Sync) -> Result<Members<T>> {
        let fabric = self.first().place().fabric.clone();
        Members::start(self.0, fabric, make)
    }
}

impl<B: Ranked> Rank<B> {
    /// One device that adds up as several would, so that results do not depend on their number.
    ///
    /// # Errors
    ///
    /// It cannot be connected to itself.
    pub fn alone(device: B) -> Result<Self> {
        Ok(Ranks::new(vec![device], true)?.0.remove(0))
    }

    /// A device that has a place.
    fn of(device: &mut B) -> &mut Self {
        // SAFETY: `Rank` is transparent, so both have one layout, and it adds nothing that has to hold.
        unsafe { &mut *std::ptr::from_mut(device).cast::<Self>() }
    }

    fn place(&self) -> &Place<B::Fabric> {
        self.0.place().as_ref().expect("`Ranks::new` gives each device its place")
    }

    fn place_mut(&mut self) -> &mut Place<B::Fabric> {
        self.0.place_mut().as_mut().expect("`Ranks::new` gives each device its place")
    }

    /// From 0 on.
    pub fn number(&self) -> usize {
        self.place().number
    }

    /// Calls `work` with the device, the fabric and the rank's number.
    pub fn exchange<T>(&mut self, work: impl FnOnce(&mut B, &B::Fabric, usize) -> T) -> T {
        let (fabric, number) = (self.place().fabric.clone(), self.number());
        work(&mut self.0, &fabric, number)
    }

    /// Parts of a sum that one rank computes; 1 if sums are not exact.
    fn parts(&self) -> usize {
        let Place { count, exact, .. } = *self.place();
        if exact { PARTS / count } else { 1 }
    }

    /// The slots that it stores among `slots` of a page, as its own pages have them.
    pub fn own_slots(&self, slots: Range<u32>) -> Range<u32> {
        self.place().member(self.0.page_tokens()).slots(slots)
    }

    /// Its heads. Ranks that divide positions have all queries of their key head.
    fn heads(&self, heads: HeadLayout) -> HeadLayout {
        let Place { count, sharing, .. } = *self.place();
        // Layers that read another one's keys have none of their own.
        let shares = sharing == 1 || heads.kv_heads == 0 || heads.copies(count) == sharing;
        assert!(shares, "{heads} heads on {count} ranks, of which {sharing} share a key head");
        let own = heads.of_rank(count).map(|own| HeadLayout { q_heads: sharing * own.q_heads, ..own });
        own.unwrap_or_else(|| panic!("{heads} heads on {count} ranks, which `ModelConfig::check_ranks` refuses"))
    }

    /// Its part of a recurrent layer's state.
    fn state(&self, layer: LayerState) -> LayerState {
        let count = self.place().count;
        let own = layer.of_rank(count);
        own.unwrap_or_else(|| panic!("{layer} on {count} ranks, which `ModelConfig::check_ranks` refuses"))
    }

    /// What it has of a matrix that is divided so.
    fn portion(&self, split: &Split) -> Portion {
        let count = self.place().count;
        match split {
            Split::Outputs(segments) if segments.iter().all(|one| one.share(0, count, 1).is_some()) => Portion::Outputs,
            Split::Whole | Split::Outputs(_) => Portion::Whole,
            Split::Inputs => Portion::Inputs,
        }
    }

    /// `out` becomes, or is increased by, the sum over all parts of all ranks. `write_parts(device, number, to)` writes
    /// those of rank `number`.
    fn sum(
        &mut self,
        out: &mut RankBuffer<B>,
        adds: bool,
        write_parts: impl FnOnce(&mut B, usize, &mut [&mut B::Buffer]),
    ) {
        let Share::Summed { inputs, .. } = out.share else {
            panic!("a layer whose inputs are divided writes a buffer of sums");
        };
        let how = Reduced { adds, ..self.reduced(inputs) };
        self.exchange(|device, fabric, number| {
            write_parts(device, number, &mut out.parts.iter_mut().collect::<Vec<_>>());
            device.all_reduce(fabric, number, &mut out.own, &out.parts.iter().collect::<Vec<_>>(), how);
        });
    }

    /// How parts are added up that are computed from `inputs`, instead of what is there.
    fn reduced(&self, inputs: Dtype) -> Reduced {
        let Place { count, exact, .. } = *self.place();
        Reduced { wire: if exact || count > 1 { inputs } else { Dtype::F32 }, exact, adds: false }
    }
}
