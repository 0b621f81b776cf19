//! Attention attribution over known tokens: which share of the attention of the row that drew a token falls on each
//! level of its context. The tokens are computed again, one path after another, each from where it parts from the one
//! before; no engine and no sampling has a part in it. Where the tokens come from and what is made of the shares is the
//! caller's affair.

use crate::backend::{ActivationDtype, AttentionLevels, LevelBounds, LevelMass, LevelRow, MOST_LEVELS};
use crate::error::{Error, Result};
use crate::ids::TokenId;

use super::config::kinds;
use super::decoder::Decoder;
use super::sequence::Sequence;

pub struct Attribution<'a, B: AttentionLevels> {
    sequence: Sequence<'a, B>,
    /// `[rows, q_heads * MOST_LEVELS]`, one for each number of query heads that layers have, and which of them each
    /// layer's is.
    lse: Vec<B::Buffer>,
    lse_of_layer: Vec<usize>,
    /// `[rows, MOST_LEVELS]`
    mass: B::Buffer,
    /// Tokens of a path at most.
    capacity: usize,
    /// Rows of a step at most.
    step_rows: usize,
    /// The tokens whose keys and values are kept: the beginning of a path.
    held: Vec<TokenId>,
    /// Of that path: tokens of its prompt, and its levels.
    prompt: usize,
    bounds: LevelBounds,
    /// Of the held rows from the prompt's last one on.
    masses: Vec<LevelMass>,
}

impl<'a, B: AttentionLevels> Attribution<'a, B> {
    /// For paths of at most `capacity` tokens, prompt included, in steps of at most `step_rows` rows.
    pub fn new(backend: &'a mut B, model: &'a mut Decoder<B>, capacity: usize, step_rows: usize) -> Result<Self> {
        let q_heads = || model.config().heads().map(|heads| heads.q_heads);
        let widths = kinds(q_heads());
        let place = |heads| widths.iter().position(|&other| other == heads).expect("the kinds are those of all layers");
        let lse = |&heads: &usize| backend.buffer(heads * MOST_LEVELS, ActivationDtype::Sums);
        Ok(Self {
            lse: widths.iter().map(lse).collect::<Result<_>>()?,
            lse_of_layer: q_heads().map(place).collect(),
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

    /// For each token of `own`, which stands behind `prompt`: the share of attention that falls on each level of
    /// `bounds` in the row before it, from which it was drawn; the mean over layers and query heads. Paths that begin
    /// alike are best asked for one after another: what they share is computed once.
    pub fn along(&mut self, prompt: &[TokenId], bounds: LevelBounds, own: &[TokenId]) -> Result<Vec<LevelMass>> {
        let Some(first_row) = prompt.len().checked_sub(1) else {
            return Err(Error::value("prompt", "at least one token", "none"));
        };
        let path = [prompt, own].concat();
        if path.len() > self.capacity {
            return Err(Error::Internal(format!("a path of {} tokens, not {}", path.len(), self.capacity)));
        }
        // From the last token nothing was drawn.
        let computed = &path[..path.len() - 1];
        let kept = self.keep(prompt.len(), bounds, computed);
        for chunk in computed[kept..].chunks(self.step_rows) {
            let first = self.held.len();
            let drew = (0u32..).zip(first..first + chunk.len()).filter(|&(_, position)| position >= first_row);
            let rows: Vec<LevelRow> = drew.map(|(row, _)| LevelRow { row, bounds }).collect();
            let masses = self.step(chunk, &rows)?;
            self.held.extend(chunk);
            self.masses.extend(masses);
        }
        Ok(self.masses[..own.len()].to_vec())
    }

    /// Keeps what the tokens `computed` have in common with those held; says how many they are. Another prompt, or the
    /// same one in other levels, has its last row computed anew.
    fn keep(&mut self, prompt: usize, bounds: LevelBounds, computed: &[TokenId]) -> usize {
        let shared = self.held.iter().zip(computed).take_while(|(held, token)| held == token).count();
        let kept = match (self.prompt, self.bounds) == (prompt, bounds) {
            true => shared,
            false => shared.min(prompt - 1),
        };
        (self.prompt, self.bounds) = (prompt, bounds);
        self.masses.truncate((kept + 1).saturating_sub(prompt));
        self.held.truncate(kept);
        self.sequence.truncate(kept);
        kept
    }

    /// Runs `tokens` behind those held. The shares of `rows`.
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
