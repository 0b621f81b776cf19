//! Holds what an extend has added to its branch against engines that never had other weights than those that its record
//! names: each run of tokens under one version is sampled and recorded by such an engine to the last bit.

use offshoot_core::ids::{BranchId, TokenId};
use offshoot_engine::{
    EngineHandle, Extend, Finish, RootOptions, SampledToken, SamplingParams, Stop, UniformKey, WeightSpan,
};

use super::bench::{draw, finish, score};
use super::world::{Seeds, World};

/// How an extend came by its tokens.
#[derive(Clone)]
pub enum How {
    Drawn(UniformKey, SamplingParams, Stop),
    /// They were given, and scored by the model alone or not at all.
    Given,
    /// They were given, and scored as if they were sampled so.
    AsSampled(SamplingParams, Stop),
}

/// An extend that has ended.
pub struct Record {
    /// The branch's tokens before it.
    pub before: Vec<TokenId>,
    pub how: How,
    pub finish: Finish,
}

impl Record {
    /// Checks each run of its tokens. `weights`: those of each version.
    pub fn hold(&self, world: &World, weights: &[Seeds]) {
        let (spans, recorded) = (&self.finish.weights, self.recorded(&self.finish));
        let mut ends: Vec<usize> = spans.iter().skip(1).map(|span| span.from).collect();
        ends.extend((!recorded.is_empty()).then_some(recorded.len()));
        assert_eq!(ends.len(), spans.len(), "{:?}", self.finish);
        assert!(spans.is_sorted_by(|a, b| a.from < b.from && a.version < b.version), "{spans:?}");
        let added = self.finish.sampled_ids();
        for (&WeightSpan { version, from }, end) in spans.iter().zip(ends) {
            let what = format!("{:?}, {from}..{end} of version {version}", self.finish.reason);
            let fresh = world.fresh(weights[version.0 as usize]);
            let root = fresh.root(self.before.clone()).unwrap();
            let again = match &self.how {
                How::Given => score(root, added.to_vec()),
                How::Drawn(_, params, stop) | How::AsSampled(params, stop) => {
                    Extend::given_as_sampled(root, added.to_vec(), params, stop)
                }
            };
            assert!(self.recorded(&finish(&fresh, again))[from..end] == recorded[from..end], "{what}");
            // What was sampled before counts for penalties as what was given does not.
            if let How::Drawn(uniforms, params, stop) = &self.how
                && (from == 0 || !params.has_penalties())
            {
                let root = root_behind(&fresh, params, &self.before, &added[..from]);
                // In a form, what may end the text is part of what may be sampled.
                let stop = Stop { max_tokens: end - from, include_stop: true, strings: Vec::new(), ..stop.clone() };
                let drawn = finish(&fresh, draw(root, *uniforms, params.clone(), stop));
                assert!(drawn.tokens == added[from..end], "{what}");
            }
        }
        self.hold_routes(world, weights);
    }

    /// What is recorded of each token. Of scores that branches share, ranks are not always known.
    fn recorded(&self, finish: &Finish) -> Vec<SampledToken> {
        let records = finish.sampled_records().map(SampledToken::from);
        match self.how {
            How::Given => records.map(|scored| SampledToken { rank: None, ..scored }).collect(),
            How::Drawn(..) | How::AsSampled(..) => records.collect(),
        }
    }

    /// Checks the experts that an extend which came to its end tells: those that the last weights have chosen.
    fn hold_routes(&self, world: &World, weights: &[Seeds]) {
        let How::Drawn(uniforms, params, stop) = &self.how else { return };
        if !params.routes || self.finish.reason.is_cut() {
            return;
        }
        let added = self.finish.sampled_ids();
        let (_, known) = added.split_last().expect("an extend that came to its end has sampled something");
        let last = self.finish.weights.last().expect("something was sampled");
        let fresh = world.fresh(weights[last.version.0 as usize]);
        let root = root_behind(&fresh, params, &self.before, known);
        let stop = Stop { max_tokens: 1, strings: Vec::new(), ..stop.clone() };
        let expected = finish(&fresh, draw(root, *uniforms, params.clone(), stop)).routes;
        assert!(self.finish.routes.is_some() && self.finish.routes == expected, "{:?}", self.finish.reason);
    }
}

/// A branch of the tokens `before` an extend, and of the first ones that it has `added`, in its form if it has one.
fn root_behind(engine: &EngineHandle, params: &SamplingParams, before: &[TokenId], added: &[TokenId]) -> BranchId {
    let tokens = [before, added].concat();
    match &params.form {
        Some(form) => engine.root_in_form(tokens, RootOptions::default(), form, added.len()).unwrap(),
        None => engine.root(tokens).unwrap(),
    }
}
