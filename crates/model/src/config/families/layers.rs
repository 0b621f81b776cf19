//! Reads what differs from layer to layer: windows, ropes, heads, and where keys and values come from.

use std::collections::BTreeMap;

use offshoot_backend::{HeadLayout, MOST_HEAD_DIM, RopePairs};
use offshoot_core::error::Result;

use super::super::fields::{Fields, LARGEST_CONTEXT, LARGEST_WIDTH, shown};
use super::super::layer::{
    Activation, AttentionSpec, BlockNorms, BranchScale, DenseSpec, FeedForward, HeadNorm, HeadNormSpan, KeySource,
    LatentSpec, LayerNorms, LayerSpec, Mixer, QueryGate, QueryGrowth,
};
use super::super::rope::{LayerKind, RopeConfig, RopeDefaults};
use super::family::{Biases, Family};
use super::{delta_rule, experts, latent};

/// Defaults of transformers for `sliding_window` and `max_window_layers`, for configs without these keys.
const DEFAULT_WINDOW: usize = 4096;
const DEFAULT_MAX_WINDOW_LAYERS: u64 = 28;

/// The field in which transformers 5 writes how layers differ in their heads.
const PER_LAYER: &str = "per_layer_config";

/// The entries of `per_layer_config` by the numbers of their layers. transformers pads the keys with zeros ("05") where
/// a model has ten layers or more.
struct Overrides<'a> {
    /// `None`: there is no such field.
    fields: Option<Fields<'a>>,
    /// The keys as they are written.
    written: BTreeMap<usize, &'a str>,
}

impl<'a> Overrides<'a> {
    /// Reads the entries of a model with so many layers.
    ///
    /// # Errors
    ///
    /// A key that is no layer of the model, or two of one layer; a family whose layers do not differ so; a difference
    /// in anything but heads.
    fn read(family: Family, fields: &Fields<'a>, layers: usize) -> Result<Self> {
        let mut written = BTreeMap::new();
        let Some(overrides) = fields.object(PER_LAYER)? else { return Ok(Self { fields: None, written }) };
        for name in overrides.all().keys() {
            if family != Family::Gemma4 {
                return Err(fields.error(PER_LAYER, "nothing: only layers of gemma4 differ so", format!("\"{name}\"")));
            }
            let digits = Some(name).filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
            let Some(layer) = digits.and_then(|digits| digits.parse().ok()).filter(|&layer| layer < layers) else {
                let expected = format!("layers below num_hidden_layers ({layers})");
                return Err(fields.error(PER_LAYER, expected, format!("\"{name}\"")));
            };
            if let Some(other) = written.insert(layer, name.as_str()) {
                let found = format!("\"{other}\" and \"{name}\"");
                return Err(fields.error(PER_LAYER, format!("one entry for layer {layer}"), found));
            }
            let own = overrides.required_object(name, "what this layer has of its own")?;
            let is_read = |key: &&String| ["head_dim", "num_key_value_heads"].contains(&key.as_str());
            if let Some(other) = own.all().keys().find(|key| !is_read(key)) {
                return Err(own.error(other, "head_dim and num_key_value_heads only", "this field"));
            }
        }
        Ok(Self { fields: Some(overrides), written })
    }

    /// What a layer has of its own.
    fn of_layer(&self, layer: usize) -> Result<Option<Fields<'a>>> {
        let Some((fields, name)) = self.fields.as_ref().zip(self.written.get(&layer)) else { return Ok(None) };
        fields.object(name)
    }

    /// The path of a layer's entry in config.json, as errors name it.
    fn place(&self, layer: usize) -> String {
        let name = self.written.get(&layer).map_or_else(|| layer.to_string(), |name| (*name).to_owned());
        format!("{PER_LAYER}.{name}")
    }
}

/// Reads the layers of a config whose sizes are known.
pub struct Reader<'a> {
    family: Family,
    fields: &'a Fields<'a>,
    hidden: usize,
    layers: usize,
    kinds: Vec<LayerKind>,
    heads: Vec<HeadLayout>,
    /// Of all layers, if their attention is latent.
    latent: Option<LatentSpec>,
    overrides: Overrides<'a>,
    /// The ropes of layers with full attention and with windows; `None` where no layer is of that kind.
    full_rope: Option<RopeConfig>,
    sliding_rope: Option<RopeConfig>,
    /// The longest sequence, in tokens.
    pub context: usize,
}

impl<'a> Reader<'a> {
    /// `positions`: `max_position_embeddings`.
    pub fn new(family: Family, fields: &'a Fields<'a>, hidden: usize, layers: usize, positions: usize) -> Result<Self> {
        let kinds = layer_kinds(family, fields, layers)?;
        let overrides = Overrides::read(family, fields, layers)?;
        let latent = family.is_latent().then(|| latent::read(family, fields, hidden)).transpose()?;
        let heads = match latent {
            Some(latent) => vec![latent.heads.absorbed(); layers],
            None => heads_of_layers(family, fields, &overrides, hidden, &kinds)?,
        };
        let rope = |kind: LayerKind| -> Result<Option<RopeConfig>> {
            let Some(first) = kinds.iter().position(|&other| other == kind) else { return Ok(None) };
            let width = heads[first].head_dim;
            let other = (0..layers).find(|&layer| kinds[layer] == kind && heads[layer].head_dim != width);
            if let Some(other) = other {
                let expected = format!("{width}, as layer {first} has, of the same kind and so the same rope");
                let found = heads[other].head_dim.to_string();
                return Err(fields.error(&format!("{}.head_dim", overrides.place(other)), expected, found));
            }
            let mut defaults = rope_defaults(family, kind);
            if latent.is_some() {
                defaults.pairs = latent::rope_pairs(family, fields)?;
                defaults.scales_scores = true;
            }
            let turned = latent.map_or(width, |latent| latent.heads.rope);
            RopeConfig::read(fields, kind, defaults, turned, positions).map(Some)
        };
        let (full_rope, sliding_rope) = (rope(LayerKind::Full)?, rope(LayerKind::Sliding)?);
        let reach = |rope: &Option<RopeConfig>| rope.as_ref().map(|rope| rope.context(positions));
        let context = match family {
            // Its `max_position_embeddings` is what the scaling reaches already.
            Family::Gemma3 => positions,
            _ => reach(&full_rope).or(reach(&sliding_rope)).unwrap_or(positions),
        };
        Ok(Self { family, fields, hidden, layers, kinds, heads, latent, overrides, full_rope, sliding_rope, context })
    }

    pub fn read(&self) -> Result<Vec<LayerSpec>> {
        let (family, fields) = (self.family, self.fields);
        let norm = family.norm(fields)?;
        let biases = family.biases(fields)?;
        let windows = self.windows()?;
        let ropes = self.rotated()?;
        let activation = family.activation(fields)?;
        let softcap = if family == Family::Gemma2 { softcap(fields, "attn_logit_softcapping")? } else { None };
        let norms = match family {
            Family::Phi => LayerNorms::Parallel(norm),
            Family::Olmo2 | Family::Olmo3 => {
                LayerNorms::Sequential { attention: BlockNorms::After(norm), feed_forward: BlockNorms::After(norm) }
            }
            _ if family.is_gemma() => {
                let around = BlockNorms::Around { before: norm, after: norm };
                LayerNorms::Sequential { attention: around, feed_forward: around }
            }
            _ => LayerNorms::Sequential { attention: BlockNorms::Before(norm), feed_forward: BlockNorms::Before(norm) },
        };
        let head_norm = match family {
            Family::Qwen3 | Family::Qwen3Moe | Family::Gemma3 => Some((HeadNormSpan::Head, false)),
            _ if family.has_delta_rule() => Some((HeadNormSpan::Head, false)),
            Family::Gemma4 => Some((HeadNormSpan::Head, true)),
            Family::Olmo2 | Family::Olmo3 => Some((HeadNormSpan::AllHeads, false)),
            _ => None,
        };
        let branch_scale = match family {
            Family::MiniCpm3 => {
                let depth = fields.positive("scale_depth")?;
                depth.map(|depth| (depth / (self.layers as f64).sqrt()) as f32)
            }
            _ => None,
        };
        let layer = |layer: usize| {
            let heads = self.heads[layer];
            let keys = self.keys(layer)?;
            let attention = || -> Result<AttentionSpec> {
                Ok(AttentionSpec {
                    heads,
                    window: windows[layer],
                    rope: self.rope(layer).filter(|_| ropes[layer]).cloned(),
                    growth: match family {
                        Family::Ministral3 | Family::Mistral4 => query_growth(fields)?,
                        _ => None,
                    },
                    scale: self.scale(layer)?,
                    softcap,
                    sinks: family == Family::GptOss,
                    keys,
                    head_norm: head_norm.map(|(span, values)| HeadNorm { norm, span, values, weights: true }),
                    gate: family.has_delta_rule().then_some(QueryGate::InQueries),
                    qkv_bias: biases.qkv,
                    out_bias: biases.out,
                })
            };
            let mixer = match self.kinds[layer] {
                LayerKind::Linear => Mixer::DeltaRule(delta_rule::read(fields, norm.eps())?),
                LayerKind::Full | LayerKind::Sliding => Mixer::Attention(attention()?),
            };
            Ok(LayerSpec {
                mixer,
                feed_forward: self.feed_forward(layer, keys, activation, &biases)?,
                norms,
                output_scale: family == Family::Gemma4,
                branch_scale: BranchScale::of_both(branch_scale),
            })
        };
        (0..self.layers).map(layer).collect()
    }

    fn rope(&self, layer: usize) -> Option<&RopeConfig> {
        match self.kinds[layer] {
            LayerKind::Full => self.full_rope.as_ref(),
            LayerKind::Sliding => self.sliding_rope.as_ref(),
            LayerKind::Linear => None,
        }
    }

    fn scale(&self, layer: usize) -> Result<f32> {
        if let Some(latent) = &self.latent {
            return Ok(latent::scale(self.family, latent, self.hidden, self.rope(layer)));
        }
        let by_width = 1.0 / (self.heads[layer].head_dim as f32).sqrt();
        Ok(match self.family {
            Family::Gemma2 | Family::Gemma3 => {
                self.fields.positive("query_pre_attn_scalar")?.map_or(by_width, |scalar| (1.0 / scalar.sqrt()) as f32)
            }
            // Its queries and keys are normalised.
            Family::Gemma4 => 1.0,
            _ => by_width,
        })
    }

    /// The sliding window of each layer.
    fn windows(&self) -> Result<Vec<Option<u32>>> {
        let fields = self.fields;
        let has_default = matches!(
            self.family,
            Family::Mistral | Family::Ministral | Family::Qwen2 | Family::Qwen3 | Family::Qwen3Moe | Family::Olmo3
        );
        let window = match fields.size("sliding_window", LARGEST_CONTEXT)? {
            Some(window) => Some(window),
            None if fields.is_written("sliding_window") || !has_default => None,
            None => Some(DEFAULT_WINDOW),
        };
        let is_used = match self.family {
            Family::Llama | Family::Phi | Family::Olmo2 => false,
            _ if self.family.has_delta_rule() => false,
            _ if self.has_switch() => fields.flag("use_sliding_window")?.unwrap_or(false),
            // SmolLM3's `use_sliding_window` decides what `layer_types` are where they are not written.
            _ => true,
        };
        let window = window.filter(|_| is_used);
        let names_windows = is_used || self.has_switch();
        if names_windows && window.is_none() && listed_kinds(self.family, fields)?.is_some() {
            self.refuse_kinds_without_window()?;
        }
        // A window as long as the context hides nothing.
        let window = window.filter(|&w| w < self.context).map(|w| u32::try_from(w).expect("LARGEST_CONTEXT fits"));
        Ok(self.kinds.iter().map(|&kind| window.filter(|_| kind == LayerKind::Sliding)).collect())
    }

    /// Whether `use_sliding_window` decides if there are windows at all.
    fn has_switch(&self) -> bool {
        matches!(self.family, Family::Qwen2 | Family::Qwen3 | Family::Qwen3Moe)
    }

    /// Refuses layers that `layer_types` gives a window where the config has none, as transformers does.
    fn refuse_kinds_without_window(&self) -> Result<()> {
        let Some(layer) = self.kinds.iter().position(|&kind| kind == LayerKind::Sliding) else { return Ok(()) };
        let [window, switch] = ["sliding_window", "use_sliding_window"];
        let has_window = self.fields.value(window).is_some() || !self.fields.is_written(window);
        let (field, expected, found) = match self.has_switch() && has_window {
            true => (switch, "true", self.fields.flag(switch)?.map_or("nothing", |_| "false")),
            false => (window, "a number of tokens", "nothing"),
        };
        let expected = format!("{expected}, as layer_types[{layer}] is \"{}\"", LayerKind::Sliding.name());
        Err(self.fields.error(field, expected, found))
    }

    /// Whether each layer has a rope: SmolLM3 leaves some out.
    fn rotated(&self) -> Result<Vec<bool>> {
        if self.family != Family::SmolLm3 {
            return Ok(vec![true; self.layers]);
        }
        no_rope_layers(self.fields, self.layers)
    }

    /// Gemma 4's last layers read what the last layer of the same kind before them has stored.
    fn keys(&self, layer: usize) -> Result<KeySource> {
        if let Some(latent) = self.latent {
            return Ok(KeySource::Latent(latent));
        }
        if self.family != Family::Gemma4 {
            return Ok(KeySource::Projected);
        }
        let first_shared = self.first_shared()?;
        if layer >= first_shared {
            let kind = self.kinds[layer];
            let Some(source) = self.kinds[..first_shared].iter().rposition(|&other| other == kind) else {
                let expected = format!("fewer, so that a {} layer comes before layer {first_shared}", kind.name());
                let found = (self.layers - first_shared).to_string();
                return Err(self.fields.error("num_kv_shared_layers", expected, found));
            };
            if self.heads[layer] != self.heads[source] {
                let expected = format!("{}, as layer {source} has, whose keys it reads", self.heads[source]);
                let found = self.heads[layer].to_string();
                return Err(self.fields.error(&self.overrides.place(layer), expected, found));
            }
            return Ok(KeySource::OfLayer(source));
        }
        let equal = self.fields.flag("attention_k_eq_v")?.unwrap_or(false);
        Ok(if equal && self.kinds[layer] == LayerKind::Full { KeySource::KeysAreValues } else { KeySource::Projected })
    }

    fn first_shared(&self) -> Result<usize> {
        let shared = self.fields.count("num_kv_shared_layers")?.unwrap_or(0);
        match usize::try_from(shared).ok().filter(|&shared| shared < self.layers) {
            Some(shared) => Ok(self.layers - shared),
            None => {
                let expected = format!("a number below num_hidden_layers ({})", self.layers);
                Err(self.fields.error("num_kv_shared_layers", expected, shared.to_string()))
            }
        }
    }

    fn feed_forward(
        &self,
        layer: usize,
        keys: KeySource,
        activation: Activation,
        biases: &Biases,
    ) -> Result<FeedForward> {
        let fields = self.fields;
        let norm = self.family.norm(fields)?;
        let experts = experts::of_layer(self.family, fields, layer, norm)?;
        if let (Some(experts), false) = (experts, self.family == Family::Gemma4) {
            let dense = |width| DenseSpec { activation, width, bias: biases.mlp };
            return Ok(match experts::shared_width(self.family, fields)? {
                _ if self.family == Family::LongcatFlash => {
                    let dense = dense(fields.required_size("intermediate_size", LARGEST_WIDTH)?);
                    FeedForward::Opens { dense, experts }
                }
                Some(width) => {
                    let gated = !self.family.is_latent();
                    FeedForward::SharedExpert { shared: dense(width), experts, gated }
                }
                None => FeedForward::Experts(experts),
            });
        }
        let width = fields.required_size("intermediate_size", LARGEST_WIDTH)?;
        let shares = matches!(keys, KeySource::OfLayer(_));
        let doubled = shares && fields.flag("use_double_wide_mlp")?.unwrap_or(false);
        let dense = DenseSpec { activation, width: if doubled { 2 * width } else { width }, bias: biases.mlp };
        Ok(match experts {
            Some(experts) => FeedForward::DenseAndExperts { dense, experts, norm },
            None if self.family == Family::LongcatFlash => FeedForward::Closes(dense),
            None => FeedForward::Dense(dense),
        })
    }
}

/// `layer_types` as it is written. Families whose windows do not differ by layer ignore it, as in transformers.
fn listed_kinds<'a>(family: Family, fields: &Fields<'a>) -> Result<Option<&'a [serde_json::Value]>> {
    let ignores = matches!(family, Family::Ministral3 | Family::Mixtral | Family::Qwen3Moe | Family::Phi3);
    Ok(fields.list("layer_types")?.filter(|_| !ignores && !family.is_latent()))
}

/// `layer_types`, or what the family implies without it.
fn layer_kinds(family: Family, fields: &Fields<'_>, layers: usize) -> Result<Vec<LayerKind>> {
    let mut kinds = match listed_kinds(family, fields)? {
        None => implied_kinds(family, fields, layers)?,
        Some(kinds) if kinds.len() != layers => {
            let expected = format!("one for each of num_hidden_layers ({layers})");
            return Err(fields.error("layer_types", expected, kinds.len().to_string()));
        }
        Some(kinds) => {
            let known = match family.has_delta_rule() {
                true => [LayerKind::Full, LayerKind::Linear],
                false => LayerKind::WITH_ATTENTION,
            };
            let kind = |(layer, kind): (usize, &serde_json::Value)| {
                let named = known.into_iter().find(|known| kind.as_str() == Some(known.name()));
                named.ok_or_else(|| {
                    let expected = known.map(LayerKind::name).join(" or ");
                    fields.error(&format!("layer_types[{layer}]"), expected, shown(kind))
                })
            };
            kinds.iter().enumerate().map(kind).collect::<Result<_>>()?
        }
    };
    if let (Family::Gemma4, Some(last)) = (family, kinds.last_mut()) {
        *last = LayerKind::Full;
    }
    if kinds.iter().all(|&kind| kind == LayerKind::Linear) {
        return Err(fields.error("layer_types", "at least one full_attention layer", "none"));
    }
    Ok(kinds)
}

fn implied_kinds(family: Family, fields: &Fields<'_>, layers: usize) -> Result<Vec<LayerKind>> {
    let every = |period: usize, rest| {
        let kind = |layer: usize| if (layer + 1).is_multiple_of(period) { LayerKind::Full } else { rest };
        (0..layers).map(kind).collect()
    };
    Ok(match family {
        Family::Mistral
        | Family::Ministral
        | Family::Ministral3
        | Family::Mixtral
        | Family::Qwen3Moe
        | Family::Phi3 => vec![LayerKind::Sliding; layers],
        Family::Qwen2 | Family::Qwen3 => {
            let from = fields.count("max_window_layers")?.unwrap_or(DEFAULT_MAX_WINDOW_LAYERS);
            (0..layers).map(|layer| full_if((layer as u64) < from)).collect()
        }
        Family::SmolLm3 => {
            let windows = fields.flag("use_sliding_window")?.unwrap_or(false);
            no_rope_layers(fields, layers)?.into_iter().map(|rotated| full_if(rotated || !windows)).collect()
        }
        Family::Gemma2 | Family::GptOss => every(2, LayerKind::Sliding),
        Family::Olmo3 => every(4, LayerKind::Sliding),
        Family::Gemma3 => {
            every(fields.size("sliding_window_pattern", layers.max(64))?.unwrap_or(6), LayerKind::Sliding)
        }
        Family::Gemma4 => every(6, LayerKind::Sliding),
        Family::Qwen3Next | Family::Qwen35 | Family::Qwen35Moe => {
            let period = fields.size("full_attention_interval", LARGEST_WIDTH)?.unwrap_or(4);
            every(period, LayerKind::Linear)
        }
        Family::Llama
        | Family::Phi
        | Family::Olmo2
        | Family::DeepseekV2
        | Family::DeepseekV3
        | Family::Glm4MoeLite
        | Family::Mistral4
        | Family::MiniCpm3
        | Family::SarvamMla
        | Family::LongcatFlash => vec![LayerKind::Full; layers],
    })
}

fn full_if(full: bool) -> LayerKind {
    if full { LayerKind::Full } else { LayerKind::Sliding }
}

/// For each layer of SmolLM3: whether it has a rope (1 in `no_rope_layers`, despite the name).
fn no_rope_layers(fields: &Fields<'_>, layers: usize) -> Result<Vec<bool>> {
    const NAME: &str = "no_rope_layers";
    let Some(list) = fields.list(NAME)? else {
        let interval = fields.size("no_rope_layer_interval", LARGEST_WIDTH)?.unwrap_or(4);
        return Ok((0..layers).map(|layer| !(layer + 1).is_multiple_of(interval)).collect());
    };
    if list.len() < layers {
        let expected = format!("0 or 1 for each of num_hidden_layers ({layers})");
        return Err(fields.error(NAME, expected, format!("{} values", list.len())));
    }
    let rotated = |(layer, value): (usize, &serde_json::Value)| {
        value
            .as_u64()
            .map(|value| value != 0)
            .ok_or_else(|| fields.error(&format!("{NAME}[{layer}]"), "0 or 1", shown(value)))
    };
    list[..layers].iter().enumerate().map(rotated).collect()
}

/// How the queries of Ministral 3 and Mistral 4 grow, which its rope says, in either notation.
fn query_growth(fields: &Fields<'_>) -> Result<Option<QueryGrowth>> {
    const CONTEXT: &str = "original_max_position_embeddings";
    let old = fields.object("rope_scaling")?.filter(|old| !old.all().is_empty());
    let Some(rope) = old.map_or_else(|| fields.object("rope_parameters"), |old| Ok(Some(old)))? else {
        return Ok(None);
    };
    let Some(beta) = rope.positive("llama_4_scaling_beta")? else { return Ok(None) };
    let original_context = rope.required_size(CONTEXT, LARGEST_CONTEXT)?;
    Ok(Some(QueryGrowth { beta, original_context, offset: 0 }))
}

fn rope_defaults(family: Family, kind: LayerKind) -> RopeDefaults {
    let plain = RopeDefaults {
        theta_field: Some("rope_theta"),
        theta: 10_000.0,
        fraction: 1.0,
        partial: false,
        scaled: true,
        is_phi3: false,
        pairs: RopePairs::Halves,
        scales_scores: false,
    };
    match (family, kind) {
        (Family::Phi, _) => RopeDefaults { fraction: 0.5, partial: true, ..plain },
        (Family::Phi3, _) => RopeDefaults { partial: true, is_phi3: true, ..plain },
        (Family::Mixtral, _) => RopeDefaults { theta: 1e6, ..plain },
        (Family::SmolLm3, _) => RopeDefaults { theta: 2e6, ..plain },
        (Family::GptOss, _) => RopeDefaults { theta: 150_000.0, ..plain },
        (Family::LongcatFlash, _) => RopeDefaults { theta: 1e7, ..plain },
        (Family::Olmo3, LayerKind::Full) => RopeDefaults { theta: 500_000.0, ..plain },
        (Family::Olmo3, LayerKind::Sliding) => {
            RopeDefaults { theta_field: None, theta: 500_000.0, scaled: false, ..plain }
        }
        (Family::Qwen3Next | Family::Qwen35 | Family::Qwen35Moe, _) => {
            RopeDefaults { fraction: 0.25, partial: true, ..plain }
        }
        (Family::Gemma4, _) => RopeDefaults { theta_field: None, scaled: false, ..plain },
        (Family::Gemma3, LayerKind::Full) => RopeDefaults { theta: 1e6, ..plain },
        (Family::Gemma3, LayerKind::Sliding) => {
            RopeDefaults { theta_field: Some("rope_local_base_freq"), scaled: false, ..plain }
        }
        _ => plain,
    }
}

/// The heads of each layer.
fn heads_of_layers(
    family: Family,
    fields: &Fields<'_>,
    overrides: &Overrides<'_>,
    hidden: usize,
    kinds: &[LayerKind],
) -> Result<Vec<HeadLayout>> {
    let all = heads(fields, hidden)?;
    if family != Family::Gemma4 {
        return Ok(vec![all; kinds.len()]);
    }
    let of_layer = |(layer, &kind): (usize, &LayerKind)| match overrides.of_layer(layer)? {
        Some(own) => changed(&own, all, Some("num_key_value_heads"), "head_dim"),
        None if overrides.fields.is_some() || kind == LayerKind::Sliding => Ok(all),
        None => {
            let equal = fields.flag("attention_k_eq_v")?.unwrap_or(false);
            let all = HeadLayout::new(all.q_heads, all.kv_heads, 512);
            changed(fields, all, equal.then_some("num_global_key_value_heads"), "global_head_dim")
        }
    };
    kinds.iter().enumerate().map(of_layer).collect()
}

/// `heads` with the key heads and width that these fields of `fields` hold, if they do.
fn changed(fields: &Fields<'_>, heads: HeadLayout, kv_heads: Option<&str>, head_dim: &str) -> Result<HeadLayout> {
    let own = kv_heads.map(|name| fields.size(name, LARGEST_WIDTH)).transpose()?.flatten();
    let width = fields.size(head_dim, LARGEST_WIDTH)?.unwrap_or(heads.head_dim);
    let changed = HeadLayout::new(heads.q_heads, own.unwrap_or(heads.kv_heads), width);
    checked(fields, changed, kv_heads.unwrap_or("num_key_value_heads"), head_dim, "")
}

fn heads(fields: &Fields<'_>, hidden: usize) -> Result<HeadLayout> {
    let q_heads = fields.required_size("num_attention_heads", LARGEST_WIDTH)?;
    let kv_heads = fields.size("num_key_value_heads", LARGEST_WIDTH)?.unwrap_or(q_heads);
    let head_dim = match fields.size("head_dim", LARGEST_WIDTH)? {
        Some(head_dim) => head_dim,
        None if hidden.is_multiple_of(q_heads) => hidden / q_heads,
        None => {
            let expected = format!("a divisor of hidden_size ({hidden}), or `head_dim`");
            return Err(fields.error("num_attention_heads", expected, q_heads.to_string()));
        }
    };
    let derived = if fields.value("head_dim").is_some() { "" } else { " (hidden_size / num_attention_heads)" };
    checked(fields, HeadLayout::new(q_heads, kv_heads, head_dim), "num_key_value_heads", "head_dim", derived)
}

/// The last three: the fields of key heads and width, and where the width was derived from.
fn checked(
    fields: &Fields<'_>,
    heads: HeadLayout,
    kv_heads: &str,
    head_dim: &str,
    derived: &str,
) -> Result<HeadLayout> {
    let HeadLayout { q_heads, .. } = heads;
    if !q_heads.is_multiple_of(heads.kv_heads) {
        let expected = format!("a divisor of num_attention_heads ({q_heads})");
        return Err(fields.error(kv_heads, expected, heads.kv_heads.to_string()));
    }
    let most = MOST_HEAD_DIM.min(LARGEST_WIDTH / q_heads);
    if !heads.head_dim.is_multiple_of(2) || heads.head_dim > most {
        let expected = format!("an even number up to {most}");
        return Err(fields.error(head_dim, expected, format!("{}{derived}", heads.head_dim)));
    }
    Ok(heads)
}

/// The cap of logits or scores in the field `name`.
pub fn softcap(fields: &Fields<'_>, name: &str) -> Result<Option<f32>> {
    Ok(fields.positive(name)?.map(|cap| cap as f32))
}
