//! The machine's limits that measurements are compared with, given or measured in the same run, and the least time that
//! they allow a step of a model ([`StepFloor`]). How many steps a job has is left to its bench.

use clap::Args;

use offshoot_args::rate;
use offshoot_backend::{Dtype, Rates, Timed, WeightFormat};
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
/// those it sees. Each of the two parts takes the longer of its reads and its products, which are counted at the rate
/// of the dtype's, whatever the weights' format.
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
    /// Operations for a row and a token that it sees.
    products: f64,
    /// Bytes of the keys and values of a token.
    bytes: f64,
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

/// Tokens that the rows of a step attend to.
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
        let cost = config.attention().map(|layer| AttentionCost {
            window: layer.window.map_or(f64::INFINITY, f64::from),
            products: 4.0 * layer.heads.q_width() as f64,
            bytes: a_number * (layer.heads.kv_heads * layer.heads.head_dim) as f64,
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
    pub fn seconds(&self, rows: FloorRows, tokens: impl Fn(f64) -> FloorTokens) -> f64 {
        self.seconds_of_steps(rows, 1.0, tokens)
    }

    /// Seconds of so many steps with rows of these counts each. `tokens`: those of all steps together.
    pub fn seconds_of_steps(&self, rows: FloorRows, steps: f64, tokens: impl Fn(f64) -> FloorTokens) -> f64 {
        let (mut products, mut bytes) = (0.0, 0.0);
        for cost in &self.attention {
            let FloorTokens { stored, seen } = tokens(cost.window);
            products += cost.products * seen;
            bytes += cost.bytes * stored;
        }
        let attention = (products / self.machine.flops_per_s).max(bytes / self.machine.bytes_per_s);
        let states = 2.0 * (rows.branches * self.state_bytes) as f64 / self.machine.bytes_per_s;
        steps * (self.linear(rows) + states) + attention
    }
}

/// Weights of tables of which a step reads some rows only: embeddings that are no output layer, and inputs of layers.
fn unread(config: &ModelConfig) -> usize {
    let embeddings = if config.tied_embeddings { 0 } else { config.vocab * config.hidden };
    let inputs = config.per_layer_inputs.map_or(0, |inputs| inputs.vocab * inputs.width * config.layers.len());
    embeddings + inputs
}
