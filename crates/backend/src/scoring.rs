//! What an attention score is beyond the product of a query and a key: its factor, a cap, and sinks.

use offshoot_kv::plan::Member;

/// The scores of one layer's attention. `V`: the backend's vectors.
#[derive(Debug)]
pub struct Scoring<'a, V> {
    /// Factor of `q . k`.
    pub scale: f32,
    /// Scores become `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// `[q_heads]`: for each query head one more score in the softmax, which belongs to no position. It takes a share
    /// and adds no value, once for each row, however a plan divides the row's positions.
    pub sinks: Option<&'a V>,
}

impl<V> Scoring<'_, V> {
    /// Only a factor.
    pub fn scaled(scale: f32) -> Self {
        Self { scale, softcap: None, sinks: None }
    }

    /// That of one of the devices which divide a row's positions: the first one alone adds sinks.
    #[must_use]
    pub fn of_member(self, member: Member) -> Self {
        Self { sinks: self.sinks.filter(|_| member.number == 0), ..self }
    }

    /// The score of a product of a query and a key.
    pub fn score(&self, product: f32) -> f32 {
        let score = product * self.scale;
        self.softcap.map_or(score, |cap| cap * (score / cap).tanh())
    }

    /// The score of a product of a query and a key, in f64.
    pub fn score_exactly(&self, product: f64) -> f64 {
        let score = product * f64::from(self.scale);
        self.softcap.map(f64::from).map_or(score, |cap| cap * (score / cap).tanh())
    }
}

impl<V> Clone for Scoring<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for Scoring<'_, V> {}
