//! Ends a search: paths are answered if the task has a question for it, and the best one is the outcome.

use super::{Evaluate, SampledText, Texts, ThoughtPath, ThoughtSearcher};
use crate::outcome::{Outcome, Sample, SampleScore};
use crate::select;
use offshoot_core::error::Result;
use offshoot_core::ids::NodeId;

impl<T: Texts> ThoughtSearcher<'_, '_, T> {
    /// Answers `paths`, complete ones first, then by value; the outcome is the best one's.
    pub(super) fn answer(mut self, mut paths: Vec<ThoughtPath>) -> Result<Outcome> {
        paths.sort_by(|a, b| self.is_whole(b).cmp(&self.is_whole(a)).then(b.value.total_cmp(&a.value)));
        let ends = self.ends(&mut paths)?;
        self.judge_answers(&mut paths, &ends)?;
        let scored = self.score_answers(&mut paths, &ends)?;
        // All are assessed at once, and then waited for in turn.
        ends.iter().for_each(|&end| self.job.assessor.request(&self.tree.path_text(end)));
        let mut samples = Vec::with_capacity(ends.len());
        for (index, ((path, end), scored)) in (0..).zip(paths.iter().zip(ends).zip(scored)) {
            samples.push(self.job.close(self.tree, end, index, scored)?);
            self.tree.close(path.node);
        }
        let values: Vec<f64> = paths.iter().map(|path| path.value).collect();
        let mut best = select::best(&values, 1);
        best.retain(|&at| values[at] > f64::NEG_INFINITY);
        let best = best.first().map(|&at| &samples[at]);
        let spent = self.tree.spent();
        Ok(Outcome {
            prediction: best.and_then(|best| best.answer.clone()),
            correct: best.map_or_else(|| self.job.no_answer(), |best| best.correct),
            chosen: best.map(|best| best.index),
            search_tokens: spent.drawn - samples.iter().map(|sample: &Sample| sample.tokens).sum::<usize>(),
            search_prompt_tokens: spent.given,
            scorer: self.scores.as_ref().map(|scores| scores.work().clone()),
            samples,
            ..Outcome::default()
        })
    }

    /// Keeps in `paths` those that are answered; returns the end nodes of their samples.
    fn ends(&mut self, paths: &mut Vec<ThoughtPath>) -> Result<Vec<NodeId>> {
        let how = self.how;
        let Some(answering) = &how.answer else {
            // The prompt alone is not an answer.
            let (whole, bare) = std::mem::take(paths).into_iter().partition(|path| !path.thoughts.is_empty());
            *paths = whole;
            self.close(&bare);
            return Ok(paths.iter().map(|path| path.node).collect());
        };
        let most = answering.best.map_or(paths.len(), |most| most as usize).min(paths.len());
        let late = paths.split_off(most);
        self.prune(&late);
        let ends = self.tree.fork_all(&paths.iter().map(|path| path.node).collect::<Vec<_>>(), 1)?;
        self.draw(&ends, &answering.drawing, SampledText::Answer)?;
        let (answered, failed): (Vec<_>, Vec<_>) =
            std::mem::take(paths).into_iter().zip(ends).partition(|&(_, end)| !self.tree.has_failed(end));
        failed.iter().for_each(|(path, _)| self.tree.close(path.node));
        let ends;
        (*paths, ends) = answered.into_iter().unzip();
        Ok(ends)
    }

    /// If a scorer values the paths, its scores of the answers replace the paths' values; `None`: there is no scorer.
    fn score_answers(&mut self, paths: &mut [ThoughtPath], ends: &[NodeId]) -> Result<Vec<Option<SampleScore>>> {
        if !matches!(self.how.evaluate, Evaluate::Scorer) {
            return Ok(vec![None; ends.len()]);
        }
        let scored = self.scored(ends)?;
        for ((path, &end), scored) in paths.iter_mut().zip(ends).zip(&scored) {
            path.value = self.value_of(scored);
            scored.score().into_iter().for_each(|_| self.tree.set_score(end, path.value));
        }
        Ok(scored.into_iter().map(Some).collect())
    }

    /// If the task has a question about answers, its values replace the paths' values.
    fn judge_answers(&mut self, paths: &mut [ThoughtPath], ends: &[NodeId]) -> Result<()> {
        let how = self.how;
        let Evaluate::Value { last: Some(question), words, by, .. } = &how.evaluate else { return Ok(()) };
        let mut prompts = Vec::with_capacity(ends.len());
        for (path, &end) in paths.iter().zip(ends) {
            let answer = self.tree.node(end).text.trim().to_string();
            prompts.push((end, self.texts.ask_about_answer(question, &path.thoughts, &answer)?));
        }
        let values = self.values(prompts, words, by)?;
        for ((path, &end), value) in paths.iter_mut().zip(ends).zip(values) {
            path.value = value;
            self.tree.set_score(end, value);
        }
        Ok(())
    }
}
