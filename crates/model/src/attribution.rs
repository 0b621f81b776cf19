//! Attention attribution over given tokens: for each token, the share of attention on each level of its context in the
//! row it was sampled from. Tokens are recomputed path by path, each from where it differs from the path before,
//! without an engine and without sampling.

use offshoot_backend::{ActivationDtype, AttentionLevels, LevelBounds, LevelMass, LevelRow, MOST_LEVELS};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;

use super::config::{kind_index, kinds};
use super::decoder::Decoder;
use super::sequence::Sequence;

/// Computes attention attribution for one path after another.
pub struct Attribution<'a, B: AttentionLevels> {
    sequence: Sequence<'a, B>,
    /// `[rows, q_heads * MOST_LEVELS]`, one for each distinct number of query heads.
    lse: Vec<B::Buffer>,
    /// For each layer with attention its index in `lse`.
    lse_of_layer: Vec<usize>,
    /// `[rows, MOST_LEVELS]`
    mass: B::Buffer,
    /// Most tokens of a path.
    capacity: usize,
    /// Most rows of a step.
    step_rows: usize,
    /// The tokens whose keys and values are in memory: a prefix of the last path.
    held: Vec<TokenId>,
    /// Prompt tokens of the last path.
    prompt: usize,
    /// Levels of the last path.
    bounds: LevelBounds,
    /// Shares of the rows of `held`, from the prompt's last row on.
    masses: Vec<LevelMass>,
}

impl<'a, B: AttentionLevels> Attribution<'a, B> {
    /// For paths of at most `capacity` tokens, prompt included, in steps of at most `step_rows` rows.
    pub fn new(backend: &'a mut B, model: &'a mut Decoder<B>, capacity: usize, step_rows: usize) -> Result<Self> {
        let q_heads = || model.config().heads().map(|heads| heads.q_heads);
        let widths = kinds(q_heads());

        let lse = |&heads: &usize| backend.buffer(heads * MOST_LEVELS, ActivationDtype::Sums);
        Ok(Self {
            lse: widths.iter().map(lse).collect::<Result<_>>()?,
            lse_of_layer: q_heads().map(|heads| kind_index(&widths, &heads)).collect(),
            mass: backend.buffer(MOST_LEVELS, ActivationDtype::Sums)?,
            sequence: Sequence::new(backend, model, capacity)?,
            capacity,
            step_rows: step_rows.max(1),
            held: Vec::new(),
            prompt: 0,
            bounds: LevelBounds::none(),
            masses: Vec::new(),
        })
    }

    /// For each token of `own`, which follows `prompt`: the share of attention on each level of `bounds` in the row
    /// before it, from which it was sampled; the mean over layers and query heads. Consecutive calls compute a common
    /// prefix of their paths once. Errors: `prompt` is empty or the path exceeds the capacity.
    pub fn along(&mut self, prompt: &[TokenId], bounds: LevelBounds, own: &[TokenId]) -> Result<Vec<LevelMass>> {
        let Some(first_row) = prompt.len().checked_sub(1) else {
            return Err(Error::value("prompt", "at least one token", "none"));
        };
        let path = [prompt, own].concat();
        if path.len() > self.capacity {
            return Err(Error::Internal(format!("a path of {} tokens, not {}", path.len(), self.capacity)));
        }
        // Nothing was sampled from the last token.
        let computed = &path[..path.len() - 1];
        let kept = self.keep(prompt.len(), bounds, computed);
        for chunk in computed[kept..].chunks(self.step_rows) {
            let first = self.held.len();
            let sampled = (0u32..).zip(first..first + chunk.len()).filter(|&(_, position)| position >= first_row);
            let rows: Vec<LevelRow> = sampled.map(|(row, _)| LevelRow { row, bounds }).collect();
            let masses = self.step(chunk, &rows)?;
            self.held.extend(chunk);
            self.masses.extend(masses);
        }
        Ok(self.masses[..own.len()].to_vec())
    }

    /// Keeps the common prefix of `computed` and the held tokens and returns its length. If the prompt or the levels
    /// differ from the last path's, at most the prompt without its last token is kept, so that its last row is
    /// recomputed.
    fn keep(&mut self, prompt: usize, bounds: LevelBounds, computed: &[TokenId]) -> usize {
        let shared = self.held.iter().zip(computed).take_while(|(held, token)| held == token).count();
        let kept = match (self.prompt, self.bounds) == (prompt, bounds) {
            true => shared,
            false => shared.min(prompt - 1),
        };
        (self.prompt, self.bounds) = (prompt, bounds);
        let kept = self.sequence.truncate(kept);
        self.masses.truncate((kept + 1).saturating_sub(prompt));
        self.held.truncate(kept);
        kept
    }

    /// Appends `tokens` in one step. Returns the shares of `rows`.
    fn step(&mut self, tokens: &[TokenId], rows: &[LevelRow]) -> Result<Vec<LevelMass>> {
        let batch = self.sequence.batch(tokens, 0..0);
        let Self { sequence: Sequence { backend, model, kv, step, .. }, lse, lse_of_layer, mass, .. } = self;
        let layers = lse_of_layer.len();
        if rows.is_empty() {
            model.forward(backend, kv, step, batch)?;
            return backend.collect(step).map(|_| Vec::new());
        }
        lse.iter_mut().try_for_each(|lse| backend.resize(lse, rows.len()))?;
        backend.resize(mass, rows.len())?;
        let level_rows = backend.level_rows(kv, &batch.plans, rows)?;
        model.forward_observed(backend, kv, step, batch, |backend, read| {
            let lse = &mut lse[lse_of_layer[read.layer.ix()]];
            backend.level_lse(lse, &read, &level_rows);
            backend.add_level_mass(mass, lse, read.layer, layers);
        })?;
        let masses = backend.read(mass, rows.len())?;
        backend.collect(step)?;
        Ok(masses.as_chunks::<MOST_LEVELS>().0.to_vec())
    }
}
