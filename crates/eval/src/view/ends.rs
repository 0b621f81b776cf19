//! Finds the node of a tree at which each sample ends. A run's samples do not record it, so it is found by the fields
//! that samples and nodes both have.

use std::collections::HashMap;

use serde_json::{Map, Value};

use offshoot_search::tree::Trace;

/// Where a sample ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleEnd {
    pub node: usize,
    /// Whether the number of tokens and the log-probability are the sample's, to the last bit: then its tokens are
    /// those of the node, or of the whole path to it. Otherwise only the text is equal.
    pub is_exact: bool,
}

/// Tokens, and the bits of a log-probability.
type SampleKey = (usize, u64);

/// The end of each of `samples` (lines of `samples.jsonl`); no node is used twice. Exact ends are assigned first; among
/// several nodes, the one whose ordinal is the sample's index. Otherwise the trimmed text from the root on must be
/// equal to the sample's.
pub fn ends(trace: &Trace, samples: &[Map<String, Value>]) -> Vec<Option<SampleEnd>> {
    let texts = trace.path_texts();
    let mut by_key: HashMap<SampleKey, Vec<usize>> = HashMap::new();
    let mut by_text: HashMap<&str, Vec<usize>> = HashMap::new();
    for (node, (text, keys)) in texts.iter().zip(keys(trace)).enumerate().skip(1) {
        by_text.entry(text.trim()).or_default().push(node);
        for key in keys.into_iter().flatten() {
            by_key.entry(key).or_default().push(node);
        }
    }
    let text_of =
        |sample: &Map<String, Value>| sample.get("text")?.as_str().map(str::trim).and_then(|x| by_text.get(x));
    let mut is_taken = vec![false; trace.nodes.len()];
    let mut ends: Vec<Option<SampleEnd>> = vec![None; samples.len()];
    for (is_exact, is_own) in [(true, true), (true, false), (false, true), (false, false)] {
        for (sample, end) in samples.iter().zip(&mut ends).filter(|(_, end)| end.is_none()) {
            let index = sample.get("index").and_then(Value::as_u64);
            let alike = if is_exact { key_of(sample).and_then(|key| by_key.get(&key)) } else { text_of(sample) };
            let fits = |&node: &usize| !is_taken[node] && (!is_own || Some(trace.nodes[node].ordinal) == index);
            let Some(node) = alike.into_iter().flatten().copied().find(fits) else { continue };
            is_taken[node] = true;
            *end = Some(SampleEnd { node, is_exact });
        }
    }
    ends
}

fn key_of(sample: &Map<String, Value>) -> Option<SampleKey> {
    let tokens = usize::try_from(sample.get("tokens")?.as_u64()?).ok()?;
    Some(key(tokens, sample.get("logprob")?.as_f64()?))
}

/// Adds 0.0, so that both signs of zero are equal.
fn key(tokens: usize, logprob: f64) -> SampleKey {
    (tokens, (logprob + 0.0).to_bits())
}

/// The key of each node alone, and of the path to it if that differs.
fn keys(trace: &Trace) -> Vec<[Option<SampleKey>; 2]> {
    let mut paths: Vec<(usize, f64)> = Vec::with_capacity(trace.nodes.len());
    let mut keys = Vec::with_capacity(trace.nodes.len());
    for node in &trace.nodes {
        let own = (node.tokens, node.logprob.unwrap_or(0.0));
        // The root is the prompt, and a question has a separate prompt.
        let above = node.parent.filter(|_| !node.asks).map(|parent| paths[parent]);
        let path = above.map_or((0, 0.0), |(tokens, logprob)| (tokens + own.0, logprob + own.1));
        paths.push(path);
        let (own, path) = (key(own.0, own.1), key(path.0, path.1));
        keys.push([Some(own), (path != own).then_some(path)]);
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn trace(nodes: &[(Option<usize>, u64, usize, f64, &str)]) -> Trace {
        let node =
            |(id, &(parent, ordinal, tokens, logprob, text)): (usize, &(Option<usize>, u64, usize, f64, &str))| {
                json!({"id": id, "parent": parent, "kind": "sample", "ordinal": ordinal, "state": "closed",
                   "finish": "length", "score": null, "tokens": tokens, "logprob": logprob, "text": text})
            };
        let nodes: Vec<Value> = nodes.iter().enumerate().map(node).collect();
        serde_json::from_value(json!({"item": "x", "kv_bytes_per_token": null, "nodes": nodes})).expect("a trace")
    }

    fn found(trace: &Trace, samples: &[Value]) -> Vec<Option<(usize, bool)>> {
        let samples: Vec<_> = samples.iter().map(|sample| sample.as_object().expect("an object").clone()).collect();
        ends(trace, &samples).into_iter().map(|end| end.map(|end| (end.node, end.is_exact))).collect()
    }

    #[test]
    fn one_text_of_other_tokens_is_told_apart() {
        // Two nodes have the text "ab", of 1 and of 2 tokens; the second sample's text was cut, so no node has it.
        let trace = trace(&[
            (None, 0, 9, 0.0, "Q"),
            (Some(0), 0, 2, -1.5, "ab"),
            (Some(0), 1, 1, -0.7, "ab"),
            (Some(1), 0, 3, -0.1, "cd\n"),
        ]);
        let short = json!({"index": 0, "text": "ab", "tokens": 1, "logprob": -0.7});
        let path = json!({"index": 1, "text": "abc", "tokens": 5, "logprob": -1.5 + -0.1});
        assert_eq!(found(&trace, &[short, path]), [Some((2, true)), Some((3, true))]);
        let unknown = json!({"index": 0, "text": " ab ", "tokens": 7, "logprob": -0.7});
        assert_eq!(found(&trace, std::slice::from_ref(&unknown)), [Some((1, false))], "by its text and ordinal alone");
        assert_eq!(
            found(&trace, &[unknown.clone(), unknown.clone(), unknown]),
            [Some((1, false)), Some((2, false)), None]
        );
    }

    #[test]
    fn equal_samples_have_a_node_each() {
        let sample = |index| json!({"index": index, "text": "a", "tokens": 1, "logprob": -0.7});
        let both = trace(&[(None, 0, 9, 0.0, "Q"), (Some(0), 0, 1, -0.7, "a"), (Some(0), 1, 1, -0.7, "a")]);
        assert_eq!(found(&both, &[sample(1), sample(0)]), [Some((2, true)), Some((1, true))]);
        // The tokens of the first are not recorded: it does not get the node of the second.
        let one = trace(&[(None, 0, 9, 0.0, "Q"), (Some(0), 0, 0, -0.7, "a"), (Some(0), 1, 1, -0.7, "a")]);
        assert_eq!(found(&one, &[sample(0), sample(1)]), [Some((1, false)), Some((2, true))]);
    }
}
