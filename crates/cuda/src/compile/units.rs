//! Every file of `kernels/` and every unit that the backend can request. A new kernel's source and units are added
//! here: the compile check and the loading at start read these tables, and a test compares them with the folder.

use std::collections::HashSet;

use super::elements::{
    ChunkWalk, ExpertKernel, ExpertTiles, Fp8ExpertKernel, Fp8ExpertTiles, Fp8Scaling, Fp8Tiles, HeadWidths,
    HopperKernel, KvElement, PageLayout, element_name,
};
use super::four_bit::{FourBit, FourBitCodes, FourBitKernel, FourBitTiles};
use super::four_bit_layers::LayerTiles;
use super::unit::{Source, Unit};
use offshoot_backend::ranks::PARTS;
use offshoot_backend::{Dtype, StateDtype, Values};

/// A file of `kernels/` as a [`Source`].
macro_rules! source {
    ($name:literal) => {
        Source { name: $name, text: include_str!(concat!("../../../../kernels/", $name)) }
    };
}

/// Headers that kernels include, by file name.
pub static HEADERS: &[Source] = &[
    source!("attention/barrier.cuh"),
    source!("attention/copy.cuh"),
    source!("attention/ended.cuh"),
    source!("attention/fp8.cuh"),
    source!("attention/large.cuh"),
    source!("attention/large_copy.cuh"),
    source!("attention/large_ring.cuh"),
    source!("attention/latent.cuh"),
    source!("attention/latent_copy.cuh"),
    source!("attention/latent_merge.cuh"),
    source!("attention/latent_ring.cuh"),
    source!("attention/latent_states.cuh"),
    source!("attention/merge.cuh"),
    source!("attention/mma.cuh"),
    source!("attention/narrow.cuh"),
    source!("attention/openings.cuh"),
    source!("attention/page.cuh"),
    source!("attention/panel_copy.cuh"),
    source!("attention/plan.cuh"),
    source!("attention/ring.cuh"),
    source!("attention/rows.cuh"),
    source!("attention/state.cuh"),
    source!("attention/states.cuh"),
    source!("attention/stream.cuh"),
    source!("attention/tile.cuh"),
    source!("attention/wide_tiles.cuh"),
    source!("attention/wide_wgmma.cuh"),
    source!("attention/wide.cuh"),
    source!("cluster.cuh"),
    source!("delta_rule/chunk.cuh"),
    source!("delta_rule/gates.cuh"),
    source!("delta_rule/inverse.cuh"),
    source!("delta_rule/run.cuh"),
    source!("e4m3.cuh"),
    source!("element.cuh"),
    source!("experts/pairs.cuh"),
    source!("experts/panels.cuh"),
    source!("experts/products.cuh"),
    source!("experts/staging.cuh"),
    source!("experts/store.cuh"),
    source!("experts/tile.cuh"),
    source!("four_bit/decode.cuh"),
    source!("four_bit/panels.cuh"),
    source!("four_bit/products.cuh"),
    source!("four_bit/sums.cuh"),
    source!("four_bit/tiles.cuh"),
    source!("fp8/products.cuh"),
    source!("fp8/rounding.cuh"),
    source!("fp8/tile.cuh"),
    source!("kv_page.cuh"),
    source!("lanes.cuh"),
    source!("lora/slots.cuh"),
    source!("overlap.cuh"),
    source!("random.cuh"),
    source!("ops/expansion.cuh"),
    source!("ops/gated_silu.cuh"),
    source!("ops/gelu.cuh"),
    source!("ops/in_place.cuh"),
    source!("ops/kv_slot.cuh"),
    source!("ops/rms_norm.cuh"),
    source!("ops/rotate.cuh"),
    source!("registers.cuh"),
    source!("attention/level_words.cuh"),
    source!("reduce.cuh"),
    source!("ranks/exchange.cuh"),
    source!("sampling/sample.cuh"),
    source!("sampling/edit.cuh"),
    source!("sampling/kept.cuh"),
    source!("sampling/row.cuh"),
    source!("sampling/select.cuh"),
    source!("sigmoid.cuh"),
    source!("tensor_map.cuh"),
    source!("token_word.cuh"),
    source!("attention/wgmma.cuh"),
    source!("wgmma_sums.cuh"),
];

pub static ADVANCE: Source = source!("ops/advance.cu");
pub static ADD: Source = source!("ops/add.cu");
pub static ADD_BIAS: Source = source!("ops/add_bias.cu");
pub static CAST: Source = source!("ops/cast.cu");
pub static CAUSAL_CONV: Source = source!("delta_rule/causal_conv.cu");
pub static CHUNK_PRODUCTS: Source = source!("delta_rule/chunk_products.cu");
pub static CHUNK_STATES: Source = source!("delta_rule/chunk_states.cu");
pub static COMBINE: Source = source!("experts/combine.cu");
pub static DELTA_RULE: Source = source!("delta_rule/delta_rule.cu");
pub static EMBED: Source = source!("ops/embed.cu");
pub static EXPERT_LINEAR_4BIT_WGMMA: Source = source!("four_bit/expert_linear_4bit_wgmma.cu");
pub static EXPERT_LINEAR: Source = source!("experts/expert_linear.cu");
pub static EXPERT_LINEAR_ANY: Source = source!("experts/expert_linear_any.cu");
pub static EXPERT_LINEAR_WGMMA: Source = source!("experts/expert_linear_wgmma.cu");
pub static EXPERT_LINEAR_FP8: Source = source!("fp8/expert_linear_fp8.cu");
pub static EXPERT_PANELS: Source = source!("experts/expert_panels.cu");
pub static GATED_CLAMPED: Source = source!("ops/gated_clamped.cu");
pub static GATED_GELU: Source = source!("ops/gated_gelu.cu");
pub static GATED_NORM: Source = source!("ops/gated_norm.cu");
pub static GATED_SILU: Source = source!("ops/gated_silu.cu");
pub static GATED_SILU_FP8: Source = source!("fp8/gated_silu_fp8.cu");
pub static GATHER_LATENTS: Source = source!("ops/gather_latents.cu");
pub static GATHER_ROUNDED: Source = source!("fp8/gather_rounded.cu");
pub static GELU: Source = source!("ops/gelu.cu");
pub static GELU_TIMES: Source = source!("ops/gelu_times.cu");
pub static HEAD_NORM: Source = source!("ops/head_norm.cu");
pub static KV_APPEND: Source = source!("ops/kv_append.cu");
pub static KV_APPEND_FP8: Source = source!("ops/kv_append_fp8.cu");
pub static COLUMNS: Source = source!("ops/columns.cu");
pub static ALTERNATE_ROWS: Source = source!("experts/alternate_rows.cu");
pub static ALL_GATHER: Source = source!("ranks/all_gather.cu");
pub static ALL_REDUCE: Source = source!("ranks/all_reduce.cu");
pub static ROUND_TRIP: Source = source!("ranks/round_trip.cu");
pub static KV_PAGES: Source = source!("ops/kv_pages.cu");
pub static NOTHING: Source = source!("ops/nothing.cu");
pub static LAYER_NORM: Source = source!("ops/layer_norm.cu");
pub static LEVEL_LSE: Source = source!("attention/level_lse.cu");
pub static LEVEL_MASS: Source = source!("attention/level_mass.cu");
pub static LINEAR_4BIT: Source = source!("four_bit/linear_4bit.cu");
pub static LINEAR_4BIT_ANY: Source = source!("four_bit/linear_4bit_any.cu");
pub static LINEAR_4BIT_WGMMA: Source = source!("four_bit/linear_4bit_wgmma.cu");
pub static LINEAR_ANY: Source = source!("ops/linear_any.cu");
pub static LINEAR_HEADS: Source = source!("ops/linear_heads.cu");
pub static LINEAR_FP8: Source = source!("fp8/linear_fp8.cu");
pub static LORA_EXPAND: Source = source!("lora/lora_expand.cu");
pub static LORA_SHRINK: Source = source!("lora/lora_shrink.cu");
pub static MERGE_ATTENDED: Source = source!("ops/merge_attended.cu");
pub static MERGE_MEMBERS: Source = source!("ranks/merge_members.cu");
pub static MERGE_STATES: Source = source!("attention/merge_states.cu");
pub static NOT_FINITE: Source = source!("ops/not_finite.cu");
pub static RANDOM_CODES: Source = source!("fp8/random_codes.cu");
pub static RANDOM_WEIGHTS: Source = source!("ops/random_weights.cu");
pub static PREPARE_HEADS: Source = source!("ops/prepare_heads.cu");
pub static PREPARE_LATENTS: Source = source!("ops/prepare_latents.cu");
pub static RELU: Source = source!("ops/relu.cu");
pub static RELU_SQUARED: Source = source!("ops/relu_squared.cu");
pub static GELU_ERF: Source = source!("ops/gelu_erf.cu");
pub static XIELU: Source = source!("ops/xielu.cu");
pub static CLAMP: Source = source!("ops/clamp.cu");
pub static SCALE_COLUMNS: Source = source!("ops/scale_columns.cu");
pub static ADD_POSITIONS: Source = source!("ops/add_positions.cu");
pub static WEIGH_PLACES: Source = source!("experts/weigh_places.cu");
pub static RMS_NORM: Source = source!("ops/rms_norm.cu");
pub static RMS_NORM_FP8: Source = source!("fp8/rms_norm_fp8.cu");
pub static RMS_NORM_ADD: Source = source!("ops/rms_norm_add.cu");
pub static ROPE: Source = source!("ops/rope.cu");
pub static ROUND: Source = source!("ops/round.cu");
pub static ROUND_ROWS: Source = source!("fp8/round_rows.cu");
pub static ROUTE_CHOOSE: Source = source!("experts/route_choose.cu");
pub static ROUTE_KEEP: Source = source!("experts/route_keep.cu");
pub static ROUTE_PLACES: Source = source!("experts/route_places.cu");
pub static SCALE: Source = source!("ops/scale.cu");
pub static SELECT_ROWS: Source = source!("ops/select_rows.cu");
pub static SIGMOID_TIMES: Source = source!("ops/sigmoid_times.cu");
pub static SOFTCAP: Source = source!("ops/softcap.cu");
pub static STORE_EXPANDED: Source = source!("ops/store_expanded.cu");
pub static TREE_ATTENTION: Source = source!("attention/tree_attention.cu");
pub static TREE_ATTENTION_ANY: Source = source!("attention/tree_attention_any.cu");
pub static TREE_ATTENTION_LARGE: Source = source!("attention/tree_attention_large.cu");
pub static TREE_ATTENTION_LATENT_MMA: Source = source!("attention/tree_attention_latent_mma.cu");
pub static TREE_ATTENTION_LATENT: Source = source!("attention/tree_attention_latent.cu");
pub static TREE_ATTENTION_WGMMA: Source = source!("attention/tree_attention_wgmma.cu");

/// The kernels of `sample`, in the order of their launches.
pub static SAMPLE: [Source; 5] = [
    source!("sampling/sample_chunks.cu"),
    source!("sampling/sample_edit.cu"),
    source!("sampling/sample_filter.cu"),
    source!("sampling/sample_token.cu"),
    source!("sampling/sample_top.cu"),
];

/// Launched before them when an advanced step has requests with penalties.
pub static SAMPLE_COUNT: Source = source!("sampling/sample_count.cu");

/// Launched before them when requests have sets of allowed tokens that are not on the device.
pub static PLACE_SETS: Source = source!("sampling/place_sets.cu");

/// What latents are stored as that are not the compute dtype rounded, which is the same to those that read them.
const LATENTS: [KvElement; 2] = [KvElement::Plain, KvElement::Fp8];

const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

/// Every unit, all combinations of defines that the backend supports.
pub fn all() -> Vec<Unit> {
    let mut all: Vec<Unit> = DTYPES.into_iter().flat_map(ops).collect();
    all.extend(DTYPES.map(|element| typed(&RANDOM_WEIGHTS, element)));
    all.push(Unit::new(&NOT_FINITE));
    all.push(Unit::new(&NOTHING));
    all.extend(casts());
    all.extend(DTYPES.into_iter().flat_map(gemm));
    all.extend(DTYPES.into_iter().flat_map(lora));
    all.extend(DTYPES.into_iter().flat_map(latents));
    all.extend(Fp8Scaling::ALL.into_iter().flat_map(|scales| [fp8(scales), experts_fp8(scales)]).flatten());
    let four_bit_of = |major| FourBit::ALL.into_iter().flat_map(move |format| four_bit(format, major));
    all.extend([8, 9].into_iter().flat_map(four_bit_of));
    all.extend(SAMPLE.iter().chain([&SAMPLE_COUNT, &PLACE_SETS]).map(Unit::new));
    all.push(advance());
    all.extend(exchanged_sums().into_iter().map(all_reduce));
    all.extend([2, 4, 8].into_iter().flat_map(|ranks| [all_gather(ranks), round_trip(ranks)]));
    all.extend(merged_states().into_iter().map(merge_members));
    all.extend(routes());
    all.push(route_keep());
    all.extend(
        DTYPES.into_iter().flat_map(|element| [8, 9].into_iter().flat_map(move |major| experts(element, major))),
    );
    for deterministic in [false, true] {
        for (element, widths) in DTYPES.into_iter().flat_map(|element| WIDTHS.map(|widths| (element, widths))) {
            let kept = if widths.are_in_keys() { &LATENTS[..] } else { &LATENTS[..1] };
            all.extend(kept.iter().flat_map(|&kept| attention(element, kept, widths, deterministic)));
        }
    }
    for (element, kept) in [Dtype::F16, Dtype::Bf16].into_iter().flat_map(|element| LATENTS.map(|kept| (element, kept)))
    {
        let latent = |groups| move |widths| attention_latent(element, kept, widths, groups);
        all.extend([1, 2].into_iter().flat_map(|groups| WIDTHS.into_iter().filter_map(latent(groups))));
    }
    all.push(level_mass());
    all.extend(DTYPES.into_iter().flat_map(|element| CONV_TOKENS.map(|tokens| causal_conv(element, tokens))));
    for state in StateDtype::ALL {
        let of_dims = |element| DELTA_DIMS.map(|(key, value)| delta_rule(element, state, key, value));
        all.extend(DTYPES.into_iter().flat_map(of_dims));
        let walks = |element, (key, value)| {
            let walk = move |walk| chunk_states(element, state, key, value, walk);
            ChunkWalk::of(value).into_iter().map(walk)
        };
        let of_dims = |element| CHUNK_DIMS.into_iter().flat_map(move |dims| walks(element, dims));
        all.extend([Dtype::F16, Dtype::Bf16].into_iter().flat_map(of_dims));
    }
    let products = |element| CHUNK_DIMS.map(|(key, value)| chunk_products(element, key, value));
    all.extend([Dtype::F16, Dtype::Bf16].into_iter().flat_map(products));
    let (plain, swizzled, panels) = (PageLayout::Plain, PageLayout::Swizzled, PageLayout::Panels);
    let pages = [
        (KvElement::Plain, plain),
        (KvElement::Plain, swizzled),
        (KvElement::Plain, panels),
        (KvElement::Rounded, plain),
        (KvElement::Rounded, swizzled),
        (KvElement::Rounded, panels),
        (KvElement::Fp8, plain),
        (KvElement::Fp8, swizzled),
        (KvElement::Fp8, panels),
    ];
    for (kv_element, layout) in pages {
        for element in DTYPES {
            let is_read = |widths: &HeadWidths| {
                let major = if layout == plain { 8 } else { 9 };
                let is_read = kv_element != KvElement::Fp8 || KvElement::is_fp8_read(major, element, *widths);
                is_read && (layout == plain || layout == PageLayout::of(9, element, *widths))
            };
            if element != Dtype::F32 || layout == plain {
                all.push(kv_append(element, kv_element, layout).0);
                // Rows of latents are swizzled in panels alone.
                if layout != swizzled {
                    all.push(prepare_latents(element, kv_element, layout));
                    all.push(gather_latents(element, kv_element));
                }
                all.extend(LATENTS.map(|latents| store_expanded(element, latents, layout)));
            }
            let all_widths: Vec<HeadWidths> = WIDTHS.into_iter().filter(is_read).collect();
            if !all_widths.is_empty() {
                all.push(kv_append(element, kv_element, layout).0);
            }
            if all_widths.iter().any(|widths| widths.one().is_some()) {
                all.push(prepare_heads(element, kv_element, layout));
            }
            all.extend(all_widths.iter().map(|&widths| level_lse(element, kv_element, layout, widths)));
            let hopper = |widths| {
                [false, true].map(|deterministic| attention_hopper(element, kv_element, widths, deterministic))
            };
            let kernels = all_widths.iter().filter(|_| layout != plain).flat_map(|&widths| hopper(widths));
            all.extend(kernels.flatten().map(|(unit, _)| unit));
        }
    }
    // Units that serve several element types are listed once with each.
    let mut seen = HashSet::new();
    all.retain(|unit| seen.insert(unit.clone()));
    all
}

/// The units of `all` that together have, for every source, every value of each of its defines: for checks in which all
/// combinations would take minutes.
pub fn of_every_define() -> Vec<Unit> {
    let mut seen = HashSet::new();
    let mut units = all();
    units.retain(|unit| {
        let bare = std::iter::once((unit.source.name, None));
        let defines = unit.defines.iter().map(|define| (unit.source.name, Some(define.clone())));
        // All of them are seen, whichever is new.
        bare.chain(defines).filter(|value| seen.insert(value.clone())).count() > 0
    });
    units
}

/// Units that `Ops` launches for weights of `element`, and those that copy pages.
pub fn ops(element: Dtype) -> Vec<Unit> {
    let elementwise = [
        &EMBED,
        &RMS_NORM,
        &LAYER_NORM,
        &HEAD_NORM,
        &ROPE,
        &GATED_SILU,
        &GATED_GELU,
        &GATED_CLAMPED,
        &GELU,
        &GELU_TIMES,
        &RELU,
        &RELU_SQUARED,
        &GELU_ERF,
        &XIELU,
        &CLAMP,
        &SCALE_COLUMNS,
        &ADD_POSITIONS,
        &WEIGH_PLACES,
        &GATED_NORM,
        &SIGMOID_TIMES,
        &ROUND,
        &COMBINE,
    ];
    let plain = [&ADD, &RMS_NORM_ADD, &SCALE, &SOFTCAP, &SELECT_ROWS, &COLUMNS, &KV_PAGES];
    elementwise.map(|source| typed(source, element)).into_iter().chain(plain.map(Unit::new)).collect()
}

/// Units that round given tensors of one dtype to another.
pub fn casts() -> impl Iterator<Item = Unit> {
    let of = |from| DTYPES.into_iter().filter(move |&to| to != from).map(move |to| cast(from, to));
    DTYPES.into_iter().flat_map(of)
}

/// The unit that rounds tensors of `from` to `to`.
pub fn cast(from: Dtype, to: Dtype) -> Unit {
    Unit::new(&CAST).define("FROM", element_name(from)).define("TO", element_name(to))
}

/// Units that `Gemm` launches for weights of `element` if the library has no algorithm.
pub fn gemm(element: Dtype) -> Vec<Unit> {
    let products = [(element, false), (Dtype::F32, false), (Dtype::F32, true)];
    let products = products.map(|(out, accumulate)| linear_any(element, out, accumulate));
    products.into_iter().chain([element, Dtype::F32].map(add_bias)).chain([linear_heads(element)]).collect()
}

/// Units of the ops of latent attention in a model of `element`, but for those that store in pages.
pub fn latents(element: Dtype) -> Vec<Unit> {
    vec![typed(&MERGE_ATTENDED, element)]
}

/// Units that add what adapters compute to layers of `element`.
pub fn lora(element: Dtype) -> Vec<Unit> {
    [typed(&LORA_SHRINK, element)]
        .into_iter()
        .chain([element, Dtype::F32].map(|out| lora_expand(element, out)))
        .collect()
}

/// The unit that adds to results of `out`.
pub fn lora_expand(element: Dtype, out: Dtype) -> Unit {
    typed(&LORA_EXPAND, element).define("OUT", element_name(out))
}

/// Units of linear layers of e4m3 with scales for each output or each block, on GPUs of compute capability 9.
pub fn fp8(scales: Fp8Scaling) -> Vec<Unit> {
    let linear = |out| Fp8Tiles::ALL.map(|tiles| linear_fp8(out, tiles, scales));
    let rounding = |source| DTYPES.map(|element| rounding_fp8(source, element, scales));
    let rounding = [&ROUND_ROWS, &RMS_NORM_FP8, &GATED_SILU_FP8, &RANDOM_CODES].into_iter().flat_map(rounding);
    let gather = std::iter::once(Unit::new(&GATHER_ROUNDED));
    rounding.chain(DTYPES.into_iter().flat_map(linear)).chain(gather).collect()
}

/// Units of products of experts of e4m3, on such GPUs; `fp8` has those that round.
pub fn experts_fp8(scales: Fp8Scaling) -> Vec<Unit> {
    let linear = Fp8ExpertKernel::all(scales).map(expert_linear_fp8);
    linear.chain([alternate_rows()]).collect()
}

pub fn alternate_rows() -> Unit {
    Unit::new(&ALTERNATE_ROWS)
}

/// A kernel that rounds rows of `element`: `ROUND_ROWS`, `RMS_NORM_FP8` or `GATED_SILU_FP8`; or `RANDOM_CODES`.
pub fn rounding_fp8(source: &'static Source, element: Dtype, scales: Fp8Scaling) -> Unit {
    typed(source, element).define("BLOCKS", scales.blocks())
}

/// The kernel that multiplies by experts of e4m3.
pub fn expert_linear_fp8(kernel: Fp8ExpertKernel) -> Unit {
    let unit = typed(&EXPERT_LINEAR_FP8, kernel.element).define("BLOCKS", kernel.scaling.blocks());
    let unit = unit.define("GATED", u8::from(kernel.gates)).define("GROUPS", Fp8ExpertTiles::GROUPS);
    unit.define("CAP", kernel.tiles.cap).define("STAGES", kernel.stages())
}

/// The kernel that multiplies layers of e4m3.
pub fn linear_fp8(out: Dtype, tiles: Fp8Tiles, scales: Fp8Scaling) -> Unit {
    let unit = Unit::new(&LINEAR_FP8).define("OUT", element_name(out)).define("BLOCKS", scales.blocks());
    unit.define("COLUMNS", tiles.columns).define("GROUPS", tiles.groups).define("STAGES", tiles.stages())
}

/// Units that multiply by 4-bit weights of `format` on GPUs of compute capability `major`.
pub fn four_bit(format: FourBit, major: u32) -> Vec<Unit> {
    let any =
        DTYPES.into_iter().flat_map(|element| [element, Dtype::F32].map(|out| linear_4bit_any(format, element, out)));
    let operands = [Dtype::F16, Dtype::Bf16].into_iter();
    let tiles = operands.flat_map(|element| FourBitTiles::of(major).iter().map(move |&tiles| (element, tiles)));
    let tiles = tiles.map(|(element, tiles)| linear_4bit(format, element, tiles));
    let layers = [Dtype::F16, Dtype::Bf16].into_iter().filter(|_| major == 9);
    let layers = layers.flat_map(|element| LayerTiles::ALL.map(|tiles| layer_4bit(format, element, tiles)));
    any.chain(tiles).chain(layers).collect()
}

/// The unit that multiplies layers on Hopper by tiles of that size.
pub fn layer_4bit(format: FourBit, element: Dtype, tiles: LayerTiles) -> Unit {
    let unit = of_format(typed(&LINEAR_4BIT_WGMMA, element), format).define("CAP", tiles.cap).define("GATED", 0);
    let unit = unit.define("RESCALES", u8::from(tiles.has_one_sum && !has_scaled_codes(format, element)));
    unit.define("GROUPS", tiles.groups).define("BLOCKS", tiles.blocks).define("STAGES", tiles.stages(format))
}

/// Whether kernels of Hopper have the scales of weights in their operands (`SCALED` of kernels/four_bit/sums.cuh).
fn has_scaled_codes(format: FourBit, element: Dtype) -> bool {
    format.has_factors() || format.codes == FourBitCodes::Fp4 && element == Dtype::Bf16
}

pub fn linear_4bit(format: FourBit, element: Dtype, tiles: FourBitTiles) -> Unit {
    let unit = match tiles.kernel {
        FourBitKernel::Wgmma => typed(&EXPERT_LINEAR_4BIT_WGMMA, element)
            .define("GROUPS", tiles.groups)
            .define("SPLITS", tiles.splits)
            .define("RESCALES", u8::from(!has_scaled_codes(format, element)))
            .define("RING_STAGES", tiles.stages(format)),
        FourBitKernel::Mma => typed(&LINEAR_4BIT, element).define("RING_BYTES", FourBitTiles::RING),
    };
    of_format(unit, format).define("CAP", tiles.cap).define("GATED", 0)
}

pub fn linear_4bit_any(format: FourBit, element: Dtype, out: Dtype) -> Unit {
    of_format(typed(&LINEAR_4BIT_ANY, element), format).define("OUT", element_name(out))
}

fn of_format(unit: Unit, format: FourBit) -> Unit {
    unit.define("FP4", u8::from(format.codes == FourBitCodes::Fp4)).define("GROUP", format.group)
}

/// Units that choose experts.
pub fn routes() -> Vec<Unit> {
    [&ROUTE_CHOOSE, &ROUTE_PLACES].map(Unit::new).into()
}

/// The unit that keeps the experts of rows.
pub fn route_keep() -> Unit {
    Unit::new(&ROUTE_KEEP)
}

/// Units that multiply by experts of `element` on GPUs of compute capability `major`.
pub fn experts(element: Dtype, major: u32) -> Vec<Unit> {
    let mut all = [element, Dtype::F32].map(|out| expert_linear_any(element, out)).to_vec();
    if element != Dtype::F32 {
        all.push(expert_panels(element));
        let products = |tiles| [false, true].map(|is_gated| expert_linear(element, tiles, is_gated));
        all.extend(ExpertTiles::of(major).iter().flat_map(|&tiles| products(tiles)));
    }
    all
}

pub fn expert_linear_any(element: Dtype, out: Dtype) -> Unit {
    typed(&EXPERT_LINEAR_ANY, element).define("OUT", element_name(out))
}

pub fn expert_panels(element: Dtype) -> Unit {
    typed(&EXPERT_PANELS, element).define("GATED", 0)
}

/// The unit that multiplies panels of experts by tiles of that size.
pub fn expert_linear(element: Dtype, tiles: ExpertTiles, is_gated: bool) -> Unit {
    match tiles.kernel {
        ExpertKernel::Wgmma => typed(&EXPERT_LINEAR_WGMMA, element).define("CAP", tiles.cap),
        ExpertKernel::Mma => typed(&EXPERT_LINEAR, element),
    }
    .define("GATED", u8::from(is_gated))
}

/// How sums are exchanged: by so many ranks, each of which has as many parts of `part`, sent as `wire`; see
/// kernels/ranks/all_reduce.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExchangedSums {
    pub ranks: usize,
    pub parts: usize,
    pub part: Dtype,
    pub wire: Dtype,
    pub exact: bool,
}

impl ExchangedSums {
    /// Sums of all parts, which do not depend on the number of ranks, or each rank's part as it is.
    pub fn of(ranks: usize, part: Dtype, wire: Dtype, exact: bool) -> Self {
        let parts = if exact { PARTS / ranks } else { 1 };
        Self { ranks, parts, part, wire, exact }
    }
}

/// Sums of every number of ranks in bf16 and f32, and of two ranks in all dtypes: more would take minutes to compile.
fn exchanged_sums() -> Vec<ExchangedSums> {
    let of_any =
        [1, 2, 4, 8].into_iter().flat_map(|ranks| [Dtype::Bf16, Dtype::F32].map(|dtype| (ranks, dtype, dtype)));
    // Sums of experts are f32.
    let of_two = [(Dtype::F16, Dtype::F16), (Dtype::F32, Dtype::F16), (Dtype::F32, Dtype::Bf16)];
    let of_two = of_two.map(|(part, wire)| (2, part, wire));
    let both = |(ranks, part, wire)| [true, false].map(|exact| ExchangedSums::of(ranks, part, wire, exact));
    of_any.chain(of_two).flat_map(both).collect()
}

/// The unit of sums exchanged so.
pub fn all_reduce(sums: ExchangedSums) -> Unit {
    let ExchangedSums { ranks, parts, part, wire, exact } = sums;
    let unit = Unit::new(&ALL_REDUCE).define("RANKS", ranks).define("PARTS", parts);
    let unit = unit.define("PART", element_name(part)).define("WIRE", element_name(wire));
    unit.define("EXACT", u32::from(exact))
}

pub fn all_gather(ranks: usize) -> Unit {
    Unit::new(&ALL_GATHER).define("RANKS", ranks)
}

pub fn round_trip(ranks: usize) -> Unit {
    Unit::new(&ROUND_TRIP).define("RANKS", ranks)
}

/// Partial states that neighbouring ranks merge; see kernels/ranks/merge_members.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemberStates {
    pub ranks: usize,
    /// Ranks of a group.
    pub members: usize,
    /// The dtype of results.
    pub element: Dtype,
    /// Elements of a result.
    pub value_dim: usize,
    /// Whether they are ordered as the kernels for Hopper do.
    pub is_permuted: bool,
}

/// States of every group in bf16 and of the usual heads, and of two ranks in all dtypes and of all heads: more would
/// take minutes to compile.
fn merged_states() -> Vec<MemberStates> {
    let groups = [2, 4, 8].into_iter().flat_map(|ranks| [2, 4, 8].map(|members| (ranks, members)));
    let groups = groups.filter(|(ranks, members)| members <= ranks);
    let of_any = groups.flat_map(|group| [64, 128].map(|dim| (group, Dtype::Bf16, dim)));
    let of_two = DTYPES.into_iter().flat_map(|element| WIDTHS.map(|widths| ((2, 2), element, widths.value())));
    let all = of_any.chain(of_two).flat_map(|((ranks, members), element, value_dim)| {
        let is_hopper = WIDTHS.iter().any(|&of| of.value() == value_dim && HopperKernel::of(element, of).is_some());
        let orders = [false, true].into_iter().filter(move |is_permuted| is_hopper || !is_permuted);
        orders.map(move |is_permuted| MemberStates { ranks, members, element, value_dim, is_permuted })
    });
    all.collect()
}

/// The unit that merges such states.
pub fn merge_members(states: MemberStates) -> Unit {
    let MemberStates { ranks, members, element, value_dim, is_permuted } = states;
    let unit = typed(&MERGE_MEMBERS, element).define("VALUE_DIM", value_dim).define("RANKS", ranks);
    unit.define("MEMBERS", members).define("PERMUTED", u32::from(is_permuted))
}

/// The unit that advances a step by one token.
pub fn advance() -> Unit {
    Unit::new(&ADVANCE)
}

/// Widths of the heads of models that are known, and of the demo's; of latents, and of what they expand to, also those
/// of tests.
const WIDTHS: [HeadWidths; 14] = [
    HeadWidths::even(16),
    HeadWidths::even(32),
    HeadWidths::even(64),
    HeadWidths::even(80),
    HeadWidths::even(96),
    HeadWidths::even(128),
    HeadWidths::even(256),
    HeadWidths::even(512),
    HeadWidths { key: 24, values: Values::InKeys(16) },
    HeadWidths { key: 288, values: Values::InKeys(256) },
    HeadWidths { key: 320, values: Values::InKeys(256) },
    HeadWidths { key: 576, values: Values::InKeys(512) },
    HeadWidths { key: 96, values: Values::Beside(64) },
    HeadWidths { key: 192, values: Values::Beside(128) },
];

/// The unit and kernel name of `kv_append` in a model of `element`.
pub fn kv_append(element: Dtype, kv_element: KvElement, layout: PageLayout) -> (Unit, &'static str) {
    let (unit, name) = match kv_element {
        KvElement::Plain => (Unit::new(&KV_APPEND), "kv_append"),
        KvElement::Rounded | KvElement::Fp8 => (rounded(&KV_APPEND_FP8, element, kv_element), "kv_append_fp8"),
    };
    (laid(unit, layout), name)
}

/// The unit of `prepare_heads` in a model of `element`.
pub fn prepare_heads(element: Dtype, kv_element: KvElement, layout: PageLayout) -> Unit {
    laid(rounded(&PREPARE_HEADS, element, kv_element), layout)
}

/// The unit of `prepare_latents` in a model of `element`.
pub fn prepare_latents(element: Dtype, kv_element: KvElement, layout: PageLayout) -> Unit {
    laid(rounded(&PREPARE_LATENTS, element, kv_element), layout)
}

/// The unit that stores expanded latents in pages of copies.
pub fn store_expanded(element: Dtype, latents: KvElement, layout: PageLayout) -> Unit {
    laid(of_latents(typed(&STORE_EXPANDED, element), element, latents), layout)
}

/// The unit that gathers latents to be expanded.
pub fn gather_latents(element: Dtype, latents: KvElement) -> Unit {
    of_latents(typed(&GATHER_LATENTS, element), element, latents)
}

/// The unit and kernel name that `AttentionKernels` launches on Hopper, if there is one for a model of `element`.
pub fn attention_hopper(
    element: Dtype,
    kv_element: KvElement,
    widths: HeadWidths,
    deterministic: bool,
) -> Option<(Unit, &'static str)> {
    let (unit, name) = match HopperKernel::of(element, widths)? {
        HopperKernel::Wgmma => (with_kv(&TREE_ATTENTION_WGMMA, element, kv_element), "tree_attention_wgmma"),
        HopperKernel::Large => (typed(&TREE_ATTENTION_LARGE, element), "tree_attention_large"),
        HopperKernel::Latent => (with_kv(&TREE_ATTENTION_LATENT, element, kv_element), "tree_attention_latent"),
    };
    Some((wide(unit, widths).define("DETERMINISTIC", u8::from(deterministic)), name))
}

/// The widest heads that `tree_attention` takes.
const MOST_MMA_HEAD_DIM: usize = 256;

/// Bytes that the kernels of `unit` may spill, stores and loads together: what is known of it, and `SPILL_SLACK`. In
/// `linear_4bit_wgmma` two parts of the sums are in flight: with tiles of 128 rows, or of 32 by four warpgroups, they
/// and the codes need slightly more than there are (500 and 88 bytes; benches/runs/2026-11-26-h200-four-bit times
/// both). `expert_linear_4bit_wgmma` has 128 registers for three warpgroups with tiles of 128 rows (348 bytes in f16).
/// In `tree_attention_wgmma` four warpgroups share a multiprocessor's registers. Those that stream narrow tiles get 120
/// per thread (112 with fp8 keys and values or deterministic), and the one that copies 40 or 48: slightly too few for
/// heads of 128 (52 bytes; with fp8 up to 92, deterministic up to 28; NVRTC 13.0 and 13.5). Otherwise those that
/// multiply would spill.
pub fn allowed_spills(unit: &Unit) -> u32 {
    let is = |name, value: &str| unit.defines.iter().any(|define| define.0 == name && define.1 == value);
    let known = if unit.source == &LINEAR_4BIT_WGMMA {
        match (is("CAP", "128"), is("CAP", "32")) {
            (true, _) => 512,
            (_, true) => 96,
            (false, false) => 0,
        }
    } else if unit.source == &EXPERT_LINEAR_4BIT_WGMMA && is("CAP", "128") {
        384
    } else if unit.source == &TREE_ATTENTION_WGMMA && is("KEY_DIM", "128") {
        match (is("DETERMINISTIC", "0"), is("KV_ELEMENT", "e4m3")) {
            (true, true) => 96,
            (true, false) => 64,
            (false, true) => 32,
            (false, false) => 0,
        }
    } else {
        0
    };
    known + SPILL_SLACK
}

/// NVRTC 13.0 was seen to spill more in one of 877 units on one machine than on two others, from the same source.
/// Sixteen registers, each stored and loaded once, do not make a kernel slow.
const SPILL_SLACK: u32 = 16 * (4 + 4);

/// Inputs of convolutions of the models that are known, and of tests.
const CONV_TOKENS: [usize; 3] = [4, 3, 2];

/// The unit of convolutions that read so many inputs of a channel.
pub fn causal_conv(element: Dtype, tokens: usize) -> Unit {
    typed(&CAUSAL_CONV, element).define("CONV_TOKENS", tokens)
}

/// Dimensions of keys and values of the models that are known, and of tests.
const DELTA_DIMS: [(usize, usize); 6] = [(128, 128), (16, 16), (7, 5), (256, 64), (40, 72), (64, 32)];

/// The unit of the delta rule of heads of these dimensions, with states of `state`.
pub fn delta_rule(element: Dtype, state: StateDtype, key_dim: usize, value_dim: usize) -> Unit {
    let unit = typed(&DELTA_RULE, element).define("STATE", state);
    unit.define("KEY_DIM", key_dim).define("VALUE_DIM", value_dim)
}

/// Dimensions of keys and values of the chunked delta rule.
const CHUNK_DIMS: [(usize, usize); 2] = [(128, 128), (64, 32)];

/// The unit that multiplies the chunks of the chunked delta rule.
pub fn chunk_products(element: Dtype, key_dim: usize, value_dim: usize) -> Unit {
    typed(&CHUNK_PRODUCTS, element).define("KEY_DIM", key_dim).define("VALUE_DIM", value_dim)
}

/// The unit that walks along runs.
pub fn chunk_states(element: Dtype, state: StateDtype, key_dim: usize, value_dim: usize, walk: ChunkWalk) -> Unit {
    let unit = typed(&CHUNK_STATES, element).define("STATE", state);
    let unit = unit.define("KEY_DIM", key_dim).define("VALUE_DIM", value_dim);
    unit.define("STRIP", walk.strip).define("STAGES", walk.stages)
}

/// The units that it launches on other GPUs, and those of deterministic mode if `attention_hopper` has no kernel.
pub fn attention(element: Dtype, kv_element: KvElement, widths: HeadWidths, deterministic: bool) -> [Unit; 2] {
    let unit_of = if widths.one().is_some() { 16 } else { 32 };
    let fits = |dim: usize| dim.is_multiple_of(unit_of) && dim <= MOST_MMA_HEAD_DIM;
    let fits = !widths.are_in_keys() && fits(widths.key) && fits(widths.value());
    let tensor_cores = !deterministic && element != Dtype::F32 && fits;
    let attention = match tensor_cores {
        true => typed(&TREE_ATTENTION, element),
        false => with_kv(&TREE_ATTENTION_ANY, element, kv_element),
    };
    let merge = typed(&MERGE_STATES, element).define("VALUE_DIM", widths.value());
    [wide(attention, widths), merge]
}

/// The unit that computes attention over latents on other GPUs, by tiles of `groups` times 16 rows, where it serves.
pub fn attention_latent(element: Dtype, kv_element: KvElement, widths: HeadWidths, groups: usize) -> Option<Unit> {
    let fits = widths.are_in_keys() && widths.key.is_multiple_of(32) && widths.value().is_multiple_of(64);
    let fits = fits && element != Dtype::F32 && widths.key <= MOST_MULTIPLIED_LATENT;
    fits.then(|| wide(with_kv(&TREE_ATTENTION_LATENT_MMA, element, kv_element), widths).define("GROUPS", groups))
}

/// The widest latents, rotated part included, of which GPUs of every kind have room for two KV blocks.
const MOST_MULTIPLIED_LATENT: usize = 576;

/// The units of attention attribution in a model of `element`.
pub fn level_lse(element: Dtype, kv_element: KvElement, layout: PageLayout, widths: HeadWidths) -> Unit {
    laid(wide(with_kv(&LEVEL_LSE, element, kv_element), widths), layout)
}

pub fn level_mass() -> Unit {
    Unit::new(&LEVEL_MASS)
}

/// Adds to results of `out`.
pub fn add_bias(out: Dtype) -> Unit {
    Unit::new(&ADD_BIAS).define("OUT", element_name(out))
}

pub fn linear_any(element: Dtype, out: Dtype, accumulate: bool) -> Unit {
    typed(&LINEAR_ANY, element).define("OUT", element_name(out)).define("ACCUMULATE", u8::from(accumulate))
}

pub fn linear_heads(element: Dtype) -> Unit {
    typed(&LINEAR_HEADS, element)
}

/// Whose keys and values have an element type of their own.
fn with_kv(source: &'static Source, element: Dtype, kv_element: KvElement) -> Unit {
    typed(source, element).define("KV_ELEMENT", kv_element_name(element, kv_element))
}

/// Which reads pages of such latents.
fn of_latents(unit: Unit, element: Dtype, latents: KvElement) -> Unit {
    unit.define("LATENT_ELEMENT", kv_element_name(element, latents))
}

fn kv_element_name(element: Dtype, kv_element: KvElement) -> &'static str {
    if kv_element == KvElement::Fp8 { "e4m3" } else { element_name(element) }
}

/// Which writes such keys and values.
fn rounded(source: &'static Source, element: Dtype, kv_element: KvElement) -> Unit {
    with_kv(source, element, kv_element).define("ROUNDED", u8::from(kv_element == KvElement::Rounded))
}

/// Which reads or writes pages of that layout.
fn laid(unit: Unit, layout: PageLayout) -> Unit {
    unit.define("LAYOUT", layout.name())
}

/// Whose heads are so wide.
fn wide(unit: Unit, widths: HeadWidths) -> Unit {
    let unit = unit.define("KEY_DIM", widths.key).define("VALUE_DIM", widths.value());
    unit.define("VALUES_IN_KEYS", u8::from(widths.are_in_keys()))
}

pub fn typed(source: &'static Source, element: Dtype) -> Unit {
    Unit::new(source).define("ELEMENT", element_name(element))
}
