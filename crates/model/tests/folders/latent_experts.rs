//! config.json files of families with latent attention: which layers have experts, how their routers choose, and what
//! is refused.

use offshoot_backend::{GroupMerit, LeastSum, Router, RouterGroups, RouterScores};
use offshoot_model::ModelConfig;
use offshoot_model::config::{BranchScale, ExpertsSpec, FeedForward};
use serde_json::{Value, json};

use crate::latent_configs::{bad, good};

fn experts(config: &ModelConfig, layer: usize) -> ExpertsSpec {
    *config.layers[layer].feed_forward.experts().unwrap()
}

fn sparse(config: &ModelConfig) -> Vec<bool> {
    config.layers.iter().map(|layer| layer.feed_forward.experts().is_some()).collect()
}

fn router(scores: RouterScores) -> Router {
    Router::new(2, scores)
}

const SIGMOIDS: RouterScores = RouterScores::Sigmoid { sum: Some(LeastSum::Tiny) };

#[test]
fn routers_choose_as_their_families_do() {
    let softmax = |normalise| RouterScores::Softmax { normalise };
    let known = [
        ("deepseek_v2", router(softmax(false)), false, 1.0),
        ("deepseek_v3", router(SIGMOIDS), true, 2.5),
        ("glm4_moe_lite", router(SIGMOIDS), true, 1.8),
        ("mistral4", router(softmax(true)), false, 1.0),
        ("sarvam_mla", router(SIGMOIDS), true, 2.5),
        ("longcat_flash", Router { identities: 256, ..router(softmax(false)) }, true, 6.0),
    ];
    for (name, router, choosing_bias, scale) in known {
        let config = good(name, json!({"first_k_dense_replace": 0}));
        let layer = if name == "glm4_moe_lite" { 1 } else { 0 };
        let spec = experts(&config, layer);
        assert_eq!((spec.count, spec.width, spec.router), (8, 24, router), "{name}");
        assert_eq!((spec.choosing_bias, spec.scale, spec.routed()), (choosing_bias, scale, 8 + router.identities));
    }
    let unscaled = good("deepseek_v3", json!({"norm_topk_prob": false, "routed_scaling_factor": 1.0}));
    let spec = experts(&unscaled, 3);
    assert_eq!((spec.router, spec.scale), (router(RouterScores::Sigmoid { sum: None }), 1.0));
    assert_eq!(sparse(&good("minicpm3", json!({}))), [false; 4]);
}

#[test]
fn groups_are_judged_as_their_families_do() {
    let grouped = json!({"n_group": 4, "topk_group": 2, "topk_method": "noaux_tc"});
    let groups = |merit| Some(RouterGroups { count: 4, chosen: 2, merit });
    assert_eq!(experts(&good("deepseek_v3", grouped), 3).router.groups, groups(GroupMerit::SumOfTwo));
    let grouped = json!({"n_group": 4, "topk_group": 2});
    assert_eq!(experts(&good("mistral4", grouped.clone()), 0).router.groups, groups(GroupMerit::SumOfTwo));
    // DeepSeek-V2 has groups only if it says so.
    assert_eq!(experts(&good("deepseek_v2", grouped), 0).router.groups, None);
    let limited = |topk| json!({"n_group": 4, "topk_group": topk, "topk_method": "group_limited_greedy"});
    assert_eq!(experts(&good("deepseek_v2", limited(2)), 0).router.groups, groups(GroupMerit::Best));
    // All groups are no restriction.
    assert_eq!(experts(&good("deepseek_v2", limited(4)), 0).router.groups, None);
    let longcat = json!({"n_group": 4, "topk_group": 2});
    assert_eq!(experts(&good("longcat_flash", longcat), 0).router.groups, None);
}

#[test]
fn the_first_layers_are_dense_and_all_rows_share_an_expert() {
    let v3 = good("deepseek_v3", json!({"first_k_dense_replace": 2, "n_shared_experts": 3}));
    assert_eq!(sparse(&v3), [false, false, true, true]);
    let FeedForward::SharedExpert { shared, gated, .. } = v3.layers[2].feed_forward else {
        panic!("{:?}", v3.layers[2].feed_forward)
    };
    assert_eq!((shared.width, gated, v3.layers[0].feed_forward.dense().unwrap().width), (72, false, 96));
    for none in [json!(0), Value::Null] {
        let config = good("deepseek_v3", json!({"n_shared_experts": none}));
        assert!(matches!(config.layers[3].feed_forward, FeedForward::Experts(_)));
    }
    assert_eq!(sparse(&good("deepseek_v3", json!({"first_k_dense_replace": 9}))), [false; 4]);
    // Sarvam's names.
    let sarvam = good("sarvam_mla", json!({"num_experts": 6, "num_shared_experts": 2, "n_routed_experts": 8}));
    let FeedForward::SharedExpert { shared, experts, .. } = sarvam.layers[1].feed_forward else { panic!() };
    assert_eq!((experts.count, shared.width, sparse(&sarvam)), (6, 48, vec![false, true, true, true]));
    // GLM lists its layers, and ignores the number of dense ones.
    let listed = json!({"mlp_layer_types": ["sparse", "dense", "dense", "sparse"], "first_k_dense_replace": 4});
    assert_eq!(sparse(&good("glm4_moe_lite", listed)), [true, false, false, true]);
    assert_eq!(sparse(&good("glm4_moe_lite", json!({"first_k_dense_replace": 3}))), [false, true, true, true]);
}

#[test]
fn a_layer_of_longcat_is_two() {
    let config = good("longcat_flash", json!({"num_layers": 2, "ffn_hidden_size": 40, "expert_ffn_hidden_size": 12}));
    assert_eq!(sparse(&config), [true, false, true, false]);
    let [FeedForward::Opens { dense, experts }, FeedForward::Closes(closing)] =
        [0, 1].map(|layer| config.layers[layer].feed_forward)
    else {
        panic!("{:?}", config.layers[0].feed_forward)
    };
    assert_eq!((dense, dense.width, experts.width), (closing, 40, 12));
    let shape = config.route_shape().unwrap();
    assert_eq!((shape.layers, shape.experts), (2, 8 + 256));
    bad("longcat_flash", json!({"num_hidden_layers": 3}), &["num_hidden_layers", "num_layers", "found 3"]);
    for layers in [0, 2049, 1_u64 << 63] {
        let found = format!("found {layers}");
        bad("longcat_flash", json!({"num_layers": layers}), &["`num_layers`", "from 1 to 2048", &found]);
    }
}

#[test]
fn errors_call_fields_as_the_file_does() {
    bad("longcat_flash", json!({"moe_topk": 0}), &["`moe_topk`", "found 0"]);
    bad("longcat_flash", json!({"ffn_hidden_size": "wide"}), &["`ffn_hidden_size`", "wide"]);
    let many = json!({"num_experts": 6, "num_experts_per_tok": 7});
    bad("sarvam_mla", many, &["`num_experts_per_tok`", "at most num_experts (6)", "found 7"]);
    let shared = json!({"num_shared_experts": 1_000_000_000_000_u64});
    bad("sarvam_mla", shared, &["`num_shared_experts`", "moe_intermediate_size 24"]);
}

#[test]
fn blocks_of_deepseek_v2_may_have_biases() {
    let v2 = |bias: bool| good("deepseek_v2", json!({"mlp_bias": bias, "first_k_dense_replace": 1}));
    for bias in [false, true] {
        let config = v2(bias);
        let FeedForward::SharedExpert { shared, experts, .. } = config.layers[1].feed_forward else { panic!() };
        let dense = *config.layers[0].feed_forward.dense().unwrap();
        assert_eq!((dense.bias, shared.bias, experts.bias), (bias, bias, false));
    }
    // One for each output of a dense block, and of the shared ones of three layers.
    let (dense, shared) = (2 * 96 + 64, 2 * 48 + 64);
    assert_eq!(v2(true).parameters() - v2(false).parameters(), dense + 3 * shared);
}

#[test]
fn minicpm3_multiplies_blocks_and_logits() {
    let config = good("minicpm3", json!({"scale_depth": 3.0, "dim_model_base": 16}));
    assert_eq!((config.layers[1].branch_scale, config.logit_scale), (BranchScale::of_both(Some(1.5)), Some(0.25)));
    let silent = good("minicpm3", json!({"scale_depth": null, "dim_model_base": null}));
    assert_eq!((silent.layers[1].branch_scale, silent.logit_scale), (BranchScale::default(), None));
    assert_eq!(good("deepseek_v3", json!({"scale_depth": 3.0, "dim_model_base": 16})).logit_scale, None);
}

#[test]
fn what_routers_do_not_do_is_named() {
    let v3 = |changes: Value, said: &[&str]| bad("deepseek_v3", changes, said);
    v3(json!({"n_group": 3}), &["n_group", "a divisor of n_routed_experts (8)", "found 3"]);
    v3(json!({"n_group": 2, "topk_group": 3}), &["topk_group", "at most n_group (2)", "found 3"]);
    v3(json!({"n_group": 8, "topk_group": 4}), &["n_group", "at most 4", "2 experts", "found 8"]);
    let few = json!({"n_group": 4, "topk_group": 1, "num_experts_per_tok": 3});
    v3(few, &["num_experts_per_tok", "at most 2", "topk_group", "found 3"]);
    v3(json!({"num_experts_per_tok": 9}), &["num_experts_per_tok", "at most n_routed_experts (8)", "found 9"]);
    v3(json!({"scoring_func": "softmax"}), &["scoring_func", "\"sigmoid\" (deepseek_v3)", "\"softmax\""]);
    v3(json!({"topk_method": "greedy"}), &["topk_method", "\"noaux_tc\" (deepseek_v3)", "\"greedy\""]);
    v3(json!({"moe_layer_freq": 2}), &["moe_layer_freq", "1: all layers", "found 2"]);
    v3(json!({"routed_scaling_factor": 0}), &["routed_scaling_factor", "above 0", "found 0"]);
    v3(json!({"n_shared_experts": 1_000_000_000_000_u64}), &["n_shared_experts", "moe_intermediate_size 24"]);
    bad("sarvam_mla", json!({"score_function": "softmax"}), &["`score_function`", "\"sigmoid\" (sarvam_mla)"]);
    bad("deepseek_v2", json!({"scoring_func": "sigmoid"}), &["scoring_func", "\"softmax\" (deepseek_v2)"]);
    bad("deepseek_v2", json!({"topk_method": "noaux_tc"}), &["topk_method", "\"greedy\" or", "\"noaux_tc\""]);
    bad("deepseek_v2", json!({"norm_topk_prob": true}), &["norm_topk_prob", "false (deepseek_v2)", "true"]);
    let limited = json!({"topk_method": "group_limited_greedy", "n_group": null});
    bad("deepseek_v2", limited, &["n_group", "a whole number", "found nothing"]);
    bad("glm4_moe_lite", json!({"mlp_layer_types": ["dense"]}), &["mlp_layer_types", "num_hidden_layers (4)", "1"]);
    let types = json!({"mlp_layer_types": ["dense", "sparse", "moe", "sparse"]});
    bad("glm4_moe_lite", types, &["mlp_layer_types[2]", "dense or sparse", "moe"]);
    bad("longcat_flash", json!({"zero_expert_type": "zero"}), &["zero_expert_type", "\"identity\"", "\"zero\""]);
    let many = json!({"zero_expert_num": 2, "num_experts_per_tok": 11});
    bad("longcat_flash", many, &["num_experts_per_tok", "zero_expert_num (2)", "found 11"]);
    good("longcat_flash", json!({"zero_expert_num": 2, "num_experts_per_tok": 10, "router_bias": true}));
}
