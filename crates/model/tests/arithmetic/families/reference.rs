//! A decoder in straight f64 loops.

use std::collections::BTreeMap;
use std::path::Path;

use offshoot_core::dice::Dice;
use offshoot_core::mix::fnv1a;
use safetensors::tensor::TensorView;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Act {
    Silu,
    Gelu,
    Clamped,
    /// Not gated (Phi).
    PlainGelu,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Order {
    Before,
    After,
    Around,
    Parallel,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HeadNorms {
    None,
    Head,
    All,
}

#[derive(Clone, Debug)]
pub struct Rope {
    /// Radians a position of each pair; the pair is made of elements `i` and `i + pairs`.
    pub frequencies: Vec<f64>,
    pub magnitude: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Weighing {
    Softmax,
    SoftmaxNormalised,
    SoftmaxOfChosen,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stored {
    /// `mlp.experts.3.gate_proj`, or the names of Mixtral.
    Qwen,
    Mixtral,
    /// `mlp.experts.gate_up_proj`, as transformers 5 names and stacks them.
    Stacked,
    GptOss,
    /// The same as `experts.gate_up_proj`.
    Gemma,
}

#[derive(Clone, Debug)]
pub struct Experts {
    pub count: usize,
    pub chosen: usize,
    pub width: usize,
    pub weighing: Weighing,
    pub stored: Stored,
}

#[derive(Clone, Debug)]
pub struct Layer {
    pub heads: usize,
    pub kv_heads: usize,
    pub dim: usize,
    pub window: Option<usize>,
    pub rope: Option<Rope>,
    /// Queries are multiplied by `1 + .0 ln(1 + floor(position / .1))`.
    pub growth: Option<(f64, usize)>,
    pub scale: f64,
    pub softcap: Option<f64>,
    pub sinks: bool,
    pub head_norms: HeadNorms,
    pub value_norm: bool,
    pub keys_are_values: bool,
    /// The layer whose keys and values are read.
    pub reads: Option<usize>,
    pub qkv_bias: bool,
    pub out_bias: bool,
    pub fused: bool,
    pub mlp_bias: bool,
    pub act: Act,
    pub dense: Option<usize>,
    pub experts: Option<Experts>,
    pub scalar: bool,
}

#[derive(Clone, Debug)]
pub struct Spec {
    pub vocab: usize,
    pub hidden: usize,
    pub eps: f64,
    pub plus_one: bool,
    pub layer_norm: bool,
    pub order: Order,
    pub embed_scale: f64,
    pub final_softcap: Option<f64>,
    pub tied: bool,
    /// Width and rows of the table of inputs by layer.
    pub inputs: Option<(usize, usize)>,
    pub gemma_names: bool,
    pub layers: Vec<Layer>,
}

/// Tensors by name, drawn when they are first asked for.
pub struct Tensors {
    seed: u64,
    prefix: String,
    drawn: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
}

impl Tensors {
    /// `prefix`: what stands in place of `model.`.
    pub fn new(seed: u64, prefix: &str) -> Self {
        Self { seed, prefix: prefix.to_owned(), drawn: BTreeMap::new() }
    }

    pub fn get(&mut self, name: &str, shape: &[usize], centre: f32, reach: f32) -> Vec<f64> {
        let name = match name.strip_prefix("model.") {
            Some(rest) => format!("{}{rest}", self.prefix),
            None if self.prefix.starts_with("language_model.") => format!("language_model.{name}"),
            None => name.to_owned(),
        };
        let seed = self.seed;
        let (kept, values) = self.drawn.entry(name.clone()).or_insert_with(|| {
            let numbers = Dice::new(seed ^ fnv1a(name.as_bytes())).numbers(shape.iter().product());
            (shape.to_vec(), numbers.into_iter().map(|x| centre + reach * x).collect())
        });
        assert_eq!(kept, shape, "{name}");
        values.iter().map(|&x| f64::from(x)).collect()
    }

    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Matrix {
        let reach = (3.0 / cols as f32).sqrt();
        Matrix { rows, cols, values: self.get(name, &[rows, cols], 0.0, reach) }
    }

    pub fn near_one(&mut self, name: &str, len: usize) -> Vec<f64> {
        self.get(name, &[len], 1.0, 0.4)
    }

    pub fn bias(&mut self, name: &str, shape: &[usize]) -> Vec<f64> {
        self.get(name, shape, 0.0, 0.3)
    }

    pub fn save(&self, path: &Path) {
        let bytes: BTreeMap<&String, Vec<u8>> =
            self.drawn.iter().map(|(name, (_, x))| (name, x.iter().flat_map(|x| x.to_le_bytes()).collect())).collect();
        let views = self.drawn.iter().map(|(name, (shape, _))| {
            (name.clone(), TensorView::new(safetensors::Dtype::F32, shape.clone(), &bytes[name]).unwrap())
        });
        safetensors::serialize_to_file(views, None, path).unwrap();
    }
}

pub struct Matrix {
    rows: usize,
    cols: usize,
    values: Vec<f64>,
}

impl Matrix {
    pub fn row(&self, row: usize) -> &[f64] {
        &self.values[row * self.cols..][..self.cols]
    }

    pub fn times(&self, x: &[f64]) -> Vec<f64> {
        assert_eq!(x.len(), self.cols);
        let row = |r: usize| self.row(r).iter().zip(x).map(|(w, x)| w * x).sum();
        (0..self.rows).map(row).collect()
    }
}

pub fn plus(a: &mut [f64], b: &[f64]) {
    assert_eq!(a.len(), b.len());
    a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}

pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn gate(act: Act, gate: f64, up: f64) -> f64 {
    match act {
        Act::Silu => gate * sigmoid(gate) * up,
        Act::Gelu => gelu(gate) * up,
        Act::Clamped => {
            let (gate, up) = (gate.min(7.0), up.clamp(-7.0, 7.0));
            gate * sigmoid(1.702 * gate) * (up + 1.0)
        }
        Act::PlainGelu => unreachable!("not gated"),
    }
}

pub fn rms(x: &[f64], eps: f64) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    x.iter().map(|x| x / (mean + eps).sqrt()).collect()
}

/// Of one layer, `[position][head * dim]`.
struct KeysAndValues {
    keys: Vec<Vec<f64>>,
    values: Vec<Vec<f64>>,
}

/// Runs one model.
struct Run<'a> {
    spec: &'a Spec,
    tensors: &'a mut Tensors,
    /// By layer.
    stored: Vec<KeysAndValues>,
    inputs: Vec<Vec<f64>>,
}

/// The logits of every position, `[tokens][vocab]`.
pub fn logits(spec: &Spec, tensors: &mut Tensors, tokens: &[usize]) -> Vec<f64> {
    let rows = final_rows(spec, tensors, tokens);
    let table = if spec.tied { "model.embed_tokens.weight" } else { "lm_head.weight" };
    let head = tensors.matrix(table, spec.vocab, spec.hidden);
    let bias = spec.layer_norm.then(|| tensors.bias("lm_head.bias", &[spec.vocab]));
    let mut all = Vec::new();
    for row in &rows {
        let mut logits = head.times(row);
        if let Some(bias) = &bias {
            plus(&mut logits, bias);
        }
        let cap = |x: f64| spec.final_softcap.map_or(x, |cap| cap * (x / cap).tanh());
        all.extend(logits.into_iter().map(cap));
    }
    all
}

/// A linear layer of a scorer: its module, its outputs, and whether it has a bias.
pub type ValueLayer<'a> = (&'a str, usize, bool);

/// A scorer's values of every row, by linear layers with a ReLU between each two.
pub fn values(spec: &Spec, tensors: &mut Tensors, tokens: &[usize], layers: &[ValueLayer<'_>]) -> Vec<f64> {
    let mut rows = final_rows(spec, tensors, tokens);
    for (number, &(module, outputs, has_bias)) in layers.iter().enumerate() {
        let weight = tensors.matrix(&format!("{module}.weight"), outputs, rows[0].len());
        let bias = has_bias.then(|| tensors.bias(&format!("{module}.bias"), &[outputs]));
        for row in &mut rows {
            if number > 0 {
                row.iter_mut().for_each(|x| *x = x.max(0.0));
            }
            *row = weight.times(row);
            if let Some(bias) = &bias {
                plus(row, bias);
            }
        }
    }
    rows.concat()
}

/// The rows behind the final norm.
fn final_rows(spec: &Spec, tensors: &mut Tensors, tokens: &[usize]) -> Vec<Vec<f64>> {
    let embed = tensors.matrix("model.embed_tokens.weight", spec.vocab, spec.hidden);
    let mut rows: Vec<Vec<f64>> = tokens
        .iter()
        .map(|&token| embed.values[token * spec.hidden..][..spec.hidden].iter().map(|x| x * spec.embed_scale).collect())
        .collect();
    let mut run = Run { spec, tensors, stored: Vec::new(), inputs: Vec::new() };
    run.make_inputs(tokens, &rows);
    for ix in 0..spec.layers.len() {
        run.layer(ix, &mut rows);
    }
    let name = if spec.layer_norm { "model.final_layernorm" } else { "model.norm" };
    rows.iter().map(|row| run.norm(name, row)).collect()
}

impl Run<'_> {
    fn weights(&mut self, name: &str, len: usize) -> Vec<f64> {
        let weights = self.tensors.near_one(name, len);
        if self.spec.plus_one { weights.iter().map(|w| w + 1.0).collect() } else { weights }
    }

    fn norm(&mut self, module: &str, x: &[f64]) -> Vec<f64> {
        let weight = self.weights(&format!("{module}.weight"), x.len());
        if self.spec.layer_norm {
            let bias = self.tensors.bias(&format!("{module}.bias"), &[x.len()]);
            let mean = x.iter().sum::<f64>() / x.len() as f64;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
            let one = |i: usize| (x[i] - mean) / (variance + self.spec.eps).sqrt() * weight[i] + bias[i];
            return (0..x.len()).map(one).collect();
        }
        rms(x, self.spec.eps).iter().zip(&weight).map(|(x, w)| x * w).collect()
    }

    fn linear(&mut self, module: &str, x: &[f64], outputs: usize, bias: bool) -> Vec<f64> {
        let mut y = self.tensors.matrix(&format!("{module}.weight"), outputs, x.len()).times(x);
        if bias {
            plus(&mut y, &self.tensors.bias(&format!("{module}.bias"), &[outputs]));
        }
        y
    }

    fn make_inputs(&mut self, tokens: &[usize], rows: &[Vec<f64>]) {
        let Some((width, vocab)) = self.spec.inputs else { return };
        let (all, hidden) = (width * self.spec.layers.len(), self.spec.hidden as f64);
        let table = self.tensors.matrix("model.embed_tokens_per_layer.weight", vocab, all);
        for (&token, row) in tokens.iter().zip(rows) {
            let projected = self.linear("model.per_layer_model_projection", row, all, false);
            let mut inputs = Vec::new();
            for (layer, part) in projected.chunks_exact(width).enumerate() {
                let part: Vec<f64> = part.iter().map(|x| x / hidden.sqrt()).collect();
                let part = self.norm("model.per_layer_projection_norm", &part);
                let own = &table.values[token * all + layer * width..][..width];
                let mixed = |(part, own): (&f64, &f64)| (part + own * (width as f64).sqrt()) / 2f64.sqrt();
                inputs.extend(part.iter().zip(own).map(mixed));
            }
            self.inputs.push(inputs);
        }
    }

    fn layer(&mut self, ix: usize, rows: &mut [Vec<f64>]) {
        let (spec, layer) = (self.spec, self.spec.layers[ix].clone());
        let at = |module: &str| format!("model.layers.{ix}.{module}");
        let before = |run: &mut Self, module: &str, x: &[f64]| match spec.order {
            Order::After => x.to_vec(),
            _ => run.norm(&at(module), x),
        };
        let after = |run: &mut Self, module: &str, x: Vec<f64>| match spec.order {
            Order::After | Order::Around => run.norm(&at(module), &x),
            _ => x,
        };
        let normed: Vec<Vec<f64>> = rows.iter().map(|x| before(self, "input_layernorm", x)).collect();
        let queries = self.project(ix, &layer, &normed);
        for (position, row) in rows.iter_mut().enumerate() {
            let attended = self.attend(ix, &layer, position, &queries[position]);
            let out = if spec.layer_norm { "self_attn.dense" } else { "self_attn.o_proj" };
            let out = self.linear(&at(out), &attended, spec.hidden, layer.out_bias);
            plus(row, &after(self, "post_attention_layernorm", out));
        }
        for (position, row) in rows.iter_mut().enumerate() {
            let own = match (spec.order, spec.gemma_names) {
                (Order::Parallel, _) => normed[position].clone(),
                (_, true) => before(self, "pre_feedforward_layernorm", row),
                (_, false) => before(self, "post_attention_layernorm", row),
            };
            let block = self.feed_forward(ix, &layer, row, &own);
            plus(row, &after(self, "post_feedforward_layernorm", block));
            if let Some((width, _)) = spec.inputs {
                let gates = self.linear(&at("per_layer_input_gate"), row, width, false);
                let input = &self.inputs[position][ix * width..][..width];
                let gated: Vec<f64> = gates.iter().zip(input).map(|(g, x)| gelu(*g) * x).collect();
                let back = self.linear(&at("per_layer_projection"), &gated, spec.hidden, false);
                plus(row, &self.norm(&at("post_per_layer_input_norm"), &back));
            }
            if layer.scalar {
                let scalar = self.tensors.near_one(&at("layer_scalar"), 1)[0];
                row.iter_mut().for_each(|x| *x *= scalar);
            }
        }
    }

    /// The queries of all rows; keys and values are stored.
    fn project(&mut self, ix: usize, layer: &Layer, normed: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let at = |module: &str| format!("model.layers.{ix}.self_attn.{module}");
        let (q, kv) = (layer.heads * layer.dim, layer.kv_heads * layer.dim);
        let (mut queries, mut keys, mut values) = (Vec::new(), Vec::new(), Vec::new());
        for (position, x) in normed.iter().enumerate() {
            let (mut query, mut key, mut value);
            if layer.fused {
                let all = self.linear(&at("qkv_proj"), x, q + 2 * kv, layer.qkv_bias);
                (query, key, value) = (all[..q].to_vec(), all[q..q + kv].to_vec(), all[q + kv..].to_vec());
            } else {
                query = self.linear(&at("q_proj"), x, q, layer.qkv_bias);
                (key, value) = (Vec::new(), Vec::new());
                if layer.reads.is_none() {
                    key = self.linear(&at("k_proj"), x, kv, layer.qkv_bias);
                    value = match layer.keys_are_values {
                        true => key.clone(),
                        false => self.linear(&at("v_proj"), x, kv, layer.qkv_bias),
                    };
                }
            }
            query = self.head_norm(layer, &at("q_norm"), query);
            if layer.reads.is_none() {
                key = self.head_norm(layer, &at("k_norm"), key);
                if layer.value_norm {
                    value = value.chunks(layer.dim).flat_map(|head| rms(head, self.spec.eps)).collect();
                }
            }
            for heads in [&mut query, &mut key] {
                heads.chunks_mut(layer.dim).for_each(|head| rotate(layer.rope.as_ref(), head, position));
            }
            if let Some((beta, context)) = layer.growth {
                let factor = 1.0 + beta * (1.0 + (position / context) as f64).ln();
                query.iter_mut().for_each(|x| *x *= factor);
            }
            queries.push(query);
            keys.push(key);
            values.push(value);
        }
        self.stored.push(KeysAndValues { keys, values });
        queries
    }

    fn head_norm(&mut self, layer: &Layer, module: &str, x: Vec<f64>) -> Vec<f64> {
        let width = match layer.head_norms {
            HeadNorms::None => return x,
            HeadNorms::Head => layer.dim,
            HeadNorms::All => x.len(),
        };
        let weight = self.weights(&format!("{module}.weight"), width);
        let normed = x.chunks(width).flat_map(|part| rms(part, self.spec.eps));
        normed.zip(weight.iter().cycle()).map(|(x, w)| x * w).collect()
    }

    fn attend(&mut self, ix: usize, layer: &Layer, position: usize, query: &[f64]) -> Vec<f64> {
        let sinks =
            layer.sinks.then(|| self.tensors.near_one(&format!("model.layers.{ix}.self_attn.sinks"), layer.heads));
        let KeysAndValues { keys, values } = &self.stored[layer.reads.unwrap_or(ix)];
        let first = layer.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let mut out = Vec::new();
        for head in 0..layer.heads {
            let from = head / (layer.heads / layer.kv_heads) * layer.dim;
            let q = &query[head * layer.dim..][..layer.dim];
            let score = |p: usize| {
                let dot: f64 = q.iter().zip(&keys[p][from..]).map(|(q, k)| q * k).sum();
                let score = dot * layer.scale;
                layer.softcap.map_or(score, |cap| cap * (score / cap).tanh())
            };
            let scores: Vec<f64> = (first..=position).map(score).collect();
            let sink = sinks.as_ref().map(|sinks| sinks[head]);
            let total: f64 = scores.iter().copied().chain(sink).map(f64::exp).sum();
            let mut sum = vec![0.0; layer.dim];
            for (p, score) in (first..=position).zip(scores) {
                let value = &values[p][from..from + layer.dim];
                sum.iter_mut().zip(value).for_each(|(sum, v)| *sum += score.exp() / total * v);
            }
            out.extend(sum);
        }
        out
    }

    fn feed_forward(&mut self, ix: usize, layer: &Layer, residual: &[f64], x: &[f64]) -> Vec<f64> {
        let at = |module: &str| format!("model.layers.{ix}.{module}");
        let dense = layer.dense.map(|width| self.dense(ix, layer, width, x));
        match (dense, &layer.experts) {
            (Some(dense), None) => dense,
            (None, Some(experts)) => self.experts(ix, layer, experts, x, x),
            (Some(dense), Some(experts)) => {
                let mut sum = self.norm(&at("post_feedforward_layernorm_1"), &dense);
                let input = self.norm(&at("pre_feedforward_layernorm_2"), residual);
                let scale = self.tensors.near_one(&at("router.scale"), residual.len());
                let root = (residual.len() as f64).sqrt();
                let routed = rms(residual, self.spec.eps);
                let routed: Vec<f64> = routed.iter().zip(&scale).map(|(x, s)| x * s / root).collect();
                let mixed = self.experts(ix, layer, experts, &routed, &input);
                plus(&mut sum, &self.norm(&at("post_feedforward_layernorm_2"), &mixed));
                sum
            }
            (None, None) => unreachable!("a layer has a feed-forward block"),
        }
    }

    fn dense(&mut self, ix: usize, layer: &Layer, width: usize, x: &[f64]) -> Vec<f64> {
        let at = |module: &str| format!("model.layers.{ix}.mlp.{module}");
        let (hidden, bias) = (self.spec.hidden, layer.mlp_bias);
        if layer.act == Act::PlainGelu {
            let inner: Vec<f64> = self.linear(&at("fc1"), x, width, bias).into_iter().map(gelu).collect();
            return self.linear(&at("fc2"), &inner, hidden, bias);
        }
        let both = match layer.fused {
            true => self.linear(&at("gate_up_proj"), x, 2 * width, bias),
            false => {
                let gates = self.linear(&at("gate_proj"), x, width, bias);
                [gates, self.linear(&at("up_proj"), x, width, bias)].concat()
            }
        };
        let inner: Vec<f64> = (0..width).map(|i| gate(layer.act, both[i], both[width + i])).collect();
        self.linear(&at("down_proj"), &inner, hidden, bias)
    }

    /// `routed`: what the router reads.
    fn experts(&mut self, ix: usize, layer: &Layer, experts: &Experts, routed: &[f64], x: &[f64]) -> Vec<f64> {
        let at = |module: &str| format!("model.layers.{ix}.{module}");
        let router = match experts.stored {
            Stored::Qwen | Stored::Stacked => "mlp.gate",
            Stored::Mixtral => "block_sparse_moe.gate",
            Stored::GptOss => "mlp.router",
            Stored::Gemma => "router.proj",
        };
        let scores = self.linear(&at(router), routed, experts.count, experts.stored == Stored::GptOss);
        let mut order: Vec<usize> = (0..experts.count).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        order.truncate(experts.chosen);
        let all: f64 = scores.iter().map(|s| s.exp()).sum();
        let some: f64 = order.iter().map(|&e| scores[e].exp()).sum();
        let factors = (experts.stored == Stored::Gemma)
            .then(|| self.tensors.near_one(&at("router.per_expert_scale"), experts.count));
        let mut sum = vec![0.0; x.len()];
        // All experts are asked for, so that the checkpoint has those that nobody chooses.
        for expert in 0..experts.count {
            let y = self.expert(ix, layer, experts, expert, x);
            if order.contains(&expert) {
                let weight = match experts.weighing {
                    Weighing::Softmax => scores[expert].exp() / all,
                    Weighing::SoftmaxNormalised | Weighing::SoftmaxOfChosen => scores[expert].exp() / some,
                };
                let weight = weight * factors.as_ref().map_or(1.0, |factors| factors[expert]);
                sum.iter_mut().zip(y).for_each(|(sum, y)| *sum += weight * y);
            }
        }
        sum
    }

    fn expert(&mut self, ix: usize, layer: &Layer, experts: &Experts, expert: usize, x: &[f64]) -> Vec<f64> {
        let at = |module: &str| format!("model.layers.{ix}.{module}");
        let (count, width, hidden) = (experts.count, experts.width, x.len());
        let reach = (3.0 / hidden as f32).sqrt();
        let gated = |both: &dyn Fn(usize) -> f64, gates: &dyn Fn(usize) -> usize, ups: &dyn Fn(usize) -> usize| {
            (0..width).map(|i| gate(layer.act, both(gates(i)), both(ups(i)))).collect::<Vec<f64>>()
        };
        match experts.stored {
            Stored::Qwen | Stored::Mixtral => {
                let (folder, names) = match experts.stored {
                    Stored::Qwen => ("mlp.experts", ["gate_proj", "up_proj", "down_proj"]),
                    _ => ("block_sparse_moe.experts", ["w1", "w3", "w2"]),
                };
                let module = |name: &str| at(&format!("{folder}.{expert}.{name}"));
                let gates = self.linear(&module(names[0]), x, width, false);
                let ups = self.linear(&module(names[1]), x, width, false);
                let inner: Vec<f64> = gates.iter().zip(&ups).map(|(g, u)| gate(layer.act, *g, *u)).collect();
                self.linear(&module(names[2]), &inner, hidden, false)
            }
            Stored::Gemma | Stored::Stacked => {
                let folder = if experts.stored == Stored::Gemma { "experts" } else { "mlp.experts" };
                let named = |name: &str| at(&format!("{folder}.{name}"));
                let all = self.tensors.get(&named("gate_up_proj"), &[count, 2 * width, hidden], 0.0, reach);
                let own = &all[expert * 2 * width * hidden..][..2 * width * hidden];
                let both = |o: usize| own[o * hidden..][..hidden].iter().zip(x).map(|(w, x)| w * x).sum();
                let inner = gated(&both, &|i| i, &|i| width + i);
                let all = self.tensors.get(&named("down_proj"), &[count, hidden, width], 0.0, reach);
                let own = &all[expert * width * hidden..][..width * hidden];
                (0..hidden).map(|o| own[o * width..][..width].iter().zip(&inner).map(|(w, x)| w * x).sum()).collect()
            }
            Stored::GptOss => {
                let all = self.tensors.get(&at("mlp.experts.gate_up_proj"), &[count, hidden, 2 * width], 0.0, reach);
                let bias = self.tensors.bias(&at("mlp.experts.gate_up_proj_bias"), &[count, 2 * width]);
                let own = &all[expert * 2 * width * hidden..][..2 * width * hidden];
                let both = |o: usize| {
                    let product: f64 = (0..hidden).map(|i| own[i * 2 * width + o] * x[i]).sum();
                    product + bias[expert * 2 * width + o]
                };
                let inner = gated(&both, &|i| 2 * i, &|i| 2 * i + 1);
                let all = self.tensors.get(&at("mlp.experts.down_proj"), &[count, width, hidden], 0.0, reach);
                let bias = self.tensors.bias(&at("mlp.experts.down_proj_bias"), &[count, hidden]);
                let own = &all[expert * width * hidden..][..width * hidden];
                let output = |o: usize| (0..width).map(|i| own[i * hidden + o] * inner[i]).sum::<f64>();
                (0..hidden).map(|o| output(o) + bias[expert * hidden + o]).collect()
            }
        }
    }
}

pub fn rotate(rope: Option<&Rope>, head: &mut [f64], position: usize) {
    let Some(Rope { frequencies, magnitude }) = rope else { return };
    let pairs = frequencies.len();
    for (i, frequency) in frequencies.iter().enumerate() {
        let (sin, cos) = (position as f64 * frequency).sin_cos();
        let (a, b) = (head[i], head[i + pairs]);
        head[i] = (a * cos - b * sin) * magnitude;
        head[i + pairs] = (b * cos + a * sin) * magnitude;
    }
}
