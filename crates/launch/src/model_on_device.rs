//! A model in the memory of an open device, without an engine ([`ModelOnDevice`]): what checks and attributions ask of
//! it. Callers name no type of a backend, so they are compiled once for all of them.

use std::path::Path;

use super::{DeviceBackend, ModelSource, OnDevice, Opened};
use offshoot_backend::{KvDtype, LevelBounds, LevelMass, StateDtype};
use offshoot_core::error::Result;
use offshoot_core::ids::TokenId;
use offshoot_model::check::{
    ChunkReport, GoldenReport, Prediction, RoundingReport, ScoreReport, chunks, golden, kv_rounding, predictions,
    scores, state_rounding,
};
use offshoot_model::{Attribution, Decoder, ModelConfig, StepRunner};

/// A model that was loaded on a device.
pub trait ModelOnDevice {
    fn config(&self) -> &ModelConfig;

    /// Whether the device computes asynchronously, in its own memory.
    fn is_async(&self) -> bool;

    /// Positions of the longest tile among the plans of its layers.
    fn tile(&self) -> u32;

    /// From now on a row's results depend on that row alone, to the last bit.
    fn set_batch_invariant(&mut self);

    /// Keys and values are stored so in memory that is allocated from now on.
    fn set_kv_dtype(&mut self, kv: KvDtype);

    fn set_state_dtype(&mut self, states: StateDtype);

    /// See [`chunks`].
    fn chunks(&mut self, tokens: &[TokenId]) -> Result<ChunkReport>;

    /// See [`golden`].
    fn golden(&mut self, file: &Path) -> Result<GoldenReport>;

    /// See [`scores`].
    fn scores(&mut self, file: &Path) -> Result<ScoreReport>;

    /// See [`kv_rounding`].
    fn kv_rounding(&mut self, kv: KvDtype, tokens: usize) -> Result<RoundingReport>;

    /// See [`state_rounding`].
    fn state_rounding(&mut self, states: StateDtype, tokens: usize) -> Result<RoundingReport>;

    /// See [`predictions`].
    fn predictions(&mut self, tokens: &[TokenId]) -> Result<Vec<Prediction>>;

    /// For paths of at most `capacity` tokens, prompt included, in steps of at most `step_rows` rows.
    fn attribution(&mut self, capacity: usize, step_rows: usize) -> Result<Box<dyn AttentionAlong + '_>>;

    /// Gives up the access of this trait, and hands the model to an engine.
    fn into_runner(self: Box<Self>) -> Box<dyn StepRunner>;
}

/// How attention divides among the levels of given paths.
pub trait AttentionAlong {
    /// See [`Attribution::along`].
    fn along(&mut self, prompt: &[TokenId], bounds: LevelBounds, own: &[TokenId]) -> Result<Vec<LevelMass>>;
}

impl<B: DeviceBackend> AttentionAlong for Attribution<'_, B> {
    fn along(&mut self, prompt: &[TokenId], bounds: LevelBounds, own: &[TokenId]) -> Result<Vec<LevelMass>> {
        Attribution::along(self, prompt, bounds, own)
    }
}

impl Opened {
    /// Loads a model on the device.
    ///
    /// # Errors
    ///
    /// Files that cannot be read or do not fit the model's config, and lack of memory.
    pub fn load(self, source: ModelSource<'_>) -> Result<Box<dyn ModelOnDevice>> {
        self.with(LoadModel(source))
    }
}

struct LoadModel<'a>(ModelSource<'a>);

impl OnDevice for LoadModel<'_> {
    type Output = Box<dyn ModelOnDevice>;

    fn run<B: DeviceBackend>(self, mut backend: B) -> Result<Self::Output> {
        let decoder = self.0.load(&mut backend)?;
        Ok(Box::new(DecoderOnDevice { backend, decoder }))
    }
}

struct DecoderOnDevice<B: DeviceBackend> {
    backend: B,
    decoder: Decoder<B>,
}

impl<B: DeviceBackend> ModelOnDevice for DecoderOnDevice<B> {
    fn config(&self) -> &ModelConfig {
        self.decoder.config()
    }

    fn is_async(&self) -> bool {
        B::IS_ASYNC
    }

    fn tile(&self) -> u32 {
        self.decoder.plan_hints().iter().map(|hints| hints.tile).max().unwrap_or(1)
    }

    fn set_batch_invariant(&mut self) {
        self.decoder.set_batch_invariant(&mut self.backend);
    }

    fn set_kv_dtype(&mut self, kv: KvDtype) {
        self.decoder.set_kv_dtype(&mut self.backend, kv);
    }

    fn set_state_dtype(&mut self, states: StateDtype) {
        self.decoder.set_state_dtype(states);
    }

    fn chunks(&mut self, tokens: &[TokenId]) -> Result<ChunkReport> {
        chunks(&mut self.backend, &mut self.decoder, tokens)
    }

    fn golden(&mut self, file: &Path) -> Result<GoldenReport> {
        golden(&mut self.backend, &mut self.decoder, file)
    }

    fn scores(&mut self, file: &Path) -> Result<ScoreReport> {
        scores(&mut self.backend, &mut self.decoder, file)
    }

    fn kv_rounding(&mut self, kv: KvDtype, tokens: usize) -> Result<RoundingReport> {
        kv_rounding(&mut self.backend, &mut self.decoder, kv, tokens)
    }

    fn state_rounding(&mut self, states: StateDtype, tokens: usize) -> Result<RoundingReport> {
        state_rounding(&mut self.backend, &mut self.decoder, states, tokens)
    }

    fn predictions(&mut self, tokens: &[TokenId]) -> Result<Vec<Prediction>> {
        predictions(&mut self.backend, &mut self.decoder, tokens)
    }

    fn attribution(&mut self, capacity: usize, step_rows: usize) -> Result<Box<dyn AttentionAlong + '_>> {
        let attribution = Attribution::new(&mut self.backend, &mut self.decoder, capacity, step_rows)?;
        Ok(Box::new(attribution))
    }

    fn into_runner(self: Box<Self>) -> Box<dyn StepRunner> {
        self.decoder.on(self.backend)
    }
}
