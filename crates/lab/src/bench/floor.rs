//! The machine's limits that measurements are compared with, given or measured in the same run, and the least time that
//! they allow a step of a model ([`StepFloor`]). How many steps a job has is left to its bench.

use clap::Args;

use offshoot_args::rate;
use offshoot_backend::{Dtype, HeadLayout, Rates, Timed, WeightFormat};
use offshoot_core::error::Result;
use offshoot_launch::ModelSource;
use offshoot_model::ModelConfig;

#[derive(Clone, Copy, Debug, Default, Args)]
pub struct FloorArgs {
    /// Memory bandwidth for the lower bound, in bytes per second (default: measured)
    #[arg(long, value_name = "B", value_parser = rate)]
    pub floor_bandwidth: Option<f64>,
    /// Compute rate for the lower bound, in operations per second (default: measured)
    #[arg(long, value_name = "F", value_parser = rate)]
    pub floor_flops: Option<f64>,
}

impl FloorArgs {
    /// The given rates, with measured ones in place of missing ones.
    pub fn rates<B: Timed>(self, backend: &mut B, dtype: Dtype, weights: WeightFormat) -> Result<Rates> {
        let FloorArgs { floor_bandwidth, floor_flops } = self;
        if let (Some(bytes_per_s), Some(flops_per_s)) = (floor_bandwidth, floor_flops) {
            return Ok(Rates { bytes_per_s, flops_per_s });
        }
        let measured = backend.rates(dtype, weights)?;
        log::info!("{measured:?}");
        Ok(Rates {
            bytes_per_s: floor_bandwidth.unwrap_or(measured.bytes_per_s),
            flops_per_s: floor_flops.unwrap_or(measured.flops_per_s),
        })
    }

    /// The model as the device holds it, and the rates for its products.
    pub fn of_model<B: Timed>(self, backend: &mut B, model: ModelSource<'_>) -> Result<(ModelConfig, Rates)> {
        let held = model.held_by(backend);
        let quantised = held.quantisation.as_ref().and_then(|how| how.formats().next());
        let weights = quantised.map_or(WeightFormat::Dense(model.dtype), WeightFormat::Quantised);
        let rates = self.rates(backend, model.dtype, weights)?;
        Ok((held, rates))
    }
}

/// Lower bounds of a model's steps on a machine. A step reads the weights once, those of the experts that its rows need
/// among them, and multiplies each row by those it uses; it reads each key and value once and multiplies each row by
/// those it sees. Latents are read in the form that takes least, from copies that are there. Each of the two parts
/// takes the longer of its reads and its products, which are counted at the rate of the dtype's, whatever the weights'
/// format.
pub struct StepFloor<'a> {
    config: &'a ModelConfig,
    dtype: Dtype,
    machine: Rates,
    /// Weights that each row is multiplied by, and those of rows whose logits are computed.
    row_weights: usize,
    logit_weights: usize,
    /// Weights of a low-rank adapter.
    adapter_weights: usize,
    attention: Vec<AttentionCost>,
    /// Bytes of a branch's states, which a step reads and writes.
    state_bytes: usize,
}

/// What attention of one layer costs.
struct AttentionCost {
    window: f64,
    /// In each form that there is: of latents absorbed and from copies, else one.
    forms: Vec<FormCost>,
}

/// What attention costs in one form.
struct FormCost {
    /// Operations for a row and a token that it sees.
    products: f64,
    /// Bytes of what is read of a token.
    bytes: f64,
}

impl FormCost {
    fn of(heads: HeadLayout, bytes: f64) -> Self {
        FormCost { products: 2.0 * (heads.q_width() + heads.out_width()) as f64, bytes }
    }

    fn work(&self, tokens: FloorTokens) -> Work {
        Work { bytes: self.bytes * tokens.stored, flops: self.products * tokens.seen }
    }
}

/// Bytes and operations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    pub bytes: f64,
    pub flops: f64,
}

impl Work {
    /// The longer of its reads and its products.
    pub fn seconds(self, rates: Rates) -> f64 {
        (self.bytes / rates.bytes_per_s).max(self.flops / rates.flops_per_s)
    }

    pub fn plus(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, flops: self.flops + other.flops }
    }
}

/// The rows of a step.
#[derive(Clone, Copy, Debug)]
pub struct FloorRows {
    pub rows: usize,
    /// Those whose logits are computed.
    pub logit_rows: usize,
    /// Branches that they belong to.
    pub branches: usize,
    /// Different adapters that they have; either each of them has one, or none.
    pub adapters: usize,
}

/// Tokens that the rows of a step attend to, all under about as many rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FloorTokens {
    /// Different ones, each of which is read once.
    pub stored: f64,
    /// The sum over the rows of those that each sees.
    pub seen: f64,
}

impl<'a> StepFloor<'a> {
    /// `config`: the model as the device holds it, in which a token's keys and values take `kv_bytes_per_token` bytes
    /// and a branch's states `state_bytes`.
    pub fn new(
        config: &'a ModelConfig,
        dtype: Dtype,
        (kv_bytes_per_token, state_bytes): (usize, usize),
        machine: Rates,
    ) -> Self {
        let head = config.vocab * config.hidden;
        let stored: usize = config.stored_heads().map(|heads| heads.kv_heads * heads.head_dim).sum();
        let a_number = kv_bytes_per_token as f64 / stored.max(1) as f64;
        let cost = config.attention().map(|layer| {
            let heads = layer.heads;
            let stored = FormCost::of(heads, a_number * (heads.kv_heads * heads.head_dim) as f64);
            let copied = layer.latent().map(|latent| {
                let heads = latent.heads.expanded();
                FormCost::of(heads, (heads.stored_width() * dtype.bytes()) as f64)
            });
            let window = layer.window.map_or(f64::INFINITY, f64::from);
            AttentionCost { window, forms: std::iter::once(stored).chain(copied).collect() }
        });
        Self {
            row_weights: config.active_parameters() - unread(config) - head,
            logit_weights: head,
            adapter_weights: 0,
            attention: cost.collect(),
            state_bytes,
            config,
            dtype,
            machine,
        }
    }

    /// With adapters of so many weights each, in the compute dtype.
    pub fn with_adapters(self, adapter_weights: usize) -> Self {
        Self { adapter_weights, ..self }
    }

    /// Seconds to multiply these rows by the weights, and by those of their adapters.
    fn linear(&self, rows: FloorRows) -> f64 {
        let base = self.config.weight_bytes_read(rows.rows, self.dtype) - unread(self.config) * self.dtype.bytes();
        let read = base + rows.adapters * self.adapter_weights * self.dtype.bytes();
        let of_adapter = if rows.adapters > 0 { self.adapter_weights } else { 0 };
        let multiplied = ((self.row_weights + of_adapter) * rows.rows + self.logit_weights * rows.logit_rows) as f64;
        (2.0 * multiplied / self.machine.flops_per_s).max(read as f64 / self.machine.bytes_per_s)
    }

    /// Seconds of a step. `tokens`: those that its rows attend to in a layer with this window, which may be infinite.
    pub fn seconds<T: IntoIterator<Item = FloorTokens>>(&self, rows: FloorRows, tokens: impl Fn(f64) -> T) -> f64 {
        self.seconds_of_steps(rows, 1.0, tokens)
    }

    /// Seconds of so many steps with rows of these counts each. `tokens`: those of all steps together.
    pub fn seconds_of_steps<T: IntoIterator<Item = FloorTokens>>(
        &self,
        rows: FloorRows,
        steps: f64,
        tokens: impl Fn(f64) -> T,
    ) -> f64 {
        let layers = self.attention.iter().map(|cost| self.least_work(cost, tokens(cost.window)));
        let attention = layers.fold(Work::default(), Work::plus).seconds(self.machine);
        let states = 2.0 * (rows.branches * self.state_bytes) as f64 / self.machine.bytes_per_s;
        steps * (self.linear(rows) + states) + attention
    }

    /// Attention of a layer to these tokens, each in the form that takes least there, or all in one form if that takes
    /// less.
    fn least_work(&self, cost: &AttentionCost, tokens: impl IntoIterator<Item = FloorTokens>) -> Work {
        let tokens: Vec<FloorTokens> = tokens.into_iter().collect();
        let seconds = |work: &Work| work.seconds(self.machine);
        let shorter = |one: &Work, other: &Work| seconds(one).total_cmp(&seconds(other));
        let of_form = |form: &FormCost| tokens.iter().map(|&of| form.work(of)).fold(Work::default(), Work::plus);
        let each = tokens.iter().filter_map(|&of| cost.forms.iter().map(|form| form.work(of)).min_by(shorter));
        let each = each.fold(Work::default(), Work::plus);
        cost.forms.iter().map(of_form).fold(each, |least, work| std::cmp::min_by(least, work, shorter))
    }
}

/// Weights of tables of which a step reads some rows only: embeddings that are no output layer, and inputs of layers.
fn unread(config: &ModelConfig) -> usize {
    let embeddings = if config.tied_embeddings { 0 } else { config.vocab * config.hidden };
    let inputs = config.per_layer_inputs.map_or(0, |inputs| inputs.vocab * inputs.width * config.layers.len());
    embeddings + inputs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latents_are_read_in_the_form_that_takes_least() {
        let config = r#"{ "model_type": "minicpm3", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
            "intermediate_size": 96, "vocab_size": 128, "max_position_embeddings": 256, "kv_lora_rank": 64,
            "q_lora_rank": 48, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16, "rms_norm_eps": 1e-6,
            "tie_word_embeddings": false }"#;
        let config = ModelConfig::from_json(config).expect("a sound shape");
        let (layers, latent, copy) = (3.0, 80.0 * 2.0, 4.0 * 48.0 * 2.0);
        let kv_bytes_per_token = 3 * 80 * 2;
        let attention = |machine: Rates, tokens: &[FloorTokens]| {
            let floor = StepFloor::new(&config, Dtype::Bf16, (kv_bytes_per_token, 0), machine);
            let rows = FloorRows { rows: 1, logit_rows: 0, branches: 1, adapters: 0 };
            floor.seconds(rows, |_| tokens.to_vec()) - floor.seconds(rows, |_| [])
        };
        let few = FloorTokens { stored: 10.0, seen: 20.0 };
        let many = FloorTokens { stored: 10.0, seen: 1e4 };
        let is_near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 1e-6;
        let of_bytes = attention(Rates { bytes_per_s: 1.0, flops_per_s: 1e30 }, &[few, many]);
        assert!(is_near(of_bytes, layers * latent * 20.0), "{of_bytes}");
        let of_products = attention(Rates { bytes_per_s: 1e30, flops_per_s: 1.0 }, &[few, many]);
        assert!(is_near(of_products, layers * 2.0 * 4.0 * 48.0 * (20.0 + 1e4)), "{of_products}");
        // Between the two, latents are read under few rows, copies under many.
        let machine = Rates { bytes_per_s: 100.0, flops_per_s: 1e5 };
        let bytes = layers * 10.0 * (latent + copy) / machine.bytes_per_s;
        let absorbed = 2.0 * 4.0 * (80.0 + 64.0) * 20.0;
        let products = layers * (absorbed + 2.0 * 4.0 * 48.0 * 1e4) / machine.flops_per_s;
        let both = attention(machine, &[few, many]);
        assert!(is_near(both, bytes.max(products)), "{both}, not {bytes} or {products}");
    }
}
