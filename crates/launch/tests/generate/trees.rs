//! Sampling trees on an engine that computes: their samples are those of `generate`, and nothing stays behind.

use offshoot_core::ids::{NodeId, TokenId};
use offshoot_engine::scripted::text_of;
use offshoot_engine::{FinishReason, Hear, SamplingParams, Stop};
use offshoot_form::Form;
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

/// Steps that end at a letter within a form: the fork of a node that was split in its second step goes on as the node
/// did, and a text that had ended begins anew.
fn split_nodes_go_on_in_their_forms_as_the_engine_does(mode: Mode) {
    let mut tree = SamplingTree::new(mode.engine(roomy()), prompt(3, 18).into()).unwrap().seed(1).named("item");
    let steps = Stop { include_stop: true, tokens: vec![TokenId(u32::from(b'c'))], ..Stop::max_tokens(20) };
    let form = params().form(Form::Choice(vec!["abcdefgh".to_owned()]));
    let extend = |tree: &mut SamplingTree, node: NodeId, params: &SamplingParams, stop: &Stop| {
        tree.extend(&[node], params, stop).unwrap();
        let run = tree.node(node).runs.last().unwrap();
        (tree.node(node).text.clone(), run.finish.clone())
    };
    let child = |tree: &mut SamplingTree, at| tree.fork(at, 1).unwrap()[0];
    let root = tree.root();
    let node = child(&mut tree, root);
    assert_eq!(extend(&mut tree, node, &form, &steps).0, "abc");
    let most = Stop::max_tokens(4);
    assert_eq!(extend(&mut tree, node, &form, &most), ("abcdefg".to_owned(), FinishReason::Length));
    let rest = tree.split(node, 5, 5).unwrap();
    let beside = child(&mut tree, node);
    let ended = FinishReason::EndOfText;
    assert_eq!(extend(&mut tree, beside, &form, &Stop::max_tokens(20)), ("fgh".to_owned(), ended.clone()));
    assert_eq!(extend(&mut tree, rest, &form, &Stop::max_tokens(20)), ("fgh".to_owned(), ended.clone()));
    // Ended by the model, with no token of its own, and then begun anew.
    let next = child(&mut tree, rest);
    assert_eq!(extend(&mut tree, next, &form, &Stop::max_tokens(8)), ("abcdefgh".to_owned(), FinishReason::Length));
    assert_eq!(extend(&mut tree, next, &form, &Stop::max_tokens(20)), ("abcdefgh".to_owned(), ended.clone()));
    assert_eq!(extend(&mut tree, next, &form, &Stop::max_tokens(4)).0, "abcdefghabcd");
    tree.split(next, 10, 10).unwrap();
    let beside = child(&mut tree, next);
    assert_eq!(extend(&mut tree, beside, &form, &Stop::max_tokens(20)), ("cdefgh".to_owned(), ended));
}

in_modes! {
    in_turn, run_ahead, replicas:
    samples_are_those_of_a_sampling_tree,
    a_score_that_is_refused_leaves_no_probe,
    split_nodes_go_on_in_their_forms_as_the_engine_does,
}
