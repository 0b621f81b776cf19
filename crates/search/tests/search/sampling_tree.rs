//! The sampling tree on a scripted engine: what forking, extending, scoring, cancelling and pruning promise to drivers.

use std::collections::HashSet;

use offshoot_core::ids::{AdapterVersion, NodeId};
use offshoot_engine::scripted::tokens_of;
use offshoot_engine::{
    AdapterSource, Continuation, EngineHandle, FinishReason, ForkKind, Hear, SamplingParams, ScriptedReply, Stop,
    TokenRecord, UniformKey,
};
use offshoot_search::tree::{Extension, NodeState, SamplingTree, Trace, TreeEvent};

use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::job;

fn tree_on(engine: EngineHandle) -> SamplingTree {
    job::tree_on(engine, "Q:").seed(7)
}

fn extend(tree: &mut SamplingTree, nodes: &[NodeId]) {
    tree.extend(nodes, &SamplingParams::default(), &Stop::default()).expect("the script answers");
}

/// The next node to finish; `None` once all have.
fn next_finished(growing: &mut Extension<'_>) -> Option<NodeId> {
    while let Some(event) = growing.next_event().expect("no failure") {
        if let TreeEvent::Finished { id, .. } = event {
            return Some(id);
        }
    }
    None
}

/// Replies with the length of the text so far, so that what a branch was built on can be read off.
fn length_teller() -> EngineHandle {
    EngineHandle::scripted(|call| ScriptedReply::text(&format!("<{}>", call.text().len())))
}

#[test]
fn thoughts_grow_on_their_own_path() {
    let mut tree = tree_on(length_teller());
    let children = tree.fork(tree.root(), 2).expect("the root is open");
    extend(&mut tree, &children[..1]);
    let grandchildren = tree.fork(children[0], 3).expect("a finished thought can be forked");
    extend(&mut tree, &grandchildren);
    extend(&mut tree, &grandchildren[..1]);

    assert_eq!(tree.node(children[0]).text, "<2>");
    assert_eq!(tree.path_text(grandchildren[1]), "<2><5>");
    assert_eq!(tree.path_text(grandchildren[0]), "<2><5><8>", "a second extend goes on where the first ended");
    assert_eq!(tree.node(children[1]).finish, None);
    assert_eq!(tree.children(tree.root()), children);
    assert_eq!(tree.parent(grandchildren[2]), Some(children[0]));
    assert_eq!(tree.node(grandchildren[0]).logprob, -6.0);
}

#[test]
fn children_of_several_nodes_come_in_the_order_of_their_parents() {
    let mut tree = tree_on(length_teller());
    let parents = tree.fork(tree.root(), 2).expect("the root is open");
    let children = tree.fork_all(&parents, 2).expect("both are open");
    let judges = tree.fork_each(ForkKind::Value, &parents).expect("both are open");
    let parents_of = |nodes: &[NodeId]| nodes.iter().map(|&node| tree.parent(node)).collect::<Vec<_>>();
    assert_eq!(parents_of(&children), [parents[0], parents[0], parents[1], parents[1]].map(Some));
    assert_eq!(parents_of(&judges), [Some(parents[0]), Some(parents[1])]);
    assert_eq!(tree.nodes().collect::<Vec<_>>(), [&[tree.root()], &parents[..], &children, &judges].concat());
    tree.prune(parents[1]);
    let error = tree.fork_all(&parents, 1).expect_err("one of them is pruned").to_string();
    assert_eq!(error, "node 2 of `item`: expected an open node, which can grow, found a pruned one");
}

#[test]
fn coins_follow_the_path_and_kinds_count_apart() {
    let keys = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = keys.clone();
    let engine = EngineHandle::scripted(move |call| {
        if let Continuation::Sampled { uniforms, .. } = call.continuation {
            seen.lock().expect("no panic before").push(*uniforms);
        }
        ScriptedReply::text("x")
    });
    let mut tree = tree_on(engine);
    let first = tree.fork(tree.root(), 2).expect("open");
    let values = tree.fork_as(ForkKind::Value, tree.root(), 3).expect("open");
    let more = tree.fork(tree.root(), 2).expect("open");
    let ordinals: Vec<u64> = first.iter().chain(&values).chain(&more).map(|&n| tree.node(n).ordinal).collect();
    assert_eq!(ordinals, [0, 1, 0, 1, 2, 2, 3], "values in between move no sample");

    let all: Vec<_> = first.iter().chain(&values).chain(&more).copied().collect();
    extend(&mut tree, &all);
    let keys = keys.lock().expect("the script did not panic").clone();
    assert_eq!(keys.iter().map(|key| key.0).collect::<HashSet<_>>().len(), 7, "no two branches share uniforms");
    assert_eq!(keys[5], UniformKey::root(7, "item").child(ForkKind::Sample, 2));
}

#[test]
fn scoring_leaves_the_node_as_it_was() {
    let engine = EngineHandle::scripted(|call| match call.continuation {
        Continuation::Given { tokens, .. } => ScriptedReply::scores(vec![-0.5; tokens.len()]),
        Continuation::Sampled { .. } => ScriptedReply::text(&format!("<{}>", call.text().len())),
    });
    let mut tree = tree_on(engine);
    let children = tree.fork(tree.root(), 2).expect("open");
    let scores = tree.score(&children, &tokens_of("yes")).expect("scored");
    assert_eq!(scores.len(), 2);
    assert_eq!(scores[0].sum, -1.5);
    assert_eq!(scores[0].tokens, [-0.5; 3]);
    extend(&mut tree, &children);
    assert_eq!(tree.node(children[0]).text, "<2>", "the scored continuation is not part of the branch");
    assert_eq!(tree.nodes().count(), 3, "probes are no thoughts");
    tree.close(children[1]);
    assert!(tree.score(&children, &tokens_of("yes")).is_err(), "one of them is closed");
}

#[test]
fn siblings_can_be_stopped_while_others_grow() {
    let engine = EngineHandle::scripted(|call| match call.branch.0 {
        1 => ScriptedReply::text("done"),
        _ => ScriptedReply::text("going on").until_cancelled(),
    });
    let mut tree = tree_on(engine);
    tree.hear(Hear::Tokens);
    let children = tree.fork(tree.root(), 3).expect("open");
    let mut growing = tree.start(&children, &SamplingParams::default(), &Stop::default()).expect("started");
    let mut streamed = String::new();
    loop {
        match growing.next_event().expect("no failure").expect("not all have finished") {
            TreeEvent::Tokens { id, text, .. } if id == children[0] => streamed.push_str(&text),
            TreeEvent::Tokens { .. } => {}
            TreeEvent::Finished { id, .. } => {
                assert_eq!(id, children[0]);
                break;
            }
            TreeEvent::Failed { id, .. } => panic!("{id:?} does not fail"),
        }
    }
    growing.cancel(&children[1..2]);
    assert_eq!(next_finished(&mut growing), Some(children[1]));
    growing.cancel_all();
    assert_eq!(next_finished(&mut growing), Some(children[2]));
    assert_eq!(next_finished(&mut growing), None);
    drop(growing);
    assert_eq!(streamed, "done");
    assert_eq!(tree.node(children[0]).finish, Some(FinishReason::EndOfText));
    assert_eq!(tree.node(children[2]).finish, Some(FinishReason::Cancelled));
}

#[test]
fn a_dropped_extension_leaves_a_true_record() {
    let engine = EngineHandle::scripted(|call| match call.text().as_str() {
        "Q:" => ScriptedReply::text("half").until_cancelled(),
        whole => ScriptedReply::text(&format!("<{whole}>")),
    });
    let mut tree = tree_on(engine);
    tree.hear(Hear::Tokens);
    let children = tree.fork(tree.root(), 2).expect("open");
    let mut growing = tree.start(&children, &SamplingParams::default(), &Stop::default()).expect("started");
    for _ in 0..4 {
        growing.next_event().expect("no failure");
    }
    drop(growing);
    extend(&mut tree, &children);
    for node in children {
        let text = &tree.node(node).text;
        let (half, on) = text.split_at(text.find('<').expect("it went on"));
        assert!(half.len() >= 2 && "half".starts_with(half), "{text}");
        assert_eq!(on, format!("<Q:{half}>"), "the engine goes on from what the node says");
        assert_eq!(tree.node(node).tokens, tokens_of(text));
    }
}

#[test]
fn a_failed_node_cannot_go_on() {
    let mut tree = tree_on(EngineHandle::scripted(|_| panic!("no such page")));
    let child = tree.fork(tree.root(), 1).expect("open")[0];
    let error = tree.extend(&[child], &SamplingParams::default(), &Stop::default()).expect_err("the script panics");
    assert!(error.to_string().contains("no such page"), "{error}");
    assert_eq!((tree.node(child).state(), tree.node(child).finish.clone()), (NodeState::Closed, None));
}

#[test]
fn a_branch_that_fails_leaves_its_siblings_alone() {
    // Branch 0 is the root, 2 the second child.
    let engine = EngineHandle::scripted(|call| match call.branch.0 {
        2 => ScriptedReply::text("beg").failing(),
        _ => ScriptedReply::text("whole"),
    });
    let mut tree = tree_on(engine);
    let children = tree.fork(tree.root(), 3).expect("open");
    extend(&mut tree, &children);
    let texts = |tree: &SamplingTree| children.iter().map(|&node| tree.node(node).text.clone()).collect::<Vec<_>>();
    assert_eq!(texts(&tree), ["whole", "", "whole"]);
    let failed = tree.node(children[1]);
    assert_eq!((failed.state(), failed.finish.clone()), (NodeState::Closed, Some(FinishReason::Failed)));
    assert!(tree.failure(children[1]).is_some_and(|error| error.to_string().contains("one that fails")));
    assert!(!tree.has_failed(children[0]) && tree.failure(children[0]).is_none());
    tree.extend(&children[..1], &SamplingParams::default(), &Stop::default()).expect("the first one goes on");
    tree.extend(&children[1..2], &SamplingParams::default(), &Stop::default()).expect_err("the second one is closed");
}

#[test]
fn where_every_branch_fails_the_first_failure_is_told() {
    let mut tree = tree_on(EngineHandle::scripted(|_| ScriptedReply::text("").failing()));
    let children = tree.fork(tree.root(), 2).expect("open");
    let error = tree.extend(&children, &SamplingParams::default(), &Stop::default()).expect_err("both fail");
    assert!(error.to_string().contains("one that fails"), "{error}");
}

#[test]
fn pruning_drops_the_lease_and_keeps_the_record() {
    let mut tree = tree_on(length_teller());
    let children = tree.fork(tree.root(), 2).expect("open");
    extend(&mut tree, &children);
    let below = tree.fork(children[0], 1).expect("open");
    tree.prune(children[0]);
    assert_eq!(tree.node(below[0]).state(), NodeState::Pruned);
    assert_eq!(tree.node(children[0]).text, "<2>");
    assert!(tree.fork(children[0], 1).is_err(), "a pruned thought cannot grow");
    let on = tree.fork(children[1], 1).expect("its sibling can");
    tree.close(on[0]);
    assert_eq!(tree.node(on[0]).state(), NodeState::Closed);
}

#[test]
fn the_likeliest_tokens_are_kept_where_they_were_asked_for() {
    let mut tree = tree_on(EngineHandle::scripted(|_| ScriptedReply::text("ab").logprob(-0.5)));
    let children = tree.fork(tree.root(), 2).expect("open");
    let asking = SamplingParams { top_logprobs: Some(3), ..SamplingParams::default() };
    tree.extend_given(&children, &tokens_of("x")).expect("given");
    tree.extend(&children[..1], &asking, &Stop::default()).expect("the script answers");
    extend(&mut tree, &children);
    let top_of = |record: Option<TokenRecord<'_>>| -> Vec<(u32, f32)> {
        record.map_or(&[][..], |record| record.top).iter().map(|&(token, p)| (token.0, p)).collect()
    };
    let top: Vec<Vec<(u32, f32)>> = tree.node(children[0]).records().map(top_of).collect();
    let (a, b) = (u32::from(b'a'), u32::from(b'b'));
    assert_eq!(top, [vec![], vec![(a, -0.5)], vec![(b, -0.5)], vec![], vec![]], "one for each of xabab");
    assert!(tree.node(children[1]).runs.iter().all(|run| run.records.tops().is_empty()));
    let json = serde_json::to_value(tree.trace()).expect("a trace is JSON");
    assert_eq!(json["nodes"][1]["top"][1], serde_json::json!([[a, -0.5]]));
    assert!(json["nodes"][2].get("top").is_none());
}

#[test]
fn the_record_can_be_exported() {
    let mut tree = tree_on(EngineHandle::scripted(|_| ScriptedReply::text("say \"hi\"\n")));
    let children = tree.fork(tree.root(), 2).expect("open");
    extend(&mut tree, &children);
    tree.set_score(children[0], 0.25);
    tree.prune(children[1]);

    let trace = tree.trace();
    let json = serde_json::to_value(&trace).expect("a trace is JSON");
    assert_eq!(json["item"], "item");
    let nodes = json["nodes"].as_array().expect("a list");
    assert_eq!(nodes.len(), 3);
    assert_eq!(nodes[0]["parent"], serde_json::Value::Null);
    assert_eq!(nodes[0]["tokens"], 2);
    assert_eq!(nodes[0]["logprob"], serde_json::Value::Null, "a prompt is given, not drawn");
    assert_eq!(nodes[1]["parent"], 0);
    assert_eq!(nodes[1]["text"], "say \"hi\"\n");
    assert_eq!(nodes[1]["score"], 0.25);
    assert_eq!(nodes[2]["state"], "pruned");
    assert_eq!(serde_json::from_value::<Trace>(json).expect("it reads what it wrote"), trace);
    assert_eq!(trace.branches(), [2, 1, 1]);

    let dot = Trace::to_dot([&trace]);
    assert!(dot.contains("t0n0 -> t0n1;") && dot.contains("t0n0 -> t0n2;"), "{dot}");
    assert!(dot.contains("say \\\"hi\\\"\\n"), "quotes and line ends are escaped: {dot}");
    assert_eq!(dot.matches("style=dashed").count(), 1, "{dot}");
}

/// An adapter that a scripted engine takes.
fn load_adapter(engine: &EngineHandle) -> AdapterVersion {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = r#"{"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["q_proj"]}"#;
    std::fs::write(folder.path().join("adapter_config.json"), config).expect("it is writable");
    let view = |shape: &[usize]| TensorView::new(Dtype::F32, shape.to_vec(), &[0; 8]).expect("two numbers");
    let tensors = [("q_proj.lora_A.weight", view(&[1, 2])), ("q_proj.lora_B.weight", view(&[2, 1]))];
    let file = safetensors::serialize(tensors, None).expect("sound tensors");
    std::fs::write(folder.path().join("adapter_model.safetensors"), file).expect("it is writable");
    let source = AdapterSource::Folder(folder.path().to_path_buf());
    engine.load_adapter("one", source).expect("a sound adapter").version
}

#[test]
fn nodes_go_on_with_adapters_that_are_loaded() {
    let engine = EngineHandle::scripted(|call| match call.text().as_str() {
        "Q:" => ScriptedReply::text("one two"),
        _ => ScriptedReply::text(" three"),
    });
    let version = load_adapter(&engine);
    let mut tree = tree_on(engine);
    let node = tree.fork(tree.root(), 1).expect("the root is open")[0];
    extend(&mut tree, &[node]);
    let plain = tree.fork(node, 1).expect("it is open");
    let adapted = tree.fork_with(node, 2, Some(version)).expect("it is loaded");
    assert_eq!(adapted.iter().map(|&child| tree.node(child).ordinal).collect::<Vec<_>>(), [1, 2]);
    extend(&mut tree, &[plain[0], adapted[0], adapted[1]]);
    assert_eq!(tree.path_text(adapted[1]), "one two three");
    let below = tree.fork(adapted[1], 1).expect("it is open");
    extend(&mut tree, &below);
    let never = AdapterVersion(version.0 + 1);
    assert!(tree.fork_with(node, 1, Some(never)).is_err() && tree.set_adapter(&plain, Some(never)).is_err());
    // A split makes a branch anew, which would have the root's adapter.
    for adapted in [adapted[0], below[0]] {
        let refused = tree.split(adapted, 1, 1).expect_err("it has another adapter").to_string();
        assert!(refused.contains("the root's adapter"), "{refused}");
    }
    tree.set_adapter(&plain, None).expect("it is open");
    tree.split(plain[0], 1, 1).expect("it has the root's adapter");
}
