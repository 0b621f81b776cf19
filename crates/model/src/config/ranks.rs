//! Whether a model can be divided among the ranks of tensor parallelism (`backend::ranks`), by how many, and how ranks
//! that have the same key head hold its keys and values.

use std::fmt;

use offshoot_backend::ranks::{PARTS, RANKS};
use offshoot_backend::{DeltaHeads, Dtype, HeadNormSpan};
use offshoot_core::error::{Error, Result};

use super::layer::{AttentionSpec, FeedForward, LayerSpec};
use super::model::ModelConfig;
use super::recurrent::{ChannelSpec, ConvSpec, DeltaSpec, RecurrentSpec, SumSpec};
use crate::layout::{Layout, LinearTensors, TensorSpec};
use offshoot_core::setting::{DETERMINISTIC, TENSOR_PARALLEL};

/// How ranks that have the same key head hold its keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedKeys {
    /// No key head is on several ranks.
    Nothing,
    /// So many ranks each have a part of the positions.
    Divided { members: usize },
    /// So many ranks each have all of them.
    Copied { copies: usize, why: WhyCopied },
}

/// Why keys and values are copied that ranks could divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyCopied {
    /// Where partial results merge would depend on the number of ranks, and so would bits.
    Deterministic,
    /// The devices cannot merge partial results: GPUs that exchange through NCCL.
    Backend,
    /// Key heads of some layers are on more ranks than those of others.
    Layers,
    /// They are latents, which all heads read.
    Latents,
}

impl SharedKeys {
    /// How many ranks divide the positions of a key head (`Ranks::sharing_positions`).
    pub fn members(self) -> usize {
        match self {
            SharedKeys::Divided { members } => members,
            SharedKeys::Nothing | SharedKeys::Copied { .. } => 1,
        }
    }
}

impl fmt::Display for SharedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SharedKeys::Nothing => f.write_str("each key head is on one device"),
            SharedKeys::Divided { members } => {
                write!(f, "{members} devices share each key head and divide its keys and values by positions")
            }
            SharedKeys::Copied { copies, why } => {
                write!(f, "{copies} devices each have a copy of the keys and values of a key head")?;
                match why {
                    WhyCopied::Deterministic => {
                        write!(f, ", as {DETERMINISTIC} gives the same bits on any number of devices")
                    }
                    WhyCopied::Backend => {
                        f.write_str(": devices that NVLink does not join cannot divide its positions")
                    }
                    WhyCopied::Layers => f.write_str(" in some layers: layers differ in their number of key heads"),
                    WhyCopied::Latents => f.write_str(": they are latents, which the heads of all devices read"),
                }
            }
        }
    }
}

/// A size of a layer that ranks divide.
struct DividedSize {
    field: &'static str,
    size: usize,
    /// Whether sums go over it, which have [`PARTS`] parts if they are exact.
    is_summed: bool,
    /// Whether several ranks may have the same one, where there are fewer than ranks.
    is_repeated: bool,
}

impl DividedSize {
    fn plain(field: &'static str, size: usize) -> Self {
        Self { field, size, is_summed: false, is_repeated: false }
    }

    fn summed(field: &'static str, size: usize) -> Self {
        Self { is_summed: true, ..Self::plain(field, size) }
    }

    /// What must divide it for `ranks` ranks.
    fn divisor(&self, ranks: usize, exact: bool) -> usize {
        if exact && self.is_summed { PARTS } else { ranks }
    }

    fn is_divided(&self, ranks: usize, exact: bool) -> bool {
        let by = self.divisor(ranks, exact);
        self.size.is_multiple_of(by) || (self.is_repeated && by.is_multiple_of(self.size))
    }
}

impl ModelConfig {
    /// Bytes of the matrices that `ranks` ranks have whole, each of them: embeddings (and an output layer tied to
    /// them), an output layer whose vocabulary they do not divide, routers, and the projections to latents and to the
    /// ranks of queries. Norms and biases count for nothing.
    pub fn undivided_bytes(&self, dtype: Dtype, ranks: usize) -> usize {
        let layout = Layout::of(self);
        let head = layout.head.as_ref().filter(|_| !self.vocab.is_multiple_of(ranks));
        let inputs =
            layout.inputs.iter().flat_map(|inputs| std::iter::once(&inputs.embed).chain(inputs.projection.tensors()));
        let routers = layout.layers.iter().filter_map(|layer| layer.experts.as_ref());
        let routers =
            routers.flat_map(|experts| std::iter::once(&experts.router).chain(experts.latent.iter().flatten()));
        let routers = routers.flat_map(LinearTensors::tensors);
        let latents = layout.layers.iter().filter_map(|layer| Some((layer, layer.latent.as_ref()?)));
        let latents = latents.flat_map(|(layer, latent)| layer.qkv.iter().flat_map(|qkv| latent.whole(qkv)));
        let whole = std::iter::once(&layout.embed).chain(head).chain(inputs).chain(routers).chain(latents);
        whole.map(|tensor| self.format(tensor, dtype).bytes(tensor.rows(), tensor.cols())).sum()
    }

    /// How `ranks` ranks hold the keys and values of a key head that several have. `exact`: see `check_ranks`;
    /// `can_divide`: whether they can divide positions.
    pub fn shared_keys(&self, ranks: usize, exact: bool, can_divide: bool) -> SharedKeys {
        let of_layers = || self.stored_heads().map(|heads| heads.copies(ranks));
        let Some(copies) = of_layers().max().filter(|&copies| copies > 1) else { return SharedKeys::Nothing };
        if self.latents().is_some() {
            return SharedKeys::Copied { copies, why: WhyCopied::Latents };
        }
        let why = match (exact, of_layers().all(|one| one == copies), can_divide) {
            (true, ..) => WhyCopied::Deterministic,
            (false, false, _) => WhyCopied::Layers,
            (false, true, false) => WhyCopied::Backend,
            (false, true, true) => return SharedKeys::Divided { members: copies },
        };
        SharedKeys::Copied { copies, why }
    }

    /// Bytes of matrices that `ranks` ranks have beyond one device's: what each has whole, the projections of key heads
    /// that several have and, where groups of `members` ranks divide positions, those of their queries.
    pub fn repeated_bytes(&self, dtype: Dtype, ranks: usize, members: usize) -> usize {
        let layout = Layout::of(self);
        let of_keys = self.layers.iter().zip(&layout.layers).filter_map(|(layer, tensors)| {
            // Latents have no key heads, and no ranks divide their positions.
            let heads = layer.attention().filter(|attention| attention.latent().is_none())?.projected();
            let bytes = |tensor: &TensorSpec| self.format(tensor, dtype).bytes(tensor.rows(), tensor.cols());
            let own = tensors.qkv.iter().flat_map(LinearTensors::tensors);
            let (all, rows): (usize, usize) =
                own.fold((0, 0), |(all, rows), tensor| (all + bytes(tensor), rows + tensor.rows()));
            // Its rows are those of queries, of gates if there are some, and of keys and values.
            let bytes = |own_rows: usize| all * own_rows / rows.max(1);
            let of_keys = (heads.copies(ranks) - 1) * bytes(2 * heads.kv_heads * heads.head_dim);
            Some(of_keys + (members - 1) * bytes(heads.q_width()))
        });
        (ranks - 1) * self.undivided_bytes(dtype, ranks) + of_keys.sum::<usize>()
    }

    /// Refuses a model that `ranks` ranks cannot divide. `exact`: sums have the same parts for any number of ranks.
    ///
    /// # Errors
    ///
    /// The first layer that stands against it, with the numbers of ranks that divide the model; or no model has so
    /// many.
    pub fn check_ranks(&self, ranks: usize, exact: bool) -> Result<()> {
        for (ix, layer) in self.layers.iter().enumerate() {
            if let Some(kind) = undivided(layer) {
                let what = format!("layer {ix} ({}) under {TENSOR_PARALLEL} {ranks}", self.family);
                return Err(Error::value(what, "layers that devices divide", kind));
            }
            for divided in sizes(layer) {
                if !divided.is_divided(ranks, exact) {
                    let what = format!("{} of layer {ix} under {TENSOR_PARALLEL} {ranks}", divided.field);
                    let by = divided.divisor(ranks, exact);
                    let or = if divided.is_repeated { " or a divisor" } else { "" };
                    let expected = format!("a multiple{or} of {by} (of this model: {})", self.whole_ranks(exact));
                    return Err(Error::value(what, expected, divided.size.to_string()));
                }
            }
        }
        match RANKS.contains(&ranks) {
            true => Ok(()),
            false => Err(Error::value(TENSOR_PARALLEL, "1, 2, 4 or 8 devices", ranks.to_string())),
        }
    }

    /// The numbers of ranks that divide the model, for people.
    fn whole_ranks(&self, exact: bool) -> String {
        let divides = |ranks: &usize| self.layers.iter().flat_map(sizes).all(|one| one.is_divided(*ranks, exact));
        let counts: Vec<String> = RANKS.iter().filter(|ranks| divides(ranks)).map(usize::to_string).collect();
        match counts.as_slice() {
            [] => "no number of devices does".to_owned(),
            counts => format!("{} devices do", counts.join(", ")),
        }
    }
}

/// What of a layer is not divided yet, for people.
fn undivided(layer: &LayerSpec) -> Option<&'static str> {
    if let Some(recurrent) = layer.recurrent() {
        return matches!(recurrent, RecurrentSpec::Scan(_)).then_some("a Mamba-1 layer");
    }
    let norm = layer.attention()?.head_norm?;
    (norm.span == HeadNormSpan::AllHeads).then_some("a norm over all heads")
}

/// The sizes of a recurrent layer that ranks divide.
fn of_state(recurrent: &RecurrentSpec) -> Vec<DividedSize> {
    let of_heads = |[keys, values, width]: [&'static str; 3], heads: DeltaHeads| {
        vec![
            DividedSize::plain(keys, heads.key_heads),
            DividedSize::plain(values, heads.value_heads),
            DividedSize::summed(width, heads.value_width()),
        ]
    };
    match recurrent {
        RecurrentSpec::Delta(DeltaSpec { heads, .. }) => of_heads(
            ["linear_num_key_heads", "linear_num_value_heads", "linear_num_value_heads * linear_value_head_dim"],
            *heads,
        ),
        RecurrentSpec::Channel(ChannelSpec { heads, .. }) => {
            let count = "linear_attn_config.num_heads";
            of_heads([count, count, "linear_attn_config: num_heads * head_dim"], *heads)
        }
        RecurrentSpec::Sum(SumSpec { heads, .. }) => {
            of_heads(["groups of Mamba", "heads of Mamba", "heads of Mamba * their width"], *heads)
        }
        RecurrentSpec::Scan(_) => Vec::new(),
        RecurrentSpec::Conv(ConvSpec { width, .. }) => vec![DividedSize::summed("hidden_size", *width)],
    }
}

fn sizes(layer: &LayerSpec) -> impl Iterator<Item = DividedSize> {
    let of_heads = layer.attention().into_iter().flat_map(|attention| {
        let AttentionSpec { heads, .. } = attention;
        let queries = DividedSize::plain("num_attention_heads", heads.q_heads);
        let keys = DividedSize { is_repeated: true, ..DividedSize::plain("num_key_value_heads", heads.kv_heads) };
        // Every rank has all latents.
        let (keys, read) = match attention.latent() {
            None => (Some(keys), "num_attention_heads * head_dim"),
            Some(_) => (None, "num_attention_heads * v_head_dim"),
        };
        [queries].into_iter().chain(keys).chain([DividedSize::summed(read, attention.out_width())])
    });
    let of_state = layer.recurrent().into_iter().flat_map(of_state);
    let of_dense = match layer.feed_forward {
        FeedForward::SharedExpert { gated: true, .. } => "shared_expert_intermediate_size",
        FeedForward::SharedExpert { gated: false, .. } => "n_shared_experts * moe_intermediate_size",
        _ => "intermediate_size",
    };
    let dense = layer.feed_forward.dense().map(|dense| (of_dense, dense.width));
    let experts = layer.feed_forward.experts().map(|experts| (experts.width_field.name(), experts.width));
    let inner = dense.into_iter().chain(experts);
    of_heads.chain(of_state).chain(inner.map(|(field, size)| DividedSize::summed(field, size)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Mixer;

    fn config(vocab: usize, tied: bool, experts: bool) -> ModelConfig {
        let mut fields = serde_json::json!({
            "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 4, "intermediate_size": 48, "vocab_size": vocab, "max_position_embeddings": 64,
            "rms_norm_eps": 1e-6, "tie_word_embeddings": tied
        });
        if experts {
            let more = serde_json::json!({
                "model_type": "qwen3_moe", "head_dim": 8, "num_experts": 6, "num_experts_per_tok": 2,
                "moe_intermediate_size": 16, "norm_topk_prob": true
            });
            fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        }
        ModelConfig::from_json(&fields.to_string()).unwrap()
    }

    #[test]
    fn projections_of_key_heads_that_several_ranks_have_are_repeated() {
        let two = |ranks: usize, members: usize| {
            let model = config(100, false, false);
            model.repeated_bytes(Dtype::F16, ranks, members) - (ranks - 1) * model.undivided_bytes(Dtype::F16, ranks)
        };
        assert_eq!([two(1, 1), two(2, 1), two(4, 1)], [0; 3]);
        // Four key heads of 8 on 8 ranks: each twice, in two layers.
        assert_eq!(two(8, 1), 2 * (2 * 4 * 8 * 32) * 2);
        // And their four queries of 8, where two ranks divide positions.
        assert_eq!(two(8, 2), 2 * (3 * 4 * 8 * 32) * 2);
    }

    #[test]
    fn latents_and_projections_to_them_are_on_every_rank() {
        let fields = serde_json::json!({
            "model_type": "deepseek_v3", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 48, "vocab_size": 100, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 4, "v_head_dim": 8, "first_k_dense_replace": 2
        });
        let model = ModelConfig::from_json(&fields.to_string()).unwrap();
        let whole = 2 * 100 * 32 + 2 * 2 * (24 + 16 + 4) * 32;
        assert_eq!(model.undivided_bytes(Dtype::F16, 2), whole);
        let plain = ModelConfig::from_json(&fields.to_string().replace("\"q_lora_rank\":24", "\"q_lora_rank\":null"));
        assert_eq!(plain.unwrap().undivided_bytes(Dtype::F16, 2), whole - 2 * 2 * 24 * 32);
        assert_eq!(model.repeated_bytes(Dtype::F16, 4, 1), 3 * whole);
        let copied = SharedKeys::Copied { copies: 2, why: WhyCopied::Latents };
        assert_eq!([model.shared_keys(2, false, true), model.shared_keys(2, true, false)], [copied; 2]);
        assert!(model.check_ranks(4, true).is_ok());
        let error = model.check_ranks(8, false).unwrap_err().to_string();
        assert!(error.contains("num_attention_heads of layer 0") && error.contains("found 4"), "{error}");
    }

    #[test]
    fn positions_are_divided_where_several_ranks_have_every_layers_key_heads() {
        let model = config(100, false, false);
        let why = |ranks, exact, can_divide| match model.shared_keys(ranks, exact, can_divide) {
            SharedKeys::Copied { copies: 2, why } => why,
            other => panic!("{other}"),
        };
        assert_eq!(model.shared_keys(4, false, true), SharedKeys::Nothing);
        assert_eq!(model.shared_keys(8, false, true), SharedKeys::Divided { members: 2 });
        assert_eq!(why(8, true, true), WhyCopied::Deterministic);
        assert_eq!(why(8, false, false), WhyCopied::Backend);
        // Gemma 4's layers without a window have fewer key heads than the others.
        let mut model = config(100, false, false);
        let Mixer::Attention(attention) = &mut model.layers[1].mixer else { panic!("llama has attention") };
        attention.heads.kv_heads = 1;
        let mixed = SharedKeys::Copied { copies: 4, why: WhyCopied::Layers };
        assert_eq!(model.shared_keys(4, false, true), mixed);
        assert_eq!(mixed.members(), 1);
    }

    #[test]
    fn embeddings_undivided_heads_and_routers_are_on_every_rank() {
        let bytes = |vocab, tied, experts| config(vocab, tied, experts).undivided_bytes(Dtype::F16, 2);
        let table = 2 * 100 * 32;
        assert_eq!(bytes(100, false, false), table);
        assert_eq!(bytes(100, true, false), table);
        // The head of an odd vocabulary is not divided.
        assert_eq!(bytes(101, false, false), 2 * 2 * 101 * 32);
        assert_eq!(bytes(100, false, true), table + 2 * (2 * 6 * 32));
    }

    #[test]
    fn no_model_has_three_ranks_or_sixteen() {
        let fields = serde_json::json!({
            "model_type": "llama", "hidden_size": 96, "num_hidden_layers": 1, "num_attention_heads": 48,
            "num_key_value_heads": 48, "intermediate_size": 192, "vocab_size": 64, "max_position_embeddings": 64,
            "rms_norm_eps": 1e-6
        });
        let model = ModelConfig::from_json(&fields.to_string()).unwrap();
        assert!(RANKS.into_iter().all(|ranks| model.check_ranks(ranks, true).is_ok()));
        for ranks in [3, 16] {
            let error = model.check_ranks(ranks, false).unwrap_err().to_string();
            assert!(error.contains(&format!("1, 2, 4 or 8 devices, found {ranks}")), "{error}");
        }
    }
}
