//! Lists the tensors of a checkpoint for a given config: names as in transformers, shapes, and the config field each
//! size comes from. `weights` loads them.

mod attention;
mod latent;
mod names;
mod recurrent;
mod tensors;

use offshoot_backend::Split;

use super::config::{
    Activation, DenseSpec, EXPERTS, ExpertForm, ExpertsSpec, FeedForward, LayerNorms, Mixer, ModelConfig, Norm,
    OutputHead, StackedForm,
};
use attention::q_width;
use latent::out_width;
pub use latent::{LatentTensors, QueryTensors};
use names::LayerNames;
pub use recurrent::{ConvTensors, RecurrentTensors, RuleTensors};
pub use tensors::{Dim, HEAD, HeadNormTensors, LinearTensors, NormTensors, TensorSpec};
use tensors::{EMBEDDING, FINAL_NORM, HIDDEN, linear, matrix, norm, vector};

/// The matrices of a linear layer of experts, as they are stored.
#[derive(Clone, Debug)]
pub enum ExpertMatrices {
    /// For each expert the matrices that are stacked.
    Separate(Vec<Vec<TensorSpec>>),
    Together {
        tensor: TensorSpec,
        form: StackedForm,
    },
}

/// The tensors of a mixture of experts.
#[derive(Clone, Debug)]
pub struct ExpertTensors {
    pub router: LinearTensors,
    /// What is added to the merits by which experts are chosen.
    pub choosing_bias: Option<TensorSpec>,
    /// The weights of the norm of the router's input, and a factor for each expert.
    pub router_scales: Option<[TensorSpec; 2]>,
    /// Gate and up, whose outputs are in turn if `alternating`.
    pub up: ExpertMatrices,
    pub alternating: bool,
    pub down: ExpertMatrices,
    /// The projections around experts of a width of their own.
    pub latent: Option<[LinearTensors; 2]>,
    /// Biases of gate and up (in turn where the outputs are), and of down: `[experts, out]` each.
    pub biases: Option<[TensorSpec; 2]>,
    /// The norms of a mixture beside a dense block: of the dense block's output, of the experts' input and output.
    pub norms: Option<[NormTensors; 3]>,
}

/// The tensors of a dense feed-forward block: gate and up if it is gated, else fc1, and down.
#[derive(Clone, Debug)]
pub struct DenseTensors {
    pub up: LinearTensors,
    pub down: LinearTensors,
    /// The numbers of xIELU, of which its factors are made: `alpha_p`, `alpha_n`, `beta` and `eps`.
    pub xielu: Option<[TensorSpec; 4]>,
}

/// The norms before and after a block.
#[derive(Clone, Debug)]
pub struct BlockNormTensors {
    pub before: Option<NormTensors>,
    pub after: Option<NormTensors>,
}

/// The tensors through which a layer reads its own input.
#[derive(Clone, Debug)]
pub struct LayerInputTensors {
    pub gate: LinearTensors,
    pub projection: LinearTensors,
    pub norm: NormTensors,
}

/// The tensors of a layer.
#[derive(Clone, Debug)]
pub struct LayerTensors {
    pub attention_norms: BlockNormTensors,
    /// Queries, keys and values, or what a recurrent layer projects first; of latent attention the first projection
    /// of queries. `None` if the layer mixes no positions.
    pub qkv: Option<LinearTensors>,
    pub latent: Option<LatentTensors>,
    /// The gate of what attention reads; another selection of the same tensors where these hold both.
    pub gate: Option<LinearTensors>,
    pub recurrent: Option<RecurrentTensors>,
    pub head_norms: Option<HeadNormTensors>,
    pub sinks: Option<TensorSpec>,
    /// The projection of what was mixed.
    pub out: Option<LinearTensors>,
    /// Both `None` if attention and feed-forward share one norm.
    pub feed_forward_norms: BlockNormTensors,
    pub dense: Option<DenseTensors>,
    /// The gate of the expert that all rows share.
    pub shared_gate: Option<LinearTensors>,
    pub experts: Option<ExpertTensors>,
    pub input: Option<LayerInputTensors>,
    pub output_scale: Option<TensorSpec>,
}

/// The tensors that make the inputs of all layers.
#[derive(Clone, Debug)]
pub struct InputTensors {
    pub embed: TensorSpec,
    pub projection: LinearTensors,
    pub norm: TensorSpec,
}

/// The tensors of a model.
#[derive(Clone, Debug)]
pub struct Layout {
    pub embed: TensorSpec,
    /// The table of positions, which are added to the embeddings.
    pub positions: Option<TensorSpec>,
    pub inputs: Option<InputTensors>,
    pub layers: Vec<LayerTensors>,
    pub final_norm: NormTensors,
    /// The output layer; `None` if it is tied to the embedding table, or the model is a scorer.
    pub head: Option<TensorSpec>,
    pub head_bias: Option<TensorSpec>,
    /// The layers behind the final norm of a scorer, in their order; none of a generator or an embedder.
    pub values: Vec<LinearTensors>,
}

impl ExpertMatrices {
    pub fn tensors(&self) -> impl Iterator<Item = &TensorSpec> {
        self.stacks().into_iter().flatten()
    }

    /// Groups of tensors that are stacked into one matrix.
    fn stacks(&self) -> Vec<&[TensorSpec]> {
        match self {
            ExpertMatrices::Separate(experts) => experts.iter().map(Vec::as_slice).collect(),
            ExpertMatrices::Together { tensor, .. } => vec![std::slice::from_ref(tensor)],
        }
    }
}

impl ExpertTensors {
    /// The tensors of which a row reads those of its experts only.
    pub fn matrices(&self) -> impl Iterator<Item = &TensorSpec> {
        self.up.tensors().chain(self.down.tensors()).chain(self.biases.iter().flatten())
    }

    fn tensors(&self) -> impl Iterator<Item = &TensorSpec> {
        let norms = self.norms.iter().flatten().flat_map(NormTensors::tensors);
        let router = self.router.tensors().chain(&self.choosing_bias).chain(self.router_scales.iter().flatten());
        let latent = self.latent.iter().flatten().flat_map(LinearTensors::tensors);
        router.chain(latent).chain(norms).chain(self.matrices())
    }
}

impl BlockNormTensors {
    fn tensors(&self) -> impl Iterator<Item = &TensorSpec> {
        self.before.iter().chain(&self.after).flat_map(NormTensors::tensors)
    }
}

impl LayerTensors {
    /// The first projections of what mixes positions. Panics if nothing does.
    pub fn projections(&self) -> &LinearTensors {
        self.qkv.as_ref().expect("a layer that mixes positions projects what it reads")
    }

    /// Groups of tensors that are stacked into one matrix.
    pub fn stacks(&self) -> Vec<&[TensorSpec]> {
        let experts = self.experts.iter().flat_map(|experts| [&experts.up, &experts.down]);
        let linears = self.linears().into_iter().map(|linear| linear.weights.as_slice());
        let maps = self.latent.iter().map(|latent| std::slice::from_ref(&latent.maps));
        linears.chain(maps).chain(experts.flat_map(ExpertMatrices::stacks)).collect()
    }

    /// Its linear layers, without those of experts.
    fn linears(&self) -> Vec<&LinearTensors> {
        let dense = self.dense.iter().flat_map(|dense| [&dense.up, &dense.down]);
        let router = self.experts.iter().map(|experts| &experts.router);
        let around = self.experts.iter().flat_map(|experts| experts.latent.iter().flatten());
        let input = self.input.iter().flat_map(|input| [&input.gate, &input.projection]);
        let gates =
            self.gate.iter().chain(self.recurrent.iter().flat_map(RecurrentTensors::linears)).chain(&self.shared_gate);
        let latent = self.latent.iter().flat_map(LatentTensors::linears);
        let mixer = self.qkv.iter().chain(&self.out).chain(latent).chain(gates);
        mixer.chain(dense).chain(router).chain(around).chain(input).collect()
    }

    /// Experts that are stored as blocks and scales.
    pub fn mxfp4(&self) -> impl Iterator<Item = &TensorSpec> {
        let experts = self.experts.iter().flat_map(|experts| [&experts.up, &experts.down]);
        experts.filter_map(|matrices| match matrices {
            ExpertMatrices::Together { tensor, form: StackedForm::Mxfp4 } => Some(tensor),
            _ => None,
        })
    }

    fn tensors(&self) -> impl Iterator<Item = &TensorSpec> {
        let norms = self.attention_norms.tensors().chain(self.feed_forward_norms.tensors());
        let heads = self.head_norms.iter().flat_map(|norms| norms.query.iter().chain(norms.key.iter().flatten()));
        let latent = self.latent.iter().flat_map(LatentTensors::tensors);
        let qkv = || self.qkv.iter().flat_map(LinearTensors::tensors);
        let out = self.out.iter().flat_map(LinearTensors::tensors);
        let attention = qkv().chain(latent).chain(heads).chain(&self.sinks).chain(out);
        // A tensor that holds the gate too is listed once.
        let is_new = |tensor: &&TensorSpec| qkv().all(|other| other.name != tensor.name);
        let gate = self.gate.iter().flat_map(LinearTensors::tensors).filter(is_new);
        let recurrent = self.recurrent.iter().flat_map(|recurrent| recurrent.tensors(self.qkv.as_ref()));
        let shared_gate = self.shared_gate.iter().flat_map(LinearTensors::tensors);
        let attention = attention.chain(gate).chain(recurrent).chain(shared_gate);
        let dense = self
            .dense
            .iter()
            .flat_map(|dense| dense.up.tensors().chain(dense.down.tensors()).chain(dense.xielu.iter().flatten()));
        let experts = self.experts.iter().flat_map(ExpertTensors::tensors);
        let input = self.input.iter();
        let input =
            input.flat_map(|input| input.gate.tensors().chain(input.projection.tensors()).chain(input.norm.tensors()));
        let all = norms.chain(attention).chain(dense).chain(experts).chain(input).chain(&self.output_scale);
        // As a list: each use of the chain itself would be compiled anew.
        all.collect::<Vec<_>>().into_iter()
    }
}

impl Layout {
    pub fn of(config: &ModelConfig) -> Self {
        let hidden = Dim { size: config.hidden, field: HIDDEN };
        let vocab = Dim { size: config.vocab, field: "vocab_size" };
        let layers = config.layers.iter().enumerate();
        let generates = !config.is_scorer();
        Self {
            embed: matrix(EMBEDDING, vocab, hidden),
            positions: config
                .positions
                .map(|size| matrix("model.embed_positions", Dim { size, field: "max_position_embeddings" }, hidden)),
            inputs: config.per_layer_inputs.map(|inputs| {
                let width = input_width(inputs.width);
                let all = Dim {
                    size: inputs.width * config.layers.len(),
                    field: "num_hidden_layers * hidden_size_per_layer_input",
                };
                let rows = Dim { size: inputs.vocab, field: "vocab_size_per_layer_input" };
                InputTensors {
                    embed: matrix("model.embed_tokens_per_layer", rows, all),
                    projection: linear(&[("model.per_layer_model_projection".to_owned(), all)], hidden, false),
                    norm: vector("model.per_layer_projection_norm.weight", width),
                }
            }),
            layers: layers.map(|(ix, spec)| LayerNames { ix, hidden, config, spec }.tensors()).collect(),
            final_norm: norm(FINAL_NORM, config.final_norm, hidden),
            head: (generates && !config.tied_embeddings).then(|| matrix(HEAD, vocab, hidden)),
            head_bias: (generates && config.head_bias).then(|| vector("lm_head.bias", vocab)),
            values: values(config, hidden, vocab),
        }
    }

    /// Beginnings of names that layers may have and nothing reads: of keys, in layers without keys of their own, and of
    /// a bias of LongCat's routers, which transformers ignores, too.
    pub fn unused(&self) -> impl Iterator<Item = String> {
        self.unused_keys().chain(self.router_biases())
    }

    /// The names that biases of LongCat's routers have.
    pub fn router_biases(&self) -> impl Iterator<Item = String> {
        let routers = self.layers.iter().filter_map(|layer| Some(&layer.experts.as_ref()?.router.weights[0].name));
        let layers = routers.filter_map(|name| name.strip_suffix("router.classifier.weight"));
        layers.map(|layer| format!("{layer}router.classifier.bias"))
    }

    fn unused_keys(&self) -> impl Iterator<Item = String> {
        let alone = |layer: &LayerTensors| match layer.qkv.as_ref()?.weights.as_slice() {
            [one] if layer.latent.is_none() => Some(one.name.ends_with("q_proj.weight")),
            _ => None,
        };
        let silent = self.layers.iter().enumerate().filter(move |(_, layer)| alone(layer) == Some(true));
        silent.flat_map(|(ix, _)| {
            ["k_proj.", "v_proj.", "k_norm.", "v_norm."].map(|name| format!("model.layers.{ix}.self_attn.{name}"))
        })
    }

    /// The matrix whose dtype is that of the layers: the first one of the first mixer.
    pub fn first_matrix(&self) -> &TensorSpec {
        let qkv = self.layers.iter().find_map(|layer| layer.qkv.as_ref());
        qkv.map_or(&self.embed, |qkv| &qkv.weights[0])
    }

    /// All linear layers but the output layer and those of experts.
    pub fn linears(&self) -> impl Iterator<Item = &LinearTensors> {
        self.inputs.iter().map(|inputs| &inputs.projection).chain(self.layers.iter().flat_map(LayerTensors::linears))
    }

    /// Tensors that become matrices; one may be listed twice.
    pub fn matrices(&self) -> impl Iterator<Item = &TensorSpec> {
        let inputs =
            self.inputs.iter().flat_map(|inputs| std::iter::once(&inputs.embed).chain(&inputs.projection.weights));
        let layers = self.layers.iter().flat_map(LayerTensors::stacks).flatten();
        let values = self.values.iter().flat_map(|layer| &layer.weights);
        inputs.chain(layers).chain(&self.head).chain(values).chain(&self.positions).chain(std::iter::once(&self.embed))
    }

    /// Every tensor once.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorSpec> {
        let inputs = self.inputs.iter().flat_map(|inputs| {
            std::iter::once(&inputs.embed).chain(inputs.projection.tensors()).chain(std::iter::once(&inputs.norm))
        });
        let layers = self.layers.iter().flat_map(LayerTensors::tensors);
        // A scorer may read rows of the embedding table.
        let values = self.values.iter().flat_map(LinearTensors::tensors).filter(|spec| !spec.is_embedding());
        let end = self.final_norm.tensors().chain(&self.head).chain(&self.head_bias).chain(values);
        std::iter::once(&self.embed)
            .chain(&self.positions)
            .chain(inputs)
            .chain(layers)
            .chain(end)
            .collect::<Vec<_>>()
            .into_iter()
    }
}

/// The layers of a scorer behind the final norm.
fn values(config: &ModelConfig, hidden: Dim, vocab: Dim) -> Vec<LinearTensors> {
    match &config.output {
        OutputHead::Tokens | OutputHead::Hidden => Vec::new(),
        OutputHead::Values(head) => {
            let mut inputs = hidden;
            let layer = head.layers().map(|layer| {
                let outputs = Dim { size: layer.outputs, field: "values of the layer" };
                let columns = std::mem::replace(&mut inputs, outputs);
                linear(&[(layer.module.clone(), outputs)], columns, layer.bias)
            });
            layer.collect()
        }
        OutputHead::TokenLogits(tokens) => {
            let module = if config.tied_embeddings { EMBEDDING } else { HEAD };
            let whole = linear(&[(module.to_owned(), vocab)], hidden, false);
            let biases = if config.head_bias { vec![vector("lm_head.bias", vocab)] } else { Vec::new() };
            let rows = tokens.iter().map(|token| token.ix()..token.ix() + 1).collect();
            vec![LinearTensors { biases, rows: Some(rows), ..whole }]
        }
    }
}

fn input_width(size: usize) -> Dim {
    Dim { size, field: "hidden_size_per_layer_input" }
}

impl LayerNames<'_> {
    fn tensors(&self) -> LayerTensors {
        let (spec, hidden) = (self.spec, self.hidden);
        let none = BlockNormTensors { before: None, after: None };
        let (attention_norms, feed_forward_norms) = match spec.norms {
            LayerNorms::Sequential { attention, feed_forward } => {
                let norm = |module, kind: Option<Norm>| kind.map(|kind| self.norm(module, kind));
                let behind = "post_attention_layernorm";
                // Where none is behind attention, the one before the next block has its name.
                let between = if attention.after().is_some() { "pre_feedforward_layernorm" } else { behind };
                let around_attention = BlockNormTensors {
                    before: norm("input_layernorm", attention.before()),
                    after: norm(behind, attention.after()),
                };
                let around_feed_forward = BlockNormTensors {
                    before: norm(between, feed_forward.before()),
                    after: norm("post_feedforward_layernorm", feed_forward.after()),
                };
                (around_attention, around_feed_forward)
            }
            LayerNorms::Parallel(shared) => {
                (BlockNormTensors { before: Some(self.norm("input_layernorm", shared)), after: None }, none)
            }
            LayerNorms::ParallelOfTwo { attention, feed_forward } => {
                let before = |module, kind| BlockNormTensors { before: Some(self.norm(module, kind)), after: None };
                (before("input_layernorm", attention), before("post_attention_layernorm", feed_forward))
            }
        };
        let attention = spec.attention();
        let sinks = attention.filter(|attention| attention.sinks).map(|attention| {
            let heads = Dim { size: attention.heads.q_heads, field: "num_attention_heads" };
            vector(&self.at("self_attn.sinks"), heads)
        });
        let mut latent = None;
        let (qkv, gate, recurrent, out) = match &spec.mixer {
            Mixer::Attention(attention) => {
                let of_latents = attention.latent().map(|spec| (self.latent(attention, &spec), spec.heads));
                let (qkv, read) = match of_latents {
                    None => (self.qkv(attention), q_width(attention.heads)),
                    Some(((tensors, queries), heads)) => {
                        latent = Some(tensors);
                        (queries, out_width(heads))
                    }
                };
                let out =
                    linear(&[(self.at("self_attn.o_proj"), hidden)], read, attention.out_bias).split(Split::Inputs);
                (Some(qkv), self.query_gate(attention), None, Some(out))
            }
            Mixer::Recurrent(recurrent) => {
                let (tensors, [input, out]) = self.recurrent(recurrent);
                (Some(input), None, Some(tensors), Some(out))
            }
            Mixer::None => (None, None, None, None),
        };
        LayerTensors {
            attention_norms,
            qkv,
            latent,
            gate,
            recurrent,
            head_norms: attention.and_then(|attention| self.head_norms(attention)),
            sinks,
            out,
            feed_forward_norms,
            shared_gate: matches!(spec.feed_forward, FeedForward::SharedExpert { gated: true, .. }).then(|| {
                let one = Dim { size: 1, field: "one gate" };
                linear(&[(self.at("mlp.shared_expert_gate"), one)], hidden, false)
            }),
            dense: spec.feed_forward.dense().map(|dense| self.dense(dense)),
            experts: spec.feed_forward.experts().map(|experts| self.experts(experts)),
            input: self.config.per_layer_inputs.map(|inputs| {
                let width = input_width(inputs.width);
                LayerInputTensors {
                    gate: linear(&[(self.at("per_layer_input_gate"), width)], hidden, false),
                    projection: linear(&[(self.at("per_layer_projection"), hidden)], width, false),
                    norm: self.norm("post_per_layer_input_norm", self.config.final_norm),
                }
            }),
            output_scale: spec
                .output_scale
                .then(|| vector(&self.at("layer_scalar"), Dim { size: 1, field: "one number" })),
        }
    }

    fn dense(&self, dense: &DenseSpec) -> DenseTensors {
        let DenseSpec { activation, width, bias, .. } = *dense;
        let (block, field) = match self.spec.feed_forward {
            FeedForward::SharedExpert { gated: true, .. } => ("mlp.shared_expert", "shared_expert_intermediate_size"),
            FeedForward::SharedExpert { .. } => ("mlp.shared_experts", "n_shared_experts * moe_intermediate_size"),
            _ => ("mlp", "intermediate_size"),
        };
        let inner = Dim { size: width, field };
        let up = |name: &str, inner| (self.at(&format!("{block}.{name}")), inner);
        let both = Dim { size: 2 * width, field: "2 * intermediate_size" };
        let up = match activation {
            Activation::Gated(_) if self.modules().fused_up => vec![up("gate_up_proj", both)],
            Activation::Gated(_) => vec![up("gate_proj", inner), up("up_proj", inner)],
            _ => vec![up("up_proj", inner)],
        };
        let down = (self.at(&format!("{block}.down_proj")), self.hidden);
        DenseTensors {
            up: linear(&up, self.hidden, bias).split(Split::outputs(vec![width; activation.up_width(width) / width])),
            down: linear(&[down], inner, bias).split(Split::Inputs),
            xielu: (activation == Activation::Xielu).then(|| {
                let number = |name: &str, shape: &[Dim]| TensorSpec {
                    name: self.at(&format!("mlp.act_fn.{name}")),
                    shape: shape.to_vec(),
                };
                let one = [Dim { size: 1, field: "one number" }];
                [number("alpha_p", &one), number("alpha_n", &one), number("beta", &[]), number("eps", &[])]
            }),
        }
    }

    fn experts(&self, experts: &ExpertsSpec) -> ExpertTensors {
        let form = self.modules().experts;
        let (of_experts, of_routed) = match self.config.family.is_latent() {
            true if experts.routed() > experts.count => ("n_routed_experts", "n_routed_experts + zero_expert_num"),
            true => ("n_routed_experts", "n_routed_experts"),
            false => ("num_experts or num_local_experts", "num_experts or num_local_experts"),
        };
        let count = Dim { size: experts.count, field: of_experts };
        let routed = Dim { size: experts.routed(), field: of_routed };
        let width = Dim { size: experts.width, field: experts.width_field.name() };
        let is_gated = matches!(experts.activation, Activation::Gated(_));
        let up_width = match is_gated {
            true => Dim { size: 2 * experts.width, field: experts.width_field.doubled() },
            false => width,
        };
        let outer = experts.latent.map_or(self.hidden, |size| Dim { size, field: "moe_latent_size" });
        let tensor = |name: &str, shape: &[Dim]| TensorSpec {
            name: self.at(&format!("{EXPERTS}.{name}")),
            shape: shape.to_vec(),
        };
        let stacked_up = if is_gated { "gate_up_proj" } else { "up_proj" };
        let (up, down) = match form {
            ExpertForm::Separate { gate, up, down } => {
                let of = |expert: usize, module: &str, rows, cols| {
                    matrix(&self.at(&format!("{EXPERTS}.{expert}.{module}")), rows, cols)
                };
                let up_modules: &[&str] = if is_gated { &[gate, up] } else { &[up] };
                let ups_of = |e: usize| up_modules.iter().map(|module| of(e, module, width, outer)).collect();
                let ups = (0..experts.count).map(ups_of).collect();
                let downs = (0..experts.count).map(|e| vec![of(e, down, outer, width)]).collect();
                (ExpertMatrices::Separate(ups), ExpertMatrices::Separate(downs))
            }
            ExpertForm::Stacked(form) => {
                let of = |name: &str, rows, cols| {
                    let is_turned = matches!(form, StackedForm::Transposed { .. });
                    let (rows, cols) = if is_turned { (cols, rows) } else { (rows, cols) };
                    ExpertMatrices::Together { tensor: tensor(name, &[count, rows, cols]), form }
                };
                (of(stacked_up, up_width, outer), of("down_proj", outer, width))
            }
        };
        ExpertTensors {
            router: linear(&[(self.at("mlp.gate"), routed)], self.hidden, experts.bias),
            choosing_bias: experts.choosing_bias.then(|| vector(&self.at("mlp.gate.e_score_correction_bias"), routed)),
            router_scales: experts.router_norm.map(|_| {
                [vector(&self.at("router.scale"), self.hidden), vector(&self.at("router.per_expert_scale"), count)]
            }),
            latent: experts.latent.is_some().then(|| {
                let around = |module: &str, rows, cols| linear(&[(self.at(module), rows)], cols, false);
                [around("mlp.fc1_latent_proj", outer, self.hidden), around("mlp.fc2_latent_proj", self.hidden, outer)]
            }),
            up,
            alternating: matches!(
                form,
                ExpertForm::Stacked(StackedForm::Transposed { alternate: true } | StackedForm::Mxfp4)
            ),
            down,
            biases: experts.bias.then(|| {
                [tensor(&format!("{stacked_up}_bias"), &[count, up_width]), tensor("down_proj_bias", &[count, outer])]
            }),
            norms: match self.spec.feed_forward {
                FeedForward::DenseAndExperts { norm, .. } => Some(
                    ["post_feedforward_layernorm_1", "pre_feedforward_layernorm_2", "post_feedforward_layernorm_2"]
                        .map(|module| self.norm(module, norm)),
                ),
                _ => None,
            },
        }
    }
}
