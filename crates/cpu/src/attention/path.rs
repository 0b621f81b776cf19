//! A code path of the kernels ([`KernelPath`]): an instruction set over keys and values stored in one dtype, with the
//! operands of its kernels. The kernels themselves are in `fold` and `groups`; `avx2`, `avx512` and `amx` are the
//! paths.
#![expect(clippy::missing_safety_doc, reason = "a trait says it once for all of its functions")]

use std::ops::Range;

use bytemuck::Pod;

use super::groups::{GroupScratch, GroupedRows, PanelSums, fold_groups};
use super::in_keys::InKeys;
use super::lanes::{FloatLanes, MOST_ROWS, VECTOR_ROWS};
use super::tiles::PAGES;
use crate::kv::SLOTS;
use crate::memory::{CacheLevel, CacheLine, prefetch_line};
use offshoot_backend::{MOST_HEAD_DIM, Scoring};

/// Positions of a tile.
pub const LANES: usize = PAGES * SLOTS;

/// An instruction set applied to keys and values of one dtype.
///
/// # Safety
/// The processor has the path's instruction set. Pointers are valid for the vectors that a method reads or writes.
pub trait KernelPath {
    type Lanes: StateKernels;
    /// What a page stores per lane: one element, or two neighbours along the summed dimension.
    type Word: Pod;
    /// Sixteen words in registers.
    type Operand: Copy;
    /// The multiplier of a word: one element of a query or one softmax numerator, or two neighbours of these.
    type Factor: Pod;
    /// Elements per word.
    const WORD_ELEMENTS: usize;
    /// Rows (times heads of a group) that one kernel call folds at most.
    const ROWS: usize = VECTOR_ROWS;
    /// Rows of queries that a kernel call may read behind its last one.
    const ROWS_READ_AHEAD: usize = 0;
    /// The cache that calls of many rows, which prefetch one page each, prefetch it to: all lines to the first; to the
    /// second all of the keys, but of a word's values the first alone.
    const PAGE_CACHE: CacheLevel = CacheLevel::Second;
    /// Accumulators of sixteen lanes that a kernel keeps in registers for each row.
    const ROW_VECTORS: usize;
    /// Loads sixteen words.
    unsafe fn operand(words: *const Self::Word) -> Self::Operand;
    /// `acc + factor * words` in each lane.
    unsafe fn madd(acc: Self::Lanes, factor: *const Self::Factor, words: Self::Operand) -> Self::Lanes;
    /// Stores sixteen elements as `16 / WORD_ELEMENTS` factors.
    unsafe fn store_factors(x: Self::Lanes, to: *mut Self::Factor);
    /// Runs a task, between what its kernels need before and after their calls.
    unsafe fn around(task: &mut dyn FnMut()) {
        task();
    }

    /// [`super::fold::fold`] for `rows.count` rows, at most `ROWS`; called inside [`Self::around`], with queries of
    /// `ROWS_READ_AHEAD` more rows readable. `prefetch` has `PAGES` pages at most.
    unsafe fn fold(
        geometry: &Geometry,
        tile: &TileView<Self::Word>,
        rows: &RowStates<Self::Factor>,
        visible: &VisibleLanes,
        prefetch: &[Prefetch],
    );
    /// [`super::fold::pack`].
    unsafe fn pack(x: &[f32], to: *mut Self::Factor);
}

/// [`KernelPath::Word`] of a path.
pub type Word<P> = <P as KernelPath>::Word;
/// [`KernelPath::Factor`] of a path.
pub type Factor<P> = <P as KernelPath>::Factor;

/// A path that goes through the keys of a tile block by block, for rows in groups; see [`super::groups`]. Factors are
/// as long as words: 32 bits.
///
/// # Safety
/// As for [`KernelPath`]. Groups have `rows` rows, at most `VECTOR_ROWS`.
pub trait GroupPath: KernelPath {
    /// [`super::groups::score_group`].
    unsafe fn score_group(
        rows: usize,
        geometry: &Geometry,
        q: *const Self::Factor,
        keys: &[*const Self::Word; PAGES],
        words: &Range<usize>,
        pages: &Range<usize>,
        scores: *mut f32,
    );
    /// [`super::groups::soften_group`].
    unsafe fn soften_group(
        rows: usize,
        geometry: &Geometry,
        states: &RowStates<Self::Factor>,
        visible: &VisibleLanes,
        scores: *mut f32,
        numerators: *mut Self::Factor,
    ) -> [f32; SLOTS];
    /// [`super::groups::add_panel`].
    unsafe fn add_panel(rows: usize, sums: &PanelSums<'_>, values: *const Self::Word, numerators: *const Self::Factor);
}

/// A path that widens a tile to f32 once for several calls, which then are those of another path with the same results.
///
/// # Safety
/// As for [`KernelPath`].
pub trait WideningPath: KernelPath<Operand: WideOperand> {
    /// The path over f32 pages. Packed queries have the same layout on both paths.
    type Wide: GroupPath<Word = u32>;

    /// [`super::fold::widen`].
    unsafe fn widen(geometry: &Geometry, keys: *const Self::Word, values: *const Self::Word, to: *mut f32);
}

/// The kernels over softmax states, which are f32 whatever pages hold.
///
/// # Safety
/// As for [`FloatLanes`].
pub trait StateKernels: FloatLanes {
    /// [`super::fold::merge`].
    unsafe fn merge(geometry: &Geometry, states: &mut StatesMut<'_>, next: StatesRef<'_>);
    /// [`super::fold::finish`].
    unsafe fn finish(o: &[f32], l: &[f32; 16], out: &mut [f32]);
}

/// The elements of sixteen words, in registers.
///
/// # Safety
/// As for [`FloatLanes`].
pub trait WideOperand {
    /// Stores the elements as an f32 vector for each of a word, `stride` elements apart.
    unsafe fn store_wide(self, to: *mut f32, stride: usize);
}

impl<L: FloatLanes> WideOperand for L {
    #[inline(always)]
    unsafe fn store_wide(self, to: *mut f32, _stride: usize) {
        // SAFETY: the caller's promises are passed on.
        unsafe { self.store(to) }
    }
}

impl<L: FloatLanes> WideOperand for (L, L) {
    #[inline(always)]
    unsafe fn store_wide(self, to: *mut f32, stride: usize) {
        // SAFETY: the caller's promises are passed on.
        unsafe {
            self.0.store(to);
            self.1.store(to.add(stride));
        }
    }
}

/// The kernels of a path as `walk` calls them, compiled once for all paths: words and factors are bytes to it.
///
/// # Safety
/// The functions have the conditions of those of [`KernelPath`]. Views and states are of the path's words and factors.
pub struct PathKernels {
    /// See [`KernelPath::ROWS`], [`KernelPath::ROWS_READ_AHEAD`] and [`KernelPath::WORD_ELEMENTS`].
    pub rows: usize,
    pub rows_read_ahead: usize,
    pub word_elements: usize,
    /// Bytes of a factor.
    pub factor_bytes: usize,
    pub around: unsafe fn(&mut dyn FnMut()),
    pub fold: FoldBytes,
    /// The function that widens pages to f32, and `fold` over such pages; `None` for a path that does not widen.
    pub wide: Option<(WidenBytes, FoldBytes)>,
    /// The function for values that lie in keys, if it is not `fold`: over pages in f32 where the path widens.
    pub groups: Option<FoldGroupsBytes>,
    pub pack: unsafe fn(&[f32], *mut u8),
    pub merge: unsafe fn(&Geometry, &mut StatesMut<'_>, StatesRef<'_>),
    pub finish: unsafe fn(&[f32], &[f32; 16], &mut [f32]),
}

/// [`KernelPath::fold`] of some path.
pub type FoldBytes = unsafe fn(&Geometry, &TileView<u8>, &RowStates<u8>, &VisibleLanes, &[Prefetch]);

/// [`fold_groups`] of some path.
pub type FoldGroupsBytes =
    unsafe fn(&Geometry, &InKeys, &TileView<u8>, &GroupedRows<'_, u8>, &mut GroupScratch, &[Prefetch]);

/// [`WideningPath::widen`] of some path.
pub type WidenBytes = unsafe fn(&Geometry, *const u8, *const u8, *mut f32);

impl PathKernels {
    /// The kernels of the path `P`.
    pub fn of<P: KernelPath>() -> Self {
        PathKernels {
            rows: P::ROWS,
            rows_read_ahead: P::ROWS_READ_AHEAD,
            word_elements: P::WORD_ELEMENTS,
            factor_bytes: size_of::<P::Factor>(),
            around: P::around,
            fold: fold_bytes::<P>,
            wide: None,
            groups: None,
            // SAFETY: the caller's promises are passed on.
            pack: |x, to| unsafe { P::pack(x, to.cast()) },
            merge: P::Lanes::merge,
            finish: P::Lanes::finish,
        }
    }

    /// The kernels of the path `P`, which goes through wide keys block by block.
    pub fn in_groups<P: GroupPath>() -> Self {
        PathKernels { groups: Some(fold_groups_bytes::<P>), ..Self::of::<P>() }
    }

    /// The kernels of the path `P`, which widens pages to f32.
    pub fn widening<P: WideningPath>() -> Self {
        // SAFETY: the caller's promises are passed on.
        let widen: WidenBytes =
            |geometry, keys, values, to| unsafe { P::widen(geometry, keys.cast(), values.cast(), to) };
        let groups = Some(fold_groups_bytes::<P::Wide> as FoldGroupsBytes);
        PathKernels { wide: Some((widen, fold_bytes::<P::Wide>)), groups, ..Self::of::<P>() }
    }
}

/// # Safety
/// As for [`KernelPath::fold`].
unsafe fn fold_bytes<P: KernelPath>(
    geometry: &Geometry,
    tile: &TileView<u8>,
    rows: &RowStates<u8>,
    visible: &VisibleLanes,
    prefetch: &[Prefetch],
) {
    // SAFETY: views and states of one layout, whatever their pointers' types; the rest is promised by the caller.
    unsafe {
        let (tile, rows) = (std::ptr::from_ref(tile).cast(), std::ptr::from_ref(rows).cast());
        P::fold(geometry, &*tile, &*rows, visible, prefetch);
    }
}

/// # Safety
/// As for [`fold_groups`].
unsafe fn fold_groups_bytes<P: GroupPath>(
    geometry: &Geometry,
    values: &InKeys,
    tile: &TileView<u8>,
    rows: &GroupedRows<'_, u8>,
    scratch: &mut GroupScratch,
    prefetch: &[Prefetch],
) {
    // SAFETY: views and rows of one layout, whatever their pointers' types; the rest is promised by the caller.
    unsafe {
        let (tile, rows) = (std::ptr::from_ref(tile).cast(), std::ptr::from_ref(rows).cast());
        fold_groups::<P>(geometry, values, &*tile, &*rows, scratch, prefetch);
    }
}

/// Constants of all kernel calls of one layer.
#[derive(Clone, Copy)]
pub struct Geometry {
    /// Words per key: `head_dim / WORD_ELEMENTS`.
    pub key_words: usize,
    /// Elements of a packed query: those of a key, rounded up to whole vectors.
    pub query_width: usize,
    /// Elements of a value, rounded up to whole vectors.
    pub width: usize,
    /// Factor from a score to an exponent of two: `scale * log2(e)`, or `log2(e)` if scores are capped, which scales
    /// them.
    pub exponent: f32,
    pub softcap: Option<Softcap>,
    /// Scores further than this below the maximum (a negative number) get the numerator zero, as it would be subnormal.
    pub lowest: f32,
}

impl Geometry {
    /// `head_dim`: elements of a key; `width`: those of a value, rounded up to whole vectors; `pair`: elements of a
    /// word.
    pub fn new<V>(head_dim: usize, width: usize, pair: usize, scoring: &Scoring<'_, V>) -> Self {
        let softcap = scoring.softcap.map(|cap| Softcap { inner: scoring.scale / cap, cap });
        let exponent = if softcap.is_some() { 1.0 } else { scoring.scale } * std::f32::consts::LOG2_E;
        assert!(width <= MOST_HEAD_DIM, "values of {width} elements, more than {MOST_HEAD_DIM}");
        assert!(exponent > 0.0 && exponent.is_finite(), "attention scale {}", scoring.scale);
        let query_width = head_dim.next_multiple_of(SLOTS);
        Self { key_words: head_dim / pair, query_width, width, exponent, softcap, lowest: -126.0 / exponent }
    }

    /// A score, in the units of the states' maxima.
    pub fn unscaled(&self, score: f32) -> f32 {
        score * std::f32::consts::LOG2_E / self.exponent
    }

    /// The score that is `unscaled` in the units of the states' maxima.
    pub fn scaled(&self, unscaled: f32) -> f32 {
        unscaled * (self.exponent * std::f32::consts::LN_2)
    }
}

/// Capped scores are `cap * tanh(product * inner)`.
#[derive(Clone, Copy)]
pub struct Softcap {
    pub inner: f32,
    pub cap: f32,
}

/// Keys (`[key_words][16]`) and values (`[16 / WORD_ELEMENTS][width]`) of a tile's pages. May be null for pages without
/// [`VisibleLanes`].
#[repr(C)]
pub struct TileView<W> {
    pub keys: [*const W; PAGES],
    pub values: [*const W; PAGES],
}

/// A page to bring into a cache during a kernel call. The addresses need not be valid.
#[derive(Clone, Copy)]
pub struct Prefetch {
    pub keys: *const u8,
    pub values: *const u8,
    /// Bytes to advance in the keys per word of a key, and in the values per word of a tile's lanes: a kernel
    /// prefetches keys while it computes scores, values while it adds values. All at once would fill the core's fill
    /// buffers.
    pub strides: (usize, usize),
}

impl Prefetch {
    /// Brings nothing.
    pub const fn none() -> Self {
        Self { keys: std::ptr::null(), values: std::ptr::null(), strides: (0, 0) }
    }

    #[inline(always)]
    pub fn keys(&self, word: usize, into: CacheLevel) {
        prefetch_line(self.keys.wrapping_add(word * self.strides.0), into);
    }

    #[inline(always)]
    pub fn values(&self, word: usize, into: CacheLevel) {
        for line in (0..self.strides.1).step_by(size_of::<CacheLine>()) {
            prefetch_line(self.values.wrapping_add(word * self.strides.1 + line), into);
        }
    }

    /// The first line of a word's values, into the second-level cache. Of wide heads, the processor fetches the one
    /// beside it.
    #[inline(always)]
    pub fn first_line(&self, word: usize) {
        prefetch_line(self.values.wrapping_add(word * self.strides.1), CacheLevel::Second);
    }

    /// All at once, into the second-level cache.
    #[inline(always)]
    pub fn whole(&self, key_words: usize, tile_words: usize) {
        (0..key_words).for_each(|word| self.keys(word, CacheLevel::Second));
        (0..tile_words).for_each(|word| self.values(word, CacheLevel::Second));
    }
}

/// Queries and running softmax states of `count` neighbouring rows.
#[repr(C)]
pub struct RowStates<F> {
    pub count: usize,
    /// `[count][query_width / WORD_ELEMENTS]`
    pub q: *const F,
    /// Largest score so far, unscaled unless capped; `f32::MIN` before the first. `[count]`
    pub m: *mut f32,
    /// Sums of numerators by lane. `[count][16]`
    pub l: *mut f32,
    /// Sums of numerators times values. `[count][width]`
    pub o: *mut f32,
}

/// The lanes of a tile that the rows attend to.
pub struct VisibleLanes {
    /// The range over all rows.
    pub lanes: Range<usize>,
    /// For each row a bit per lane.
    pub rows: [u64; MOST_ROWS],
}

impl VisibleLanes {
    pub const WHOLE: VisibleLanes = VisibleLanes { lanes: 0..LANES, rows: [u64::MAX; MOST_ROWS] };

    /// From the range of lanes each row attends to, for at most `MOST_ROWS` rows.
    pub fn of(rows: impl Iterator<Item = Range<usize>>) -> Self {
        let (mut start, mut end, mut bits) = (LANES, 0, [0; MOST_ROWS]);
        for (bits, lanes) in bits.iter_mut().zip(rows).filter(|(_, lanes)| !lanes.is_empty()) {
            *bits = (u64::MAX << lanes.start) & (u64::MAX >> (LANES - lanes.end));
            (start, end) = (start.min(lanes.start), end.max(lanes.end));
        }
        VisibleLanes { lanes: start.min(end)..end, rows: bits }
    }
}

/// Neighbouring softmax states; see [`RowStates`].
#[derive(Clone, Copy)]
pub struct StatesRef<'a> {
    pub m: &'a [f32],
    pub l: &'a [CacheLine],
    /// As many lines for each state.
    pub o: &'a [CacheLine],
}

/// Softmax states that change.
pub struct StatesMut<'a> {
    pub m: &'a mut [f32],
    pub l: &'a mut [CacheLine],
    pub o: &'a mut [CacheLine],
}

/// The members of a [`KernelPath`] over pages of one element per word, loaded by `$load` as f32 lanes (f32 and f16).
macro_rules! single_elements {
    ($word:ty, $load:expr) => {
        type Word = $word;
        type Operand = Self::Lanes;
        type Factor = f32;
        const WORD_ELEMENTS: usize = 1;

        #[inline(always)]
        unsafe fn operand(words: *const $word) -> Self::Lanes {
            // SAFETY: the caller's promises are passed on.
            unsafe { $load(words) }
        }

        #[inline(always)]
        unsafe fn madd(acc: Self::Lanes, factor: *const f32, words: Self::Lanes) -> Self::Lanes {
            // SAFETY: the caller's promises are passed on.
            unsafe { <Self::Lanes as FloatLanes>::splat(*factor).mul_add(words, acc) }
        }

        #[inline(always)]
        unsafe fn store_factors(x: Self::Lanes, to: *mut f32) {
            // SAFETY: the caller's promises are passed on.
            unsafe { x.store(to) }
        }
    };
}
pub(super) use single_elements;

/// The members of a [`KernelPath`] over bf16 pages that widens: `$load` returns the first and the second elements of
/// sixteen pairs as f32 lanes.
macro_rules! widened_pairs {
    ($load:expr) => {
        type Word = u32;
        /// The first and the second elements.
        type Operand = (Self::Lanes, Self::Lanes);
        type Factor = [f32; 2];
        const WORD_ELEMENTS: usize = 2;

        #[inline(always)]
        unsafe fn operand(words: *const u32) -> (Self::Lanes, Self::Lanes) {
            // SAFETY: the caller's promises are passed on.
            unsafe { $load(words) }
        }

        #[inline(always)]
        unsafe fn madd(acc: Self::Lanes, factor: *const [f32; 2], words: (Self::Lanes, Self::Lanes)) -> Self::Lanes {
            // SAFETY: the caller's promises are passed on.
            unsafe {
                let acc = <Self::Lanes as FloatLanes>::splat((*factor)[0]).mul_add(words.0, acc);
                <Self::Lanes as FloatLanes>::splat((*factor)[1]).mul_add(words.1, acc)
            }
        }

        #[inline(always)]
        unsafe fn store_factors(x: Self::Lanes, to: *mut [f32; 2]) {
            // SAFETY: the caller's promises are passed on.
            unsafe { x.store(to.cast()) }
        }
    };
}
pub(super) use widened_pairs;

/// Evaluates a call for so many rows, of which `$count` is the constant in it.
macro_rules! by_rows {
    ($rows:expr, $count:ident => $call:expr) => {
        match $rows {
            1 => by_rows!(1, $count, $call),
            2 => by_rows!(2, $count, $call),
            3 => by_rows!(3, $count, $call),
            4 => by_rows!(4, $count, $call),
            5 => by_rows!(5, $count, $call),
            6 => by_rows!(6, $count, $call),
            n => unreachable!("{n} rows in a group of at most {VECTOR_ROWS}"),
        }
    };
    ($constant:literal, $count:ident, $call:expr) => {{
        const $count: usize = $constant;
        $call
    }};
}
pub(super) use by_rows;

/// Implements the kernels of a [`KernelPath`] as functions compiled for `$features`.
macro_rules! kernels {
    ($features:literal) => {
        packing!($features);

        unsafe fn fold(
            geometry: &Geometry,
            tile: &TileView<Self::Word>,
            rows: &RowStates<Self::Factor>,
            visible: &VisibleLanes,
            prefetch: &[Prefetch],
        ) {
            #[target_feature(enable = $features)]
            unsafe fn kernel<P: KernelPath, const R: usize>(
                geometry: &Geometry,
                tile: &TileView<P::Word>,
                rows: &RowStates<P::Factor>,
                visible: &VisibleLanes,
                prefetch: &[Prefetch],
            ) {
                // SAFETY: the caller's promises are passed on.
                unsafe { fold::fold::<P, R>(geometry, tile, rows, visible, prefetch) }
            }
            // SAFETY: the caller promises the instruction set and valid pointers.
            unsafe { by_rows!(rows.count, R => kernel::<Self, R>(geometry, tile, rows, visible, prefetch)) }
        }
    };
}
pub(super) use kernels;

/// Implements a trait for `$path` whose functions take a number of rows and other arguments: each calls a function of
/// `groups`, for the path and the number of rows, compiled for `$features`.
macro_rules! row_kernels {
    (
        impl $trait:ident for $path:ty, $features:literal;
        $(fn $name:ident($($argument:ident: $kind:ty),+) $(-> $result:ty)?;)+
    ) => {
        impl $path {
            $(
                #[target_feature(enable = $features)]
                unsafe fn $name<const R: usize>($($argument: $kind),+) $(-> $result)? {
                    // SAFETY: the caller's promises are passed on.
                    unsafe { groups::$name::<Self, R>($($argument),+) }
                }
            )+
        }

        impl $trait for $path {
            $(
                unsafe fn $name(rows: usize, $($argument: $kind),+) $(-> $result)? {
                    // SAFETY: the caller promises the instruction set and valid pointers.
                    unsafe { by_rows!(rows, R => Self::$name::<R>($($argument),+)) }
                }
            )+
        }
    };
}
pub(super) use row_kernels;

/// Implements [`GroupPath`] for `$path`, compiled for `$features`.
macro_rules! group_kernels {
    ($path:ty, $features:literal) => {
        row_kernels! {
            impl GroupPath for $path, $features;
            fn score_group(
                geometry: &Geometry,
                q: *const Factor<Self>,
                keys: &[*const Word<Self>; PAGES],
                words: &Range<usize>,
                pages: &Range<usize>,
                scores: *mut f32
            );
            fn soften_group(
                geometry: &Geometry,
                states: &RowStates<Factor<Self>>,
                visible: &VisibleLanes,
                scores: *mut f32,
                numerators: *mut Factor<Self>
            ) -> [f32; SLOTS];
            fn add_panel(sums: &PanelSums<'_>, values: *const Word<Self>, numerators: *const Factor<Self>);
        }
    };
}
pub(super) use group_kernels;

/// The packing of a [`KernelPath`], compiled in the same way.
macro_rules! packing {
    ($features:literal) => {
        unsafe fn pack(x: &[f32], to: *mut Self::Factor) {
            #[target_feature(enable = $features)]
            unsafe fn kernel<P: KernelPath>(x: &[f32], to: *mut P::Factor) {
                // SAFETY: the caller's promises are passed on.
                unsafe { fold::pack::<P>(x, to) }
            }
            // SAFETY: the caller promises the instruction set and room for the factors.
            unsafe { kernel::<Self>(x, to) }
        }
    };
}
pub(super) use packing;

/// The kernels of a [`WideningPath`], compiled in the same way.
macro_rules! widening {
    ($features:literal) => {
        unsafe fn widen(geometry: &Geometry, keys: *const Self::Word, values: *const Self::Word, to: *mut f32) {
            #[target_feature(enable = $features)]
            unsafe fn kernel<P: WideningPath>(
                geometry: &Geometry,
                keys: *const P::Word,
                values: *const P::Word,
                to: *mut f32,
            ) {
                // SAFETY: the caller's promises are passed on.
                unsafe { fold::widen::<P>(geometry, keys, values, to) }
            }
            // SAFETY: the caller promises the instruction set and valid pointers.
            unsafe { kernel::<Self>(geometry, keys, values, to) }
        }
    };
}
pub(super) use widening;

/// The paths over f32, f16 and bf16 pages of an instruction set that multiplies f32 alone: the latter two widen.
/// `$load_*` load sixteen words as lanes, or the elements of sixteen pairs; `$vectors_*`: [`KernelPath::ROW_VECTORS`].
macro_rules! widening_paths {
    (
        $lanes:ty, $features:literal;
        $f32:ident, $vectors_f32:literal, $load_f32:expr;
        $f16:ident, $vectors_f16:literal, $load_f16:expr;
        $bf16:ident, $vectors_bf16:literal, $load_bf16:expr;
    ) => {
        /// f32 pages.
        pub struct $f32;

        impl KernelPath for $f32 {
            type Lanes = $lanes;
            const ROW_VECTORS: usize = $vectors_f32;

            single_elements!(u32, $load_f32);
            kernels!($features);
        }

        group_kernels!($f32, $features);

        /// f16 pages, widened.
        pub struct $f16;

        impl KernelPath for $f16 {
            type Lanes = $lanes;
            const ROW_VECTORS: usize = $vectors_f16;

            single_elements!(u16, $load_f16);
            kernels!($features);
        }

        impl WideningPath for $f16 {
            type Wide = $f32;

            widening!($features);
        }

        /// bf16 pages, widened.
        pub struct $bf16;

        impl KernelPath for $bf16 {
            type Lanes = $lanes;
            const ROW_VECTORS: usize = $vectors_bf16;

            widened_pairs!($load_bf16);
            kernels!($features);
        }

        impl WideningPath for $bf16 {
            type Wide = $f32;

            widening!($features);
        }
    };
}
pub(super) use widening_paths;

/// The kernels of [`StateKernels`], compiled in the same way.
macro_rules! state_kernels {
    ($features:literal) => {
        unsafe fn merge(geometry: &Geometry, states: &mut StatesMut<'_>, next: StatesRef<'_>) {
            #[target_feature(enable = $features)]
            unsafe fn kernel<L: FloatLanes>(geometry: &Geometry, states: &mut StatesMut<'_>, next: StatesRef<'_>) {
                // SAFETY: the caller's promises are passed on.
                unsafe { fold::merge::<L>(geometry, states, next) }
            }
            // SAFETY: the caller promises the instruction set.
            unsafe { kernel::<Self>(geometry, states, next) }
        }

        unsafe fn finish(o: &[f32], l: &[f32; 16], out: &mut [f32]) {
            #[target_feature(enable = $features)]
            unsafe fn kernel(o: &[f32], l: &[f32; 16], out: &mut [f32]) {
                fold::finish(o, l, out)
            }
            // SAFETY: the caller promises the instruction set.
            unsafe { kernel(o, l, out) }
        }
    };
}
pub(super) use state_kernels;
