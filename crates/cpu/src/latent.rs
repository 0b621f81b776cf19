//! The ops of latent attention beside attention itself: what becomes of queries and latents before it, the products
//! with the maps of each head, and how two results merge. Products are those of experts, a head for an expert, so what
//! a row gets depends on that row alone.

use rayon::prelude::*;

use super::gemm::{self, CpuMatrix, GemmScratch, grouped_dense};
use super::norm::heads_norm_row;
use super::rope::rotate;
use super::rows::for_rows;
use super::team::Team;
use super::{Cores, CpuBuffer, KvStore};
use offshoot_backend::{
    Dtype, Expansion, HeldPart, LatentHeads, LatentSteps, MatrixPart, RopeTable, WeightFormat, WeightView, with_bytes,
    with_dense,
};
use offshoot_core::ids::{LayerIx, PageId};
use offshoot_kv::KvSlot;

/// How many times the maps are in memory: once for all heads, and once by the products of each head.
pub const LATENT_MAP_COPIES: usize = 2;

/// The maps of a layer, dense, as each product reads them.
pub struct CpuLatentMaps {
    heads: LatentHeads,
    /// The maps of all heads, `[heads, nope + value]` by `rank`, to expand latents.
    all: CpuMatrix,
    /// `K_h` of each head transposed, `[rank, nope]`.
    absorbing: Vec<CpuMatrix>,
    /// `V_h` of each head, `[value, rank]`.
    values: Vec<CpuMatrix>,
}

impl CpuLatentMaps {
    /// See `Backend::latent_maps`.
    pub fn pack(parts: &[HeldPart<'_>], heads: LatentHeads, dtype: Dtype) -> Self {
        let bytes = with_dense(parts, |parts| {
            let is_of_dtype = |part: &MatrixPart<'_>| part.format() == WeightFormat::Dense(dtype);
            assert!(parts.iter().all(is_of_dtype), "latent_maps: parts that are not {dtype}");
            with_bytes(parts, |views| views.iter().flat_map(|view| view.bytes).copied().collect::<Vec<u8>>())
        });
        let LatentHeads { rank, nope, value, .. } = heads;
        let row = rank * dtype.bytes();
        assert_eq!(bytes.len(), heads.map_rows() * row, "latent_maps: the matrix of maps of {heads} heads in {dtype}");
        let rows_of =
            |head: usize, first: usize, rows: usize| &bytes[(head * (nope + value) + first) * row..][..rows * row];
        let matrix = |rows, cols, bytes: &[u8]| CpuMatrix::pack(&[WeightView { dtype, rows, cols, bytes }]);
        let absorbing = |head| matrix(rank, nope, &transposed(rows_of(head, 0, nope), rank, dtype.bytes()));
        let each = || 0..heads.heads;
        Self {
            heads,
            all: matrix(heads.map_rows(), rank, &bytes),
            absorbing: each().into_par_iter().map(absorbing).collect(),
            values: each().map(|head| matrix(value, rank, rows_of(head, nope, value))).collect(),
        }
    }
}

/// The bytes of a matrix of `cols` columns, of elements of `size` bytes, transposed.
fn transposed(bytes: &[u8], cols: usize, size: usize) -> Vec<u8> {
    let rows = bytes.len() / (cols * size);
    let mut all = vec![0; bytes.len()];
    for (row, elements) in bytes.chunks_exact(cols * size).enumerate() {
        for (col, element) in elements.chunks_exact(size).enumerate() {
            all[(col * rows + row) * size..][..size].copy_from_slice(element);
        }
    }
    all
}

/// See `Backend::prepare_latents`; `slots`: those of the rows.
pub fn prepare(
    cores: &Cores,
    (queries, latents): (&mut CpuBuffer, Option<&mut CpuBuffer>),
    steps: &LatentSteps<'_, Vec<f32>, RopeTable>,
    kv: &mut KvStore,
    slots: &[KvSlot],
    positions: &[u32],
) {
    let LatentHeads { heads, rank, nope, rope, .. } = steps.heads;
    let query_width = heads * (nope + rope);
    let joined = if latents.is_some() { 0 } else { rank + rope };
    assert_eq!((queries.rows, queries.width), (positions.len(), query_width + joined), "prepare_latents: queries");
    assert_eq!(steps.norm.len(), rank, "prepare_latents: length of the norm");
    let tables = || steps.ropes.into_iter().flatten();
    // Growth multiplies all of a query.
    let most = |table: &RopeTable| if table.keys { rope } else { nope + rope };
    assert!(tables().all(|table| table.rotary <= most(table)), "prepare_latents: rotated part of a head");
    for_rows(&cores.team, queries, |r, row| {
        let queries = &mut row[..query_width];
        tables().for_each(|table| rotate_last(cores, queries, nope + rope, table, positions[r]));
    });
    let (latents, first) = match latents {
        Some(latents) => (latents, 0),
        None => (queries, query_width),
    };
    assert_eq!((latents.rows, latents.width), (positions.len(), first + rank + rope), "prepare_latents: latents");
    for_rows(&cores.team, latents, |r, row| {
        let latent = &mut row[first..];
        heads_norm_row(cores.isa, &mut latent[..rank], rank, steps.norm, false, steps.eps);
        let tables = tables().filter(|table| table.keys);
        tables.for_each(|table| rotate_last(cores, latent, rank + rope, table, positions[r]));
    });
    kv.append_behind(cores, steps.layer, latents, first, slots);
}

/// Rotates the last elements of each of `heads`.
fn rotate_last(cores: &Cores, heads: &mut [f32], head_dim: usize, table: &RopeTable, position: u32) {
    rotate(cores.isa, heads, head_dim, head_dim - table.rotary, table, position);
}

/// The last elements of `queries` as those of absorbed ones.
pub fn copy_tails(cores: &Cores, absorbed: &mut CpuBuffer, queries: &CpuBuffer, of: LatentHeads) {
    let LatentHeads { heads, rank, nope, rope, .. } = of;
    let shape = (absorbed.rows, absorbed.width);
    assert_eq!(shape, (queries.rows, heads * (rank + rope)), "prepare_latents: shape of absorbed queries");
    for_rows(&cores.team, absorbed, |row, absorbed| {
        let heads = absorbed.chunks_exact_mut(rank + rope).zip(queries.row(row).chunks_exact(nope + rope));
        heads.for_each(|(absorbed, query)| absorbed[rank..].copy_from_slice(&query[nope..]));
    });
}

/// See `Backend::absorb_queries`.
pub fn absorb(
    cores: &Cores,
    scratch: &mut LatentScratch,
    out: &mut CpuBuffer,
    queries: &CpuBuffer,
    maps: &CpuLatentMaps,
) {
    let LatentHeads { heads, rank, nope, rope, .. } = maps.heads;
    let rows = queries.rows;
    assert!(queries.width >= heads * (nope + rope), "absorb_queries: width of queries");
    assert_eq!((out.rows, out.width), (rows, heads * (rank + rope)), "absorb_queries: shape of absorbed queries");
    let query = |row: usize, head: usize| &queries.row(row)[head * (nope + rope)..][..nope + rope];
    let absorbed = scratch.by_head(cores, &maps.absorbing, rows, |row, head| &query(row, head)[..nope]);
    for_rows(&cores.team, out, |row, out| {
        for (head, out) in out.chunks_exact_mut(rank + rope).enumerate() {
            out[..rank].copy_from_slice(absorbed.row(head * rows + row));
        }
    });
}

/// See `Backend::map_values`.
pub fn map_values(
    cores: &Cores,
    scratch: &mut LatentScratch,
    out: &mut CpuBuffer,
    x: &CpuBuffer,
    maps: &CpuLatentMaps,
) {
    let LatentHeads { heads, rank, value, .. } = maps.heads;
    let rows = x.rows;
    assert_eq!((x.width, out.rows, out.width), (heads * rank, rows, heads * value), "map_values: shapes");
    let mapped = scratch.by_head(cores, &maps.values, rows, |row, head| &x.row(row)[head * rank..][..rank]);
    for_rows(&cores.team, out, |row, out| {
        for (head, out) in out.chunks_exact_mut(value).enumerate() {
            out.copy_from_slice(mapped.row(head * rows + row));
        }
    });
}

/// Memory reused between calls.
#[derive(Default)]
pub struct LatentScratch {
    gemm: GemmScratch,
    /// Products with maps: of each head `[heads, rows]`, or of all heads `[slots, heads, nope + value]`.
    products: CpuBuffer,
    /// Keys and values of some slots.
    stored: CpuBuffer,
}

impl LatentScratch {
    /// The products of the matrix of each head with `input(row, head)` of each row: `[heads, rows]` rows.
    fn by_head<'x>(
        &mut self,
        cores: &Cores,
        matrices: &'x [CpuMatrix],
        rows: usize,
        input: impl Fn(usize, usize) -> &'x [f32] + Sync,
    ) -> &CpuBuffer {
        let Self { gemm, products, .. } = self;
        reshape(products, matrices.len() * rows, matrices.first().map_or(0, |matrix| matrix.rows));
        if rows > 0 {
            let of_head = (0..matrices.len()).map(|head| (head, head * rows..(head + 1) * rows));
            grouped_dense(cores, gemm, products, of_head, |at| input(at % rows, at / rows), |head| &matrices[head]);
        }
        products
    }
}

/// Makes a buffer one of another shape, with any contents.
fn reshape(buffer: &mut CpuBuffer, rows: usize, width: usize) {
    (buffer.rows, buffer.width) = (rows, width);
    buffer.data.resize(rows * width, 0.0);
}

/// Slots that are expanded at once: what they take stays in cache.
const EXPANDED_SLOTS: usize = 256;

/// See `Backend::expand_latents`.
#[expect(clippy::too_many_arguments, reason = "operands of one op, each named once")]
pub fn expand(
    cores: &Cores,
    scratch: &mut LatentScratch,
    copies: &mut KvStore,
    copy_layer: LayerIx,
    kv: &KvStore,
    layer: LayerIx,
    maps: &CpuLatentMaps,
    expansions: &[Expansion],
) {
    let LatentHeads { heads, rank, nope, rope, value } = maps.heads;
    let layouts = (kv.heads(layer), copies.heads(copy_layer));
    assert_eq!(layouts, (maps.heads.absorbed(), maps.heads.expanded()), "expand_latents: latents and copies");
    let slots = |page: fn(&Expansion) -> PageId| {
        let of = move |one: &Expansion| {
            let page = page(one);
            one.slots.clone().map(move |slot| KvSlot { page, slot })
        };
        expansions.iter().flat_map(of).collect::<Vec<KvSlot>>()
    };
    let (from, to) = (slots(|one| one.from), slots(|one| one.to));
    let LatentScratch { gemm, products, stored } = scratch;
    for (from, to) in from.chunks(EXPANDED_SLOTS).zip(to.chunks(EXPANDED_SLOTS)) {
        let rows = from.len();
        let all = CpuBuffer { rows, width: rank + rope, data: kv.keys(layer, 0, from) };
        let data = all.data.chunks_exact(rank + rope).flat_map(|row| &row[..rank]).copied().collect();
        let latents = CpuBuffer { rows, width: rank, data };
        reshape(products, rows, maps.heads.map_rows());
        gemm::linear_dense(cores, gemm, products, &latents, &maps.all);
        reshape(stored, rows, maps.heads.expanded().stored_width());
        for_rows(&cores.team, stored, |row, stored| {
            let (keys, values) = stored.split_at_mut(heads * (nope + rope));
            let of_heads = keys.chunks_exact_mut(nope + rope).zip(values.chunks_exact_mut(value));
            for ((key, to), mapped) in of_heads.zip(products.row(row).chunks_exact(nope + value)) {
                key[..nope].copy_from_slice(&mapped[..nope]);
                key[nope..].copy_from_slice(&all.row(row)[rank..]);
                to.copy_from_slice(&mapped[nope..]);
            }
        });
        copies.append_behind(cores, copy_layer, stored, 0, to);
    }
}

/// See `Backend::merge_attended`. Where one of both has seen nothing, the other's bits stay as they are.
pub fn merge_attended(team: &Team, out: &mut CpuBuffer, lse: &mut CpuBuffer, other: &CpuBuffer, other_lse: &CpuBuffer) {
    let (rows, heads) = (out.rows, lse.width);
    let shapes = [(out.rows, out.width), (lse.rows, lse.width)];
    assert_eq!(shapes, [(rows, other.width), (rows, other_lse.width)], "merge_attended: shapes");
    assert_eq!((other.rows, other_lse.rows), (rows, rows), "merge_attended: rows");
    let width = out.width / heads.max(1);
    let own_lse = &*lse;
    for_rows(team, out, |row, out| {
        for (head, out) in out.chunks_exact_mut(width.max(1)).enumerate() {
            let other = &other.row(row)[head * width..][..width];
            match Merge::of(own_lse.row(row)[head], other_lse.row(row)[head]) {
                Merge::First => {}
                Merge::Second => out.copy_from_slice(other),
                Merge::Both { first, second, sum, .. } => {
                    let inverse = 1.0 / sum;
                    for (out, other) in out.iter_mut().zip(other) {
                        *out = (*out * first + other * second) * inverse;
                    }
                }
            }
        }
    });
    for (lse, &other) in lse.data.iter_mut().zip(&other_lse.data) {
        match Merge::of(*lse, other) {
            Merge::First => {}
            Merge::Second => *lse = other,
            Merge::Both { most, sum, .. } => *lse = most + sum.ln(),
        }
    }
}

/// How the results of two sets of positions merge.
enum Merge {
    /// The second set has none: the first result stays.
    First,
    Second,
    /// The weights of both, their sum, and the larger log-sum-exp.
    Both {
        first: f32,
        second: f32,
        sum: f32,
        most: f32,
    },
}

impl Merge {
    fn of(first: f32, second: f32) -> Self {
        if second == f32::NEG_INFINITY {
            return Merge::First;
        }
        if first == f32::NEG_INFINITY {
            return Merge::Second;
        }
        let most = first.max(second);
        let (first, second) = ((first - most).exp(), (second - most).exp());
        Merge::Both { first, second, sum: first + second, most }
    }
}
