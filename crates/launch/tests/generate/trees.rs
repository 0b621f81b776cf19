//! Sampling trees on an engine that computes: their samples are those of `generate`, and nothing stays behind.

use offshoot_engine::scripted::text_of;
use offshoot_engine::{Hear, Stop};
use offshoot_launch::generate;
use offshoot_search::tree::SamplingTree;

use crate::bench::{Mode, length, params, prompt, roomy};
use crate::generate::{job, requests};

fn samples_are_those_of_a_sampling_tree(mode: Mode) {
    let (job, params, stop) = (job(), params(), Stop::max_tokens(25));
    let generated =
        generate(&mode.engine(roomy()), requests(&job, &params, &stop), Hear::Finishes).collect_all().unwrap();
    let engine = mode.engine(roomy());
    for ((tokens, n), finishes) in job.iter().zip(&generated) {
        let mut tree =
            SamplingTree::new(engine.clone(), tokens.to_vec().into()).unwrap().seed(1).named(text_of(tokens));
        let nodes = tree.fork(tree.root(), *n).unwrap();
        tree.extend(&nodes, &params, &stop).unwrap();
        assert_eq!(finishes.len(), *n);
        for (node, finish) in nodes.into_iter().zip(finishes) {
            let node = tree.node(node);
            assert_eq!(
                (&node.tokens, &node.text, &node.runs[0].records),
                (&finish.tokens, &finish.text, &finish.records)
            );
            assert_eq!(node.finish.as_ref(), Some(&finish.reason));
        }
    }
}

fn a_score_that_is_refused_leaves_no_probe(mode: Mode) {
    let engine = mode.engine(roomy());
    let mut tree = SamplingTree::new(engine.clone(), prompt(1, 50).into()).unwrap().seed(1).named("item");
    let children = tree.fork(tree.root(), 2).unwrap();
    tree.extend(&children, &params(), &length(5)).unwrap();
    tree.close(children[1]);
    assert!(tree.score(&children, &prompt(2, 3)).is_err());
    drop(tree);
    assert_eq!(engine.metrics().unwrap().kv_bytes_held, 0);
}

in_modes! {
    in_turn, run_ahead, replicas:
    samples_are_those_of_a_sampling_tree,
    a_score_that_is_refused_leaves_no_probe,
}
