//! Reads what differs from layer to layer: windows, ropes, heads, and where keys and values come from.

use std::collections::BTreeMap;

use offshoot_backend::{HeadLayout, MOST_HEAD_DIM};
use offshoot_core::error::Result;

use super::super::fields::{Fields, LARGEST_CONTEXT, LARGEST_LAYERS, LARGEST_WIDTH, shown};
use super::super::layer::{
    Activation, AttentionSpec, BlockNorms, BranchScale, DenseSpec, FeedForward, HeadNorm, KeySource, LatentSpec,
    LayerNorms, LayerSpec, Mixer, Norm, QueryGrowth,
};
use super::super::rope::{LayerKind, RopeConfig};
use super::description::{
    Beside, Biases, Blocks, Description, HeadNormRule, ImpliedKinds, KeyRule, NormPlaces, Rotated, ScaleRule, WindowUse,
};
use super::{beside, experts, latent};

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
    fn read(family: &Description, fields: &Fields<'a>, layers: usize) -> Result<Self> {
        let mut written = BTreeMap::new();
        let Some(overrides) = fields.object(PER_LAYER)? else { return Ok(Self { fields: None, written }) };
        for name in overrides.all().keys() {
            if family.keys != KeyRule::Gemma4 {
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
    family: &'static Description,
    fields: &'a Fields<'a>,
    hidden: usize,
    layers: usize,
    kinds: Vec<LayerKind>,
    /// Of each layer; empty if none has attention.
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
    pub fn new(
        family: &'static Description,
        fields: &'a Fields<'a>,
        hidden: usize,
        layers: usize,
        positions: usize,
    ) -> Result<Self> {
        let kinds = layer_kinds(family, fields, layers)?;
        let overrides = Overrides::read(family, fields, layers)?;
        let latent = family.latent.map(|rule| latent::read(family, rule, fields, hidden)).transpose()?;
        let attends = |kind: &LayerKind| LayerKind::WITH_ATTENTION.contains(kind);
        let heads = match latent {
            Some(latent) => vec![latent.heads.absorbed(); layers],
            None if !kinds.iter().any(attends) => Vec::new(),
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
            let mut defaults = match kind {
                LayerKind::Sliding => family.rope.sliding,
                LayerKind::Full | LayerKind::Linear | LayerKind::None => family.rope.full,
            };
            if let Some(rule) = family.latent {
                defaults.pairs = latent::rope_pairs(family, rule, fields)?;
                defaults.scales_scores = true;
            }
            let turned = latent.map_or(width, |latent| latent.heads.rope);
            RopeConfig::read(fields, kind, defaults, turned, positions).map(Some)
        };
        let (full_rope, sliding_rope) = (rope(LayerKind::Full)?, rope(LayerKind::Sliding)?);
        let reach = |rope: &Option<RopeConfig>| rope.as_ref().map(|rope| rope.context(positions));
        let context = match family.stretches_context {
            true => reach(&full_rope).or(reach(&sliding_rope)).unwrap_or(positions),
            false => positions,
        };
        Ok(Self { family, fields, hidden, layers, kinds, heads, latent, overrides, full_rope, sliding_rope, context })
    }

    pub fn read(&self) -> Result<Vec<LayerSpec>> {
        let (family, fields) = (self.family, self.fields);
        let norm = norm(family, fields)?;
        let Biases { qkv, out, mlp, .. } = family.biases;
        let (qkv_bias, out_bias, mlp_bias) = (qkv.read(fields)?, out.read(fields)?, mlp.read(fields)?);
        let windows = self.windows()?;
        let ropes = self.rotated()?;
        let activation = activation(family, fields)?;
        let ScaleRule { branches, score_cap, of_layers, .. } = family.scales;
        let softcap = softcap(fields, score_cap)?;
        let both = |norms: BlockNorms| LayerNorms::Sequential { attention: norms, feed_forward: norms };
        let places = match family.places {
            NormPlaces::If(name, true_places, false_places) => {
                *if fields.flag(name)?.unwrap_or(false) { true_places } else { false_places }
            }
            places => places,
        };
        let norms = match places {
            NormPlaces::Before => both(BlockNorms::Before(norm)),
            NormPlaces::After => both(BlockNorms::After(norm)),
            NormPlaces::Around => both(BlockNorms::Around { before: norm, after: norm }),
            NormPlaces::Parallel => LayerNorms::Parallel(norm),
            NormPlaces::ParallelOfTwo => LayerNorms::ParallelOfTwo { attention: norm, feed_forward: norm },
            NormPlaces::If(..) => unreachable!("no table asks for a second field"),
        };
        let branch_scale = branches.read(fields, self.hidden, self.layers)?;
        let head_norm = match family.head_norm {
            Some(HeadNormRule { switch: Some(switch), .. }) if !fields.flag(switch)?.unwrap_or(false) => None,
            rule => rule,
        };
        let clip = family.clip.map(|name| fields.positive(name)).transpose()?.flatten().map(|most| most as f32);
        let growth = if family.grows { query_growth(fields)? } else { None };
        let layer = |layer: usize| {
            let keys = self.keys(layer)?;
            let attention = || -> Result<AttentionSpec> {
                Ok(AttentionSpec {
                    heads: self.heads[layer],
                    window: windows[layer],
                    rope: self.rope(layer).filter(|_| ropes[layer]).cloned(),
                    growth,
                    scale: self.scale(layer)?,
                    softcap,
                    sinks: family.sinks,
                    keys,
                    head_norm: head_norm.map(|rule| HeadNorm {
                        norm,
                        span: rule.span,
                        values: rule.values,
                        weights: rule.weights,
                        after_rope: rule.after_rope,
                    }),
                    gate: family.gate,
                    clip,
                    qkv_bias,
                    out_bias,
                })
            };
            let recurrent = || -> Result<Mixer> {
                let read = family.recurrent.expect("only families with recurrent layers have layers of this kind");
                Ok(Mixer::Recurrent(read(fields, norm.eps())?))
            };
            let mixer = match self.kinds[layer] {
                LayerKind::Linear => recurrent()?,
                LayerKind::Full | LayerKind::Sliding => Mixer::Attention(attention()?),
                LayerKind::None => Mixer::None,
            };
            let feed_forward = match (family.blocks, &mixer) {
                (Blocks::One, Mixer::Attention(_) | Mixer::Recurrent(_)) => FeedForward::None,
                _ => self.feed_forward(layer, keys, activation, mlp_bias)?,
            };
            let mut branch_scale = BranchScale::of_both(branch_scale);
            if matches!(feed_forward, FeedForward::SharedExpert { .. }) && self.averages()? {
                branch_scale.feed_forward = Some(0.5 * branch_scale.feed_forward.unwrap_or(1.0));
            }
            let spec = LayerSpec {
                norms: present(norms, &mixer, &feed_forward),
                mixer,
                feed_forward,
                output_scale: of_layers,
                branch_scale,
            };
            match family.blocks {
                Blocks::Beside => beside::layers(fields, spec, recurrent()?, norm),
                Blocks::Both | Blocks::One => Ok(vec![spec]),
            }
        };
        let layers: Vec<Vec<LayerSpec>> = (0..self.layers).map(layer).collect::<Result<_>>()?;
        Ok(layers.into_iter().flatten().collect())
    }

    fn rope(&self, layer: usize) -> Option<&RopeConfig> {
        match self.kinds[layer] {
            LayerKind::Full => self.full_rope.as_ref(),
            LayerKind::Sliding => self.sliding_rope.as_ref(),
            LayerKind::Linear | LayerKind::None => None,
        }
    }

    fn scale(&self, layer: usize) -> Result<f32> {
        if let (Some(latent), Some(rule)) = (&self.latent, self.family.latent) {
            return Ok(latent::scale(rule, latent, self.hidden, self.rope(layer)));
        }
        let given = self.family.scales.scores.read(self.fields, self.hidden, self.layers)?;
        Ok(given.unwrap_or_else(|| 1.0 / (self.heads[layer].head_dim as f32).sqrt()))
    }

    /// The sliding window of each layer.
    fn windows(&self) -> Result<Vec<Option<u32>>> {
        let (fields, rule) = (self.fields, self.family.windows);
        let window = match fields.size("sliding_window", LARGEST_CONTEXT)? {
            None if !fields.is_written("sliding_window") => rule.default,
            window => window,
        };
        let is_used = match rule.used {
            WindowUse::Never => false,
            WindowUse::Always => true,
            WindowUse::Switched => fields.flag("use_sliding_window")?.unwrap_or(false),
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
        self.family.windows.used == WindowUse::Switched
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

    /// Whether each layer has a rope.
    fn rotated(&self) -> Result<Vec<bool>> {
        match self.family.rope.rotated {
            Rotated::All => Ok(vec![true; self.layers]),
            Rotated::Listed => no_rope_layers(self.fields, self.layers),
            Rotated::If(name, word) => Ok(vec![self.fields.text(name)? == Some(word); self.layers]),
            Rotated::None => Ok(vec![false; self.layers]),
            Rotated::Sliding => {
                let has_windows = self.fields.value("sliding_window").is_some();
                Ok(self.kinds.iter().map(|&kind| !has_windows || kind == LayerKind::Sliding).collect())
            }
        }
    }

    /// Gemma 4's last layers read what the last layer of the same kind before them has stored.
    fn keys(&self, layer: usize) -> Result<KeySource> {
        if let Some(latent) = self.latent {
            return Ok(KeySource::Latent(latent));
        }
        if self.family.keys == KeyRule::Projected {
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

    fn feed_forward(&self, layer: usize, keys: KeySource, activation: Activation, bias: bool) -> Result<FeedForward> {
        let (family, fields) = (self.family, self.fields);
        let norm = norm(family, fields)?;
        let dense = |width| DenseSpec { activation, width, bias, gate_factor: None };
        if let Some(rule) = family.experts
            && let Some(experts) = experts::of_layer(family, &rule, fields, layer, activation, norm)?
        {
            return Ok(match rule.beside {
                Beside::Nothing => FeedForward::Experts(experts),
                Beside::Gated(width) => {
                    let shared = dense(fields.required_size(width, LARGEST_WIDTH)?);
                    FeedForward::SharedExpert { shared, experts, gated: true }
                }
                Beside::Shared(count) => match experts::shared_width(count, experts.width, fields)? {
                    Some(width) => FeedForward::SharedExpert { shared: dense(width), experts, gated: false },
                    None => FeedForward::Experts(experts),
                },
                Beside::Ungated(width) => match fields.count(width)?.filter(|&width| width > 0) {
                    Some(_) => {
                        let shared = dense(fields.required_size(width, LARGEST_WIDTH)?);
                        FeedForward::SharedExpert { shared, experts, gated: false }
                    }
                    None => FeedForward::Experts(experts),
                },
                Beside::Dense => FeedForward::DenseAndExperts { dense: dense(self.dense_width(keys)?), experts, norm },
                Beside::Opening => FeedForward::Opens { dense: dense(self.dense_width(keys)?), experts },
            });
        }
        let dense = dense(self.dense_width(keys)?);
        Ok(match family.experts.map(|rule| rule.beside) {
            Some(Beside::Opening) => FeedForward::Closes(dense),
            _ => FeedForward::Dense(dense),
        })
    }

    /// Whether experts and the one beside them are averaged.
    fn averages(&self) -> Result<bool> {
        let Some(name) = self.family.experts.and_then(|rule| rule.average) else { return Ok(false) };
        match self.fields.text(name)? {
            None | Some("average") => Ok(true),
            Some("sum") => Ok(false),
            Some(other) => Err(self.fields.error(name, "average or sum", format!("\"{other}\""))),
        }
    }

    /// The width of a layer's dense block.
    fn dense_width(&self, keys: KeySource) -> Result<usize> {
        let names = self.family.dense_width;
        let written = names.iter().find(|name| self.fields.value(name).is_some());
        let name = written.unwrap_or(&names[names.len() - 1]);
        let width = self.fields.required_size(name, LARGEST_WIDTH)?;
        let shares = matches!(keys, KeySource::OfLayer(_));
        let doubled = shares && self.fields.flag("use_double_wide_mlp")?.unwrap_or(false);
        Ok(if doubled { 2 * width } else { width })
    }
}

/// The norms of the blocks that a layer has.
fn present(norms: LayerNorms, mixer: &Mixer, feed_forward: &FeedForward) -> LayerNorms {
    match norms {
        LayerNorms::Sequential { attention, feed_forward: around } => LayerNorms::Sequential {
            attention: if matches!(mixer, Mixer::None) { BlockNorms::None } else { attention },
            feed_forward: if matches!(feed_forward, FeedForward::None) { BlockNorms::None } else { around },
        },
        LayerNorms::Parallel(_) | LayerNorms::ParallelOfTwo { .. } => norms,
    }
}

/// The norms of the model's rows.
pub fn norm(family: &Description, fields: &Fields<'_>) -> Result<Norm> {
    let (name, default) = family.eps;
    Ok(family.norm.with(fields.positive(name)?.unwrap_or(default) as f32))
}

fn activation(family: &Description, fields: &Fields<'_>) -> Result<Activation> {
    let rule = family.activation;
    let (first, usual) = rule.known[0];
    let Some(name) = fields.text(rule.field)? else { return Ok(usual) };
    let known = rule.known.iter().find(|(known, _)| *known == name);
    known
        .map(|(_, activation)| *activation)
        .ok_or_else(|| fields.error(rule.field, format!("{first} ({family})"), format!("\"{name}\"")))
}

/// `layer_types` as it is written. Families whose windows do not differ by layer ignore it, as in transformers.
fn listed_kinds<'a>(family: &Description, fields: &Fields<'a>) -> Result<Option<&'a [serde_json::Value]>> {
    let counts = family.kinds.listed && (family.latent.is_none() || family.recurrent.is_some());
    Ok(fields.list("layer_types")?.filter(|_| counts))
}

/// `layer_types`, or what the family implies without it.
fn layer_kinds(family: &Description, fields: &Fields<'_>, layers: usize) -> Result<Vec<LayerKind>> {
    let mut kinds = match listed_kinds(family, fields)? {
        None => implied_kinds(family, fields, layers)?,
        Some(kinds) if kinds.len() != layers => {
            let expected = format!("one for each of num_hidden_layers ({layers})");
            return Err(fields.error("layer_types", expected, kinds.len().to_string()));
        }
        Some(kinds) => {
            let known: &[LayerKind] = match (family.recurrent.is_some(), family.blocks) {
                (true, Blocks::One) => &[LayerKind::Full, LayerKind::Linear, LayerKind::None],
                (true, Blocks::Both | Blocks::Beside) => &[LayerKind::Full, LayerKind::Linear],
                (false, _) => &LayerKind::WITH_ATTENTION,
            };
            let kind = |(layer, kind): (usize, &serde_json::Value)| {
                let named = known.iter().map(|known| (known.name(), *known)).chain(family.kinds.words.iter().copied());
                let found = named.clone().find(|(name, _)| kind.as_str() == Some(name));
                found.map(|(_, kind)| kind).ok_or_else(|| {
                    let expected = named.map(|(name, _)| name).collect::<Vec<_>>().join(" or ");
                    fields.error(&format!("layer_types[{layer}]"), expected, shown(kind))
                })
            };
            kinds.iter().enumerate().map(kind).collect::<Result<_>>()?
        }
    };
    if let (true, Some(last)) = (family.kinds.last_is_full, kinds.last_mut()) {
        *last = LayerKind::Full;
    }
    Ok(kinds)
}

fn implied_kinds(family: &Description, fields: &Fields<'_>, layers: usize) -> Result<Vec<LayerKind>> {
    Ok(match family.kinds.otherwise {
        ImpliedKinds::All(kind) => vec![kind; layers],
        ImpliedKinds::Every { field, period, rest } => {
            let given = field.map(|name| fields.size(name, LARGEST_LAYERS)).transpose()?.flatten();
            let period = given.unwrap_or(period);
            let kind = |layer: usize| if (layer + 1).is_multiple_of(period) { LayerKind::Full } else { rest };
            (0..layers).map(kind).collect()
        }
        ImpliedKinds::Behind(usual) => {
            let from = fields.count("max_window_layers")?.unwrap_or(usual);
            (0..layers).map(|layer| full_if((layer as u64) < from)).collect()
        }
        ImpliedKinds::EvenBelow(usual) => {
            let below = fields.count("max_window_layers")?.unwrap_or(usual);
            let windows = fields.flag("use_sliding_window")?.unwrap_or(false);
            let slides = |layer: usize| windows && layer.is_multiple_of(2) && (layer as u64) < below;
            (0..layers).map(|layer| full_if(!slides(layer))).collect()
        }
        ImpliedKinds::Unrotated => {
            let windows = fields.flag("use_sliding_window")?.unwrap_or(false);
            no_rope_layers(fields, layers)?.into_iter().map(|rotated| full_if(rotated || !windows)).collect()
        }
    })
}

fn full_if(full: bool) -> LayerKind {
    if full { LayerKind::Full } else { LayerKind::Sliding }
}

/// Whether each layer has a rope (1 in `no_rope_layers`, despite the name).
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

/// How queries grow, which the rope says, in either notation.
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

/// The heads of each layer.
fn heads_of_layers(
    family: &Description,
    fields: &Fields<'_>,
    overrides: &Overrides<'_>,
    hidden: usize,
    kinds: &[LayerKind],
) -> Result<Vec<HeadLayout>> {
    let all = heads(fields, hidden)?;
    if family.keys != KeyRule::Gemma4 {
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

/// The cap of logits or scores in the field `name`, if there is one.
pub fn softcap(fields: &Fields<'_>, name: Option<&str>) -> Result<Option<f32>> {
    let cap = name.map(|name| fields.positive(name)).transpose()?.flatten();
    Ok(cap.map(|cap| cap as f32))
}
