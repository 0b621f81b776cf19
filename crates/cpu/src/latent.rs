//! The ops of latent attention beside attention itself: what becomes of queries and latents before it, the products
//! with the maps of each head, and how two results merge. Products are those of experts, a head for an expert, so what
//! a row gets depends on that row alone.

use super::gemm::{CpuMatrix, GemmScratch, grouped_dense};
use super::norm::heads_norm_row;
use super::rope::rotate;
use super::rows::for_rows;
use super::team::Team;
use super::{Cores, CpuBuffer, KvStore};
use offshoot_backend::{Dtype, Elements, Expansion, HeldPart, LatentHeads, LatentSteps, RopeTable, WeightFormat};
use offshoot_backend::{WeightView, with_bytes, with_dense};
use offshoot_core::ids::LayerIx;
use offshoot_kv::KvSlot;

/// The maps of a layer, one matrix for each head, dense.
pub struct CpuLatentMaps {
    heads: LatentHeads,
    /// `K_h`, `[nope, rank]`.
    keys: Vec<CpuMatrix>,
    /// `K_h` transposed, `[rank, nope]`.
    absorbing: Vec<CpuMatrix>,
    /// `V_h`, `[value, rank]`.
    values: Vec<CpuMatrix>,
}

impl CpuLatentMaps {
    /// See `Backend::latent_maps`.
    pub fn pack<'a>(parts: &[HeldPart<'a>], heads: LatentHeads, dtype: Dtype) -> Self {
        let dense = |&held: &HeldPart<'a>| match held.part.format() {
            WeightFormat::Dense(own) if own == dtype => HeldPart { becomes: None, ..held },
            _ => HeldPart { becomes: Some(dtype), ..held },
        };
        let parts: Vec<HeldPart<'a>> = parts.iter().map(dense).collect();
        let bytes = with_dense(&parts, |parts| {
            with_bytes(parts, |views| views.iter().flat_map(|view| view.bytes).copied().collect::<Vec<u8>>())
        });
        let LatentHeads { rank, nope, value, .. } = heads;
        let row = rank * dtype.bytes();
        assert_eq!(bytes.len(), heads.map_rows() * row, "latent_maps: the matrix of maps of {heads} heads in {dtype}");
        let rows_of =
            |head: usize, first: usize, rows: usize| &bytes[(head * (nope + value) + first) * row..][..rows * row];
        let matrix = |rows, cols, bytes: &[u8]| CpuMatrix::pack(&[WeightView { dtype, rows, cols, bytes }]);
        let each = 0..heads.heads;
        Self {
            heads,
            keys: each.clone().map(|head| matrix(nope, rank, rows_of(head, 0, nope))).collect(),
            absorbing: each
                .clone()
                .map(|head| matrix(rank, nope, &transposed(rows_of(head, 0, nope), nope, rank, dtype.bytes())))
                .collect(),
            values: each.map(|head| matrix(value, rank, rows_of(head, nope, value))).collect(),
        }
    }

    /// See `Backend::read_latent_maps`.
    pub fn elements(&self) -> Elements {
        let own = |matrix: &CpuMatrix| matrix.elements();
        let each: Vec<[Elements; 2]> =
            self.keys.iter().zip(&self.values).map(|(keys, values)| [own(keys), own(values)]).collect();
        let mut all = Elements::zeros(each[0][0].dtype, self.heads.map_rows(), self.heads.rank);
        let mut first = 0;
        for elements in each.iter().flatten() {
            all.put(first, 0..self.heads.rank, elements.view());
            first += elements.rows;
        }
        all
    }
}

/// The bytes of a matrix `[rows, cols]` of elements of `size` bytes, transposed.
fn transposed(bytes: &[u8], rows: usize, cols: usize, size: usize) -> Vec<u8> {
    let element = |at: usize| &bytes[at * size..][..size];
    (0..cols).flat_map(|col| (0..rows).flat_map(move |row| element(row * cols + col))).copied().collect()
}

/// See `Backend::prepare_latents`; `slots`: those of the rows.
pub fn prepare(
    cores: &Cores,
    queries: &mut CpuBuffer,
    latents: &mut CpuBuffer,
    steps: &LatentSteps<'_, Vec<f32>, RopeTable>,
    kv: &mut KvStore,
    slots: &[KvSlot],
    positions: &[u32],
) {
    let LatentHeads { heads, rank, nope, rope, .. } = steps.heads;
    let shapes = [(queries.rows, queries.width), (latents.rows, latents.width)];
    let expected = [heads * (nope + rope), rank + rope].map(|width| (positions.len(), width));
    assert_eq!(shapes, expected, "prepare_latents: shapes of queries and latents");
    assert_eq!(steps.norm.len(), rank, "prepare_latents: length of the norm");
    let tables = || steps.ropes.into_iter().flatten();
    assert!(tables().all(|table| table.rotary <= rope), "prepare_latents: rotated part of a head");
    for_rows(&cores.team, queries, |r, row| {
        tables().for_each(|table| rotate_last(cores, row, nope + rope, table, positions[r]));
    });
    for_rows(&cores.team, latents, |r, row| {
        heads_norm_row(cores.isa, &mut row[..rank], steps.norm, steps.eps);
        tables().filter(|table| table.keys).for_each(|table| rotate_last(cores, row, rank + rope, table, positions[r]));
    });
    kv.append_behind(cores, steps.layer, latents, 0, slots);
}

/// Rotates the last elements of each of `heads`.
fn rotate_last(cores: &Cores, heads: &mut [f32], head_dim: usize, table: &RopeTable, position: u32) {
    rotate(cores.isa, heads, head_dim, head_dim - table.rotary, table, position);
}

/// See `Backend::absorb_queries`.
pub fn absorb(
    cores: &Cores,
    scratch: &mut GemmScratch,
    out: &mut CpuBuffer,
    queries: &CpuBuffer,
    maps: &CpuLatentMaps,
) {
    let LatentHeads { heads, rank, nope, rope, .. } = maps.heads;
    let rows = queries.rows;
    assert_eq!((queries.width, out.rows, out.width), (heads * (nope + rope), rows, heads * (rank + rope)), "shapes");
    let query = |row: usize, head: usize| &queries.row(row)[head * (nope + rope)..][..nope + rope];
    let absorbed = by_head(cores, scratch, &maps.absorbing, rows, |row, head| &query(row, head)[..nope]);
    for_rows(&cores.team, out, |row, out| {
        for (head, out) in out.chunks_exact_mut(rank + rope).enumerate() {
            out[..rank].copy_from_slice(absorbed.row(head * rows + row));
            out[rank..].copy_from_slice(&query(row, head)[nope..]);
        }
    });
}

/// See `Backend::map_values`.
pub fn map_values(cores: &Cores, scratch: &mut GemmScratch, out: &mut CpuBuffer, x: &CpuBuffer, maps: &CpuLatentMaps) {
    let LatentHeads { heads, rank, value, .. } = maps.heads;
    let rows = x.rows;
    assert_eq!((x.width, out.rows, out.width), (heads * rank, rows, heads * value), "map_values: shapes");
    let mapped = by_head(cores, scratch, &maps.values, rows, |row, head| &x.row(row)[head * rank..][..rank]);
    for_rows(&cores.team, out, |row, out| {
        for (head, out) in out.chunks_exact_mut(value).enumerate() {
            out.copy_from_slice(mapped.row(head * rows + row));
        }
    });
}

/// The products of the matrix of each head with `input(row, head)` of each row: `[heads, rows]` rows.
fn by_head<'x>(
    cores: &Cores,
    scratch: &mut GemmScratch,
    matrices: &'x [CpuMatrix],
    rows: usize,
    input: impl Fn(usize, usize) -> &'x [f32] + Sync,
) -> CpuBuffer {
    let mut out = CpuBuffer::new(matrices.len() * rows, matrices.first().map_or(0, |matrix| matrix.rows));
    if rows > 0 {
        let of_head = (0..matrices.len()).map(|head| (head, head * rows..(head + 1) * rows));
        grouped_dense(cores, scratch, &mut out, of_head, |at| input(at % rows, at / rows), |head| &matrices[head]);
    }
    out
}

/// See `Backend::expand_latents`.
#[expect(clippy::too_many_arguments, reason = "operands of one op, each named once")]
pub fn expand(
    cores: &Cores,
    scratch: &mut GemmScratch,
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
    let slots = |page: fn(&Expansion) -> offshoot_core::ids::PageId| {
        let of = move |one: &Expansion| {
            let page = page(one);
            one.slots.clone().map(move |slot| KvSlot { page, slot })
        };
        expansions.iter().flat_map(of).collect::<Vec<KvSlot>>()
    };
    let (from, to) = (slots(|one| one.from), slots(|one| one.to));
    let rows = from.len();
    let latents = CpuBuffer { rows, width: rank + rope, data: kv.keys(layer, 0, &from) };
    let latent = |row: usize, _: usize| &latents.row(row)[..rank];
    let keys = by_head(cores, scratch, &maps.keys, rows, latent);
    let values = by_head(cores, scratch, &maps.values, rows, latent);
    let mut stored = CpuBuffer::new(rows, maps.heads.expanded().stored_width());
    for_rows(&cores.team, &mut stored, |row, stored| {
        let (all_keys, all_values) = stored.split_at_mut(heads * (nope + rope));
        for (head, key) in all_keys.chunks_exact_mut(nope + rope).enumerate() {
            key[..nope].copy_from_slice(keys.row(head * rows + row));
            key[nope..].copy_from_slice(&latents.row(row)[rank..]);
        }
        for (head, to) in all_values.chunks_exact_mut(value).enumerate() {
            to.copy_from_slice(values.row(head * rows + row));
        }
    });
    copies.append_behind(cores, copy_layer, &stored, 0, &to);
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
