//! A decoder with recurrent layers in straight f64 loops, token by token, written from what transformers computes.

use super::super::families::reference::{Rope, Tensors, plus, rms, rotate, sigmoid};

#[derive(Clone, Debug)]
pub struct Spec {
    pub vocab: usize,
    pub hidden: usize,
    pub eps: f64,
    /// Names of the embedding table, of what stands before a layer's number, and of the last norm.
    pub embed: &'static str,
    pub layer: &'static str,
    pub final_norm: &'static str,
    pub embed_scale: f64,
    pub logit_scale: f64,
    pub tied: bool,
    pub layers: Vec<Layer>,
}

/// `x += sum of factor * mixer(norm(x))`, then the same with the dense block.
#[derive(Clone, Debug)]
pub struct Layer {
    pub mixers: Vec<(Mixer, f64)>,
    pub norm: &'static str,
    pub dense: Option<Dense>,
}

#[derive(Clone, Debug)]
pub struct Dense {
    pub norm: &'static str,
    pub width: usize,
    /// Gate, up and down; gate and up may be one module. Without a gate, a squared ReLU is computed.
    pub gate: Option<&'static str>,
    pub up: &'static str,
    pub down: &'static str,
    pub gate_factor: f64,
    pub factor: f64,
}

#[derive(Clone, Debug)]
pub enum Mixer {
    Attention(Attention),
    Latent(Latent),
    Mamba2(Mamba2),
    Mamba1(Mamba1),
    Conv(Conv),
    Kda(Kda),
}

#[derive(Clone, Debug)]
pub struct Attention {
    pub module: &'static str,
    pub out: &'static str,
    pub heads: usize,
    pub kv_heads: usize,
    pub dim: usize,
    pub rope: Option<Rope>,
    pub scale: f64,
    /// Factor of what is projected.
    pub input: f64,
    pub norms: Option<[&'static str; 2]>,
    pub bias: bool,
}

/// Latent attention without a rope.
#[derive(Clone, Debug)]
pub struct Latent {
    pub heads: usize,
    pub rank: usize,
    pub nope: usize,
    pub rope: usize,
    pub value: usize,
}

#[derive(Clone, Debug)]
pub struct Mamba2 {
    pub module: &'static str,
    pub heads: usize,
    pub dim: usize,
    pub groups: usize,
    pub state: usize,
    pub tokens: usize,
    pub conv_bias: bool,
    pub proj_bias: bool,
    pub limits: [f64; 2],
    /// Whether there is a norm, and whether it comes before the gate.
    pub norm: Option<bool>,
    pub input: f64,
    /// Of z, x, B, C and steps.
    pub factors: [f64; 5],
}

#[derive(Clone, Debug)]
pub struct Mamba1 {
    pub channels: usize,
    pub state: usize,
    pub rank: usize,
    pub tokens: usize,
    pub conv_bias: bool,
    pub proj_bias: bool,
}

#[derive(Clone, Debug)]
pub struct Conv {
    pub tokens: usize,
    pub bias: bool,
}

#[derive(Clone, Debug)]
pub struct Kda {
    pub heads: usize,
    pub dim: usize,
    pub tokens: usize,
}

fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

fn softplus(x: f64) -> f64 {
    if x > 30.0 { x } else { x.exp().ln_1p() }
}

/// `[rows][channels]`: sums over the last `tokens` inputs of a channel, with their bias.
fn convolved(x: &[Vec<f64>], weight: &[f64], bias: Option<&[f64]>, tokens: usize) -> Vec<Vec<f64>> {
    let row = |t: usize| {
        let one = |c: usize| {
            let read = (0..tokens).filter(|k| t + k + 1 >= tokens);
            let sum: f64 = read.map(|k| weight[c * tokens + k] * x[t + k + 1 - tokens][c]).sum();
            sum + bias.map_or(0.0, |bias| bias[c])
        };
        (0..x[t].len()).map(one).collect()
    };
    (0..x.len()).map(row).collect()
}

struct Run<'a> {
    spec: &'a Spec,
    tensors: &'a mut Tensors,
}

/// The logits of every position, `[tokens][vocab]`.
pub fn logits(spec: &Spec, tensors: &mut Tensors, tokens: &[usize]) -> Vec<f64> {
    let embed = tensors.matrix(&format!("{}.weight", spec.embed), spec.vocab, spec.hidden);
    let mut rows: Vec<Vec<f64>> =
        tokens.iter().map(|&token| embed.row(token).iter().map(|x| x * spec.embed_scale).collect()).collect();
    let mut run = Run { spec, tensors };
    for ix in 0..spec.layers.len() {
        run.layer(ix, &mut rows);
    }
    let head = if spec.tied { spec.embed } else { "lm_head" };
    let head = run.tensors.matrix(&format!("{head}.weight"), spec.vocab, spec.hidden);
    let mut all = Vec::new();
    for row in &rows {
        let row = run.norm(spec.final_norm, row);
        all.extend(head.times(&row).into_iter().map(|x| x * spec.logit_scale));
    }
    all
}

impl Run<'_> {
    fn norm(&mut self, module: &str, x: &[f64]) -> Vec<f64> {
        let weight = self.tensors.near_one(&format!("{module}.weight"), x.len());
        rms(x, self.spec.eps).iter().zip(&weight).map(|(x, w)| x * w).collect()
    }

    fn linear(&mut self, module: &str, x: &[f64], outputs: usize, bias: bool) -> Vec<f64> {
        let mut y = self.tensors.matrix(&format!("{module}.weight"), outputs, x.len()).times(x);
        if bias {
            plus(&mut y, &self.tensors.bias(&format!("{module}.bias"), &[outputs]));
        }
        y
    }

    fn layer(&mut self, ix: usize, rows: &mut [Vec<f64>]) {
        let layer = self.spec.layers[ix].clone();
        let at = |module: &str| format!("{}{ix}.{module}", self.spec.layer);
        if !layer.mixers.is_empty() {
            let norm = at(layer.norm);
            let normed: Vec<Vec<f64>> = rows.iter().map(|row| self.norm(&norm, row)).collect();
            for (mixer, factor) in &layer.mixers {
                let mixed = match mixer {
                    Mixer::Attention(attention) => self.attention(&at(attention.module), attention, &normed),
                    Mixer::Latent(latent) => self.latent(&at("self_attn"), latent, &normed),
                    Mixer::Mamba2(mamba) => self.mamba2(&at(mamba.module), mamba, &normed),
                    Mixer::Mamba1(mamba) => self.mamba1(&at("mamba"), mamba, &normed),
                    Mixer::Conv(conv) => self.conv(&at("conv"), conv, &normed),
                    Mixer::Kda(kda) => self.kda(&at("self_attn"), kda, &normed),
                };
                for (row, mixed) in rows.iter_mut().zip(mixed) {
                    row.iter_mut().zip(mixed).for_each(|(x, y)| *x += factor * y);
                }
            }
        }
        let Some(dense) = &layer.dense else { return };
        for row in rows {
            let x = self.norm(&at(dense.norm), row);
            let mut inner = match dense.gate {
                Some(gate) if gate == dense.up => self.linear(&at(gate), &x, 2 * dense.width, false),
                Some(gate) => {
                    let gates = self.linear(&at(gate), &x, dense.width, false);
                    [gates, self.linear(&at(dense.up), &x, dense.width, false)].concat()
                }
                None => self.linear(&at(dense.up), &x, dense.width, false),
            };
            match dense.gate {
                Some(_) => {
                    let ups = inner.split_off(dense.width);
                    inner.iter_mut().zip(ups).for_each(|(gate, up)| *gate = silu(*gate * dense.gate_factor) * up);
                }
                None => inner.iter_mut().for_each(|x| *x = x.max(0.0).powi(2)),
            }
            let out = self.linear(&at(dense.down), &inner, row.len(), false);
            row.iter_mut().zip(out).for_each(|(x, y)| *x += dense.factor * y);
        }
    }

    fn attention(&mut self, at: &str, spec: &Attention, normed: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let Attention { heads, kv_heads, dim, .. } = *spec;
        let normed: Vec<Vec<f64>> = normed.iter().map(|row| row.iter().map(|x| x * spec.input).collect()).collect();
        let mut project = |name: &str, heads: usize, norm: Option<&str>, turned: bool| -> Vec<Vec<f64>> {
            let row = |(position, x): (usize, &Vec<f64>)| {
                let mut y = self.linear(&format!("{at}.{name}"), x, heads * dim, spec.bias);
                for head in y.chunks_exact_mut(dim) {
                    if let Some(norm) = norm {
                        head.copy_from_slice(&self.norm(&format!("{at}.{norm}"), head));
                    }
                    rotate(spec.rope.as_ref().filter(|_| turned), head, position);
                }
                y
            };
            normed.iter().enumerate().map(row).collect()
        };
        let norm = |which: usize| spec.norms.map(|norms| norms[which]);
        let queries = project("q_proj", heads, norm(0), true);
        let keys = project("k_proj", kv_heads, norm(1), true);
        let values = project("v_proj", kv_heads, None, false);
        let read = |head: usize, t: usize| {
            let of = head / (heads / kv_heads);
            let query = &queries[t][head * dim..][..dim];
            weighed(t, &|s| product(query, &keys[s][of * dim..][..dim]) * spec.scale, &|s| {
                &values[s][of * dim..][..dim]
            })
        };
        let all: Vec<Vec<f64>> =
            (0..normed.len()).map(|t| (0..heads).flat_map(|head| read(head, t)).collect()).collect();
        let hidden = self.spec.hidden;
        all.iter().map(|row| self.linear(&format!("{at}.{}", spec.out), row, hidden, spec.bias)).collect()
    }

    fn latent(&mut self, at: &str, spec: &Latent, normed: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let Latent { heads, rank, nope, rope, value } = *spec;
        let width = nope + rope;
        let (mut queries, mut keys, mut values) = (Vec::new(), Vec::new(), Vec::new());
        for x in normed {
            queries.push(self.linear(&format!("{at}.q_proj"), x, heads * width, false));
            let both = self.linear(&format!("{at}.kv_a_proj_with_mqa"), x, rank + rope, false);
            let weight = self.tensors.near_one(&format!("{at}.kv_a_layernorm.weight"), rank);
            let latent: Vec<f64> = rms(&both[..rank], 1e-6).iter().zip(&weight).map(|(x, w)| x * w).collect();
            let expanded = self.linear(&format!("{at}.kv_b_proj"), &latent, heads * (nope + value), false);
            let of_head = |head: usize| &expanded[head * (nope + value)..][..nope + value];
            keys.push((0..heads).map(|head| [&of_head(head)[..nope], &both[rank..]].concat()).collect::<Vec<_>>());
            values.push((0..heads).map(|head| of_head(head)[nope..].to_vec()).collect::<Vec<_>>());
        }
        let scale = (width as f64).sqrt().recip();
        let read = |head: usize, t: usize| {
            let query = &queries[t][head * width..][..width];
            weighed(t, &|s| product(query, &keys[s][head]) * scale, &|s| &values[s][head])
        };
        let all: Vec<Vec<f64>> =
            (0..normed.len()).map(|t| (0..heads).flat_map(|head| read(head, t)).collect()).collect();
        let hidden = self.spec.hidden;
        all.iter().map(|row| self.linear(&format!("{at}.o_proj"), row, hidden, false)).collect()
    }

    fn mamba2(&mut self, at: &str, spec: &Mamba2, normed: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let Mamba2 { heads, dim, groups, state, tokens, .. } = *spec;
        let (width, keys) = (heads * dim, groups * state);
        let conv_width = width + 2 * keys;
        let name = |name: &str| format!("{at}.{name}");
        let [of_gate, of_x, of_b, of_c, of_dt] = spec.factors;
        let (mut gates, mut inputs, mut steps) = (Vec::new(), Vec::new(), Vec::new());
        for x in normed {
            let x: Vec<f64> = x.iter().map(|x| x * spec.input).collect();
            let all = self.linear(&name("in_proj"), &x, width + conv_width + heads, spec.proj_bias);
            let scaled = |from: usize, len: usize, factor: f64| all[from..][..len].iter().map(move |x| x * factor);
            gates.push(scaled(0, width, of_gate).collect::<Vec<_>>());
            let keys_of = |from, factor| scaled(2 * width + from, keys, factor);
            inputs.push(
                scaled(width, width, of_x).chain(keys_of(0, of_b)).chain(keys_of(keys, of_c)).collect::<Vec<_>>(),
            );
            steps.push(scaled(width + conv_width, heads, of_dt).collect::<Vec<_>>());
        }
        let weight = self.tensors.get(&name("conv1d.weight"), &[conv_width, 1, tokens], 0.0, 0.5);
        let bias = spec.conv_bias.then(|| self.tensors.bias(&name("conv1d.bias"), &[conv_width]));
        let mixed = convolved(&inputs, &weight, bias.as_deref(), tokens);
        let a_log = self.tensors.get(&name("A_log"), &[heads], 0.0, 1.0);
        let dt_bias = self.tensors.get(&name("dt_bias"), &[heads], 0.0, 1.0);
        let skip = self.tensors.near_one(&name("D"), heads);
        let weights = spec.norm.map(|_| self.tensors.near_one(&name("norm.weight"), width));
        let mut states = vec![vec![0.0; state * dim]; heads];
        let mut out = Vec::new();
        for t in 0..normed.len() {
            let row: Vec<f64> = mixed[t].iter().map(|&x| silu(x)).collect();
            let mut y = vec![0.0; width];
            for head in 0..heads {
                let group = head / (heads / groups);
                let x = &row[head * dim..][..dim];
                let (b, c) = (&row[width + group * state..][..state], &row[width + keys + group * state..][..state]);
                let step = softplus(steps[t][head] + dt_bias[head]).clamp(spec.limits[0], spec.limits[1]);
                let decay = (-a_log[head].exp() * step).exp();
                for p in 0..dim {
                    let mut sum = skip[head] * x[p];
                    for n in 0..state {
                        let cell = &mut states[head][n * dim + p];
                        *cell = decay * *cell + step * b[n] * x[p];
                        sum += *cell * c[n];
                    }
                    y[head * dim + p] = sum;
                }
            }
            let gated = |y: &[f64]| y.iter().zip(&gates[t]).map(|(y, &gate)| y * silu(gate)).collect::<Vec<f64>>();
            let normalised = |y: &[f64]| {
                let groups = y.chunks_exact(width / groups).flat_map(|part| rms(part, self.spec.eps));
                groups.zip(weights.as_ref().unwrap()).map(|(y, w)| y * w).collect::<Vec<f64>>()
            };
            let y = match spec.norm {
                None => gated(&y),
                Some(true) => gated(&normalised(&y)),
                Some(false) => normalised(&gated(&y)),
            };
            out.push(self.linear(&name("out_proj"), &y, self.spec.hidden, spec.proj_bias));
        }
        out
    }

    fn mamba1(&mut self, at: &str, spec: &Mamba1, normed: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let Mamba1 { channels, state, rank, tokens, .. } = *spec;
        let name = |name: &str| format!("{at}.{name}");
        let both: Vec<Vec<f64>> =
            normed.iter().map(|x| self.linear(&name("in_proj"), x, 2 * channels, spec.proj_bias)).collect();
        let inputs: Vec<Vec<f64>> = both.iter().map(|both| both[..channels].to_vec()).collect();
        let weight = self.tensors.get(&name("conv1d.weight"), &[channels, 1, tokens], 0.0, 0.5);
        let bias = spec.conv_bias.then(|| self.tensors.bias(&name("conv1d.bias"), &[channels]));
        let mixed = convolved(&inputs, &weight, bias.as_deref(), tokens);
        let a_log = self.tensors.get(&name("A_log"), &[channels, state], 0.0, 1.0);
        let dt_bias = self.tensors.get(&name("dt_proj.bias"), &[channels], 0.0, 1.0);
        let skip = self.tensors.near_one(&name("D"), channels);
        let mut states = vec![0.0; channels * state];
        let mut out = Vec::new();
        for t in 0..normed.len() {
            let x: Vec<f64> = mixed[t].iter().map(|&x| silu(x)).collect();
            let inner = self.linear(&name("x_proj"), &x, rank + 2 * state, false);
            let low = self.norm(&name("dt_layernorm"), &inner[..rank]);
            let b = self.norm(&name("b_layernorm"), &inner[rank..rank + state]);
            let c = self.norm(&name("c_layernorm"), &inner[rank + state..]);
            let steps = self.linear(&name("dt_proj"), &low, channels, false);
            let one = |channel: usize| {
                let step = softplus(steps[channel] + dt_bias[channel]);
                let mut sum = skip[channel] * x[channel];
                for n in 0..state {
                    let cell = &mut states[channel * state + n];
                    *cell = (-a_log[channel * state + n].exp() * step).exp() * *cell + step * b[n] * x[channel];
                    sum += *cell * c[n];
                }
                sum * silu(both[t][channels + channel])
            };
            let y: Vec<f64> = (0..channels).map(one).collect();
            out.push(self.linear(&name("out_proj"), &y, self.spec.hidden, spec.proj_bias));
        }
        out
    }

    fn conv(&mut self, at: &str, spec: &Conv, normed: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let (name, width) = (|name: &str| format!("{at}.{name}"), self.spec.hidden);
        let all: Vec<Vec<f64>> =
            normed.iter().map(|x| self.linear(&name("in_proj"), x, 3 * width, spec.bias)).collect();
        let inputs: Vec<Vec<f64>> =
            all.iter().map(|all| (0..width).map(|c| all[c] * all[2 * width + c]).collect()).collect();
        let weight = self.tensors.get(&name("conv.weight"), &[width, 1, spec.tokens], 0.0, 0.5);
        let bias = spec.bias.then(|| self.tensors.bias(&name("conv.bias"), &[width]));
        let mixed = convolved(&inputs, &weight, bias.as_deref(), spec.tokens);
        let mut out = Vec::new();
        for (all, mixed) in all.iter().zip(mixed) {
            let y: Vec<f64> = (0..width).map(|c| all[width + c] * mixed[c]).collect();
            out.push(self.linear(&name("out_proj"), &y, width, spec.bias));
        }
        out
    }

    fn kda(&mut self, at: &str, spec: &Kda, normed: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let Kda { heads, dim, tokens } = *spec;
        let (name, width) = (|name: &str| format!("{at}.{name}"), heads * dim);
        let mut part = |letter: &str| -> Vec<Vec<f64>> {
            let inputs: Vec<Vec<f64>> =
                normed.iter().map(|x| self.linear(&name(&format!("{letter}_proj")), x, width, false)).collect();
            let weight = self.tensors.get(&name(&format!("{letter}_conv1d.weight")), &[width, 1, tokens], 0.0, 0.5);
            convolved(&inputs, &weight, None, tokens).iter().map(|row| row.iter().map(|&x| silu(x)).collect()).collect()
        };
        let (queries, keys, values) = (part("q"), part("k"), part("v"));
        let a_log = self.tensors.get(&name("A_log"), &[1, 1, heads, 1], 0.0, 1.0);
        let dt_bias = self.tensors.get(&name("dt_bias"), &[width], 0.0, 1.0);
        let unit = |x: &[f64]| {
            let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
            x.iter().map(|x| x / length).collect::<Vec<f64>>()
        };
        let mut states = vec![vec![0.0; dim * dim]; heads];
        let mut out = Vec::new();
        for t in 0..normed.len() {
            let low = self.linear(&name("f_a_proj"), &normed[t], dim, false);
            let decays = self.linear(&name("f_b_proj"), &low, width, false);
            let betas = self.linear(&name("b_proj"), &normed[t], heads, false);
            let low = self.linear(&name("g_a_proj"), &normed[t], dim, false);
            let gates = self.linear(&name("g_b_proj"), &low, width, false);
            let mut y = Vec::new();
            for head in 0..heads {
                let own = head * dim..(head + 1) * dim;
                let (q, k, v) = (unit(&queries[t][own.clone()]), unit(&keys[t][own.clone()]), &values[t][own.clone()]);
                let (state, beta) = (&mut states[head], sigmoid(betas[head]));
                for n in 0..dim {
                    let decay = (-a_log[head].exp() * softplus(decays[own.start + n] + dt_bias[own.start + n])).exp();
                    state[n * dim..][..dim].iter_mut().for_each(|cell| *cell *= decay);
                }
                for p in 0..dim {
                    let known: f64 = (0..dim).map(|n| state[n * dim + p] * k[n]).sum();
                    let delta = beta * (v[p] - known);
                    (0..dim).for_each(|n| state[n * dim + p] += k[n] * delta);
                }
                let root = (dim as f64).sqrt();
                let read: Vec<f64> =
                    (0..dim).map(|p| (0..dim).map(|n| state[n * dim + p] * q[n] / root).sum()).collect();
                let normed = self.norm(&name("o_norm"), &read);
                y.extend(normed.iter().zip(&gates[own]).map(|(y, &gate)| y * sigmoid(gate)));
            }
            out.push(self.linear(&name("o_proj"), &y, self.spec.hidden, false));
        }
        out
    }
}

fn product(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The sum of the values up to position `t`, weighed by the softmax of their scores.
fn weighed<'a>(t: usize, score: &dyn Fn(usize) -> f64, value: &dyn Fn(usize) -> &'a [f64]) -> Vec<f64> {
    let scores: Vec<f64> = (0..=t).map(score).collect();
    let most = scores.iter().copied().fold(f64::MIN, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
    let all: f64 = weights.iter().sum();
    let mut sum = vec![0.0; value(0).len()];
    for (s, weight) in weights.iter().enumerate() {
        sum.iter_mut().zip(value(s)).for_each(|(sum, x)| *sum += weight / all * x);
    }
    sum
}
