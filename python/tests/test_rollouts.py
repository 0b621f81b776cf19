"""Rollouts: groups and trees as packed tries, groups that end early, and searches whose samples share prefixes."""

import numpy
import pytest

import offshoot
from offshoot import RolloutTrie, SamplingParams
from offshoot.sampling_params import StructuredOutputsParams

SHORT = SamplingParams(n=8, max_tokens=24, temperature=1.0, logprobs=0, seed=5)


def check(trie):
    """What holds of every trie."""
    count = len(trie)
    assert all(len(column) == count for column in (
        trie.token_ids, trie.parents, trie.ends, trie.positions, trie.depths, trie.logprobs, trie.weight_versions,
        trie.sampled))
    assert (numpy.isnan(trie.logprobs) == ~trie.sampled).all()
    assert ((trie.weight_versions == -1) == ~trie.sampled).all()
    mask = trie.attention_mask()
    for at, parent in enumerate(trie.parents):
        above = mask[parent] if parent >= 0 else numpy.zeros(count, bool)
        assert (numpy.flatnonzero(mask[at]) == numpy.append(numpy.flatnonzero(above), at)).all()
    assert (mask.sum(1) - 1 == trie.positions).all()


def test_a_group_has_its_prompt_once(llm, question):
    outputs = llm.generate([question, question + " Seven"], SHORT, use_tqdm=False)
    rewards = [[float(len(sample.token_ids)) for sample in output.outputs] for output in outputs]
    trie = RolloutTrie.from_outputs(outputs, rewards)
    check(trie)
    prompts = [output.prompt_token_ids for output in outputs]
    sampled = sum(len(sample.token_ids) for output in outputs for sample in output.outputs)
    shared = next((at for at, (a, b) in enumerate(zip(*prompts)) if a != b), min(map(len, prompts)))
    assert len(trie) == len(prompts[0]) + len(prompts[1]) - shared + sampled
    assert trie.unpacked_tokens == sum(8 * len(prompt) for prompt in prompts) + sampled
    assert trie.rewards.tolist() == sum(rewards, [])
    assert trie.leaf_groups.tolist() == [0] * 8 + [1] * 8 and trie.leaf_samples.tolist() == [*range(8)] * 2
    for leaf, (output, sample) in enumerate((output, sample) for output in outputs for sample in output.outputs):
        assert trie.sequence(leaf).tolist() == output.prompt_token_ids + sample.token_ids
        own = trie.path(leaf)[len(output.prompt_token_ids):]
        logprobs = [row[token].logprob for token, row in zip(sample.token_ids, sample.logprobs)]
        assert trie.logprobs[own].tolist() == pytest.approx(logprobs, abs=1e-6)
        assert trie.sampled[own].all() and (trie.depths[own] == 1).all()
        assert (trie.finish_reasons[leaf], trie.stop_reasons[leaf]) == (sample.finish_reason, sample.stop_reason)
    assert "16 samples" in repr(trie)


def test_samples_that_their_form_has_ended_are_leaves(llm, question):
    letter = llm.get_tokenizer().encode("a", add_special_tokens=False)
    pairs = " | ".join(f"r{n % 101} r{n // 101}" for n in range(101 * 101))
    rules = "".join(f'r{n}: "q" | "q" "{n}"\n' for n in range(101))
    for form, fields, reason in [
        ({"regex": "ab"}, {"allowed_token_ids": letter}, "dead_end"),
        ({"grammar": f'start: "abc" pair\npair: {pairs}\n{rules}'}, {}, "form_limit"),
    ]:
        form = StructuredOutputsParams(**form)
        params = SamplingParams(n=2, max_tokens=9, logprobs=0, seed=1, structured_outputs=form, **fields)
        outputs = llm.generate([question], params, use_tqdm=False)
        assert [sample.finish_reason for sample in outputs[0].outputs] == [reason] * 2
        assert RolloutTrie.from_outputs(outputs).finish_reasons == [reason] * 2


def test_what_a_trie_cannot_be_made_of_is_refused(llm, question):
    (output,) = llm.generate(question, SamplingParams(n=2, max_tokens=4, seed=1), use_tqdm=False)
    with pytest.raises(ValueError, match=r"outputs\[0\].outputs\[0\].logprobs: expected .*logprobs=0"):
        RolloutTrie.from_outputs(output)
    (output,) = llm.generate(question, SamplingParams(n=2, max_tokens=4, seed=1, logprobs=0), use_tqdm=False)
    with pytest.raises(ValueError, match=r"rewards\[0\]: expected 2, one for each sample, found 1"):
        RolloutTrie.from_outputs([output], [[1.0]])
    with pytest.raises(ValueError, match="rewards: expected 1 lists"):
        RolloutTrie.from_outputs([output], [[1.0, 2.0], [3.0]])
    tree = llm.tree(question, seed=1)
    with pytest.raises(ValueError, match="never extended"):
        tree.rollouts({tree.root.fork(1)[0]: 1.0})
    with pytest.raises(OSError):
        RolloutTrie.load("nowhere.safetensors")


def test_files_and_tables_have_the_columns(llm, question, tmp_path):
    pa = pytest.importorskip("pyarrow")
    outputs = llm.generate([question], SHORT, use_tqdm=False)
    trie = RolloutTrie.from_outputs(outputs, [[1.0, None] * 4])
    path = tmp_path / "rollouts.safetensors"
    trie.save(path)
    again = RolloutTrie.load(path)
    for name, column in trie._columns.items():
        assert numpy.array_equal(column, again._columns[name], equal_nan=column.dtype.kind == "f"), name
    assert again.finish_reasons == trie.finish_reasons
    tokens, leaves = trie.to_arrow(), trie.leaves_to_arrow()
    assert tokens["token_id"].to_pylist() == trie.token_ids.tolist()
    assert tokens["parent"].to_pylist() == [None if parent < 0 else parent for parent in trie.parents.tolist()]
    assert tokens["sampled"].to_pylist() == trie.sampled.tolist() and tokens["logprob"].type == pa.float32()
    assert leaves["finish_reason"].to_pylist() == trie.finish_reasons
    assert leaves.num_rows == 8


def test_a_row_has_one_label_at_each_position(llm, question):
    outputs = llm.generate([question], SHORT, use_tqdm=False)
    trie = RolloutTrie.from_outputs(outputs, [[float(at) for at in range(8)]])
    row = trie.tree_row()
    sampled = [len(sample.token_ids) for sample in outputs[0].outputs]
    assert len(row["token_index"]) == sum(sampled) and len(row["input_ids"]) == len(trie) + 7
    labels = row["shift_labels"][row["token_index"]]
    assert labels.tolist() == [token for sample in outputs[0].outputs for token in sample.token_ids]
    assert numpy.allclose(numpy.unique(row["advantages"]), numpy.arange(8) - 3.5)
    assert row["tree_cu_seqlens_q"][-1] == len(row["input_ids"]) and row["tree_cu_seqlens_q"].dtype == numpy.int32
    assert row["tree_max_seqlens"].tolist() == [
        numpy.diff(row["tree_cu_seqlens_q"]).max(), numpy.diff(row["tree_cu_seqlens_k"]).max()]
    with pytest.raises(ValueError, match="advantages: expected 8"):
        trie.tree_row([1.0])


def test_a_group_ends_and_its_stragglers_are_finished(llm, question):
    params = SamplingParams(n=12, max_tokens=200, temperature=1.0, stop=["\n"], logprobs=0, seed=3)
    (whole,) = llm.generate([question], params, use_tqdm=False)
    outputs = llm.generate([question], params, use_tqdm=False, min_finished=1, stragglers="keep")
    (output,) = outputs
    stragglers = [sample for sample in output.outputs if sample.finish_reason == "abort"]
    assert len(stragglers) < 12 and output.finished == (not stragglers)
    for sample, other in zip(output.outputs, whole.outputs):
        assert other.token_ids[:len(sample.token_ids)] == sample.token_ids
    trie = RolloutTrie.from_outputs(outputs)
    assert trie.finish_reasons.count("abort") == len(stragglers)
    (late,) = llm.finish(outputs)
    assert [sample.token_ids for sample in late.outputs] == [sample.token_ids for sample in whole.outputs]
    assert [sample.text for sample in late.outputs] == [sample.text for sample in whole.outputs]
    assert [sample.index for sample in late.outputs if sample.continued] == [sample.index for sample in stragglers]
    assert RolloutTrie.from_outputs([late]).leaf_continued.sum() == len(stragglers)
    assert llm.finish([late]) == [late] and late.finished
    outputs = llm.generate([question], params, use_tqdm=False, min_finished=1, stragglers="keep")
    llm.release(outputs)
    assert llm.finish(outputs)[0].outputs == outputs[0].outputs, "they were given up"
    with pytest.raises(ValueError, match="min_finished: expected at most 12"):
        llm.generate([question], params, use_tqdm=False, min_finished=13)
    with pytest.raises(ValueError, match="stragglers"):
        llm.generate([question], params, use_tqdm=False, stragglers="keep")


def test_searches_end_when_enough_have_finished(llm, question):
    params = SamplingParams(max_tokens=60, stop=["\n"])
    def vote(*args, **more):
        return offshoot.vote(*args, answer=".*", **more)

    for search in (offshoot.sample, offshoot.best_of_n, vote):
        outcome = search(llm, question, 8, min_finished=3, sampling_params=params, seed=1)
        assert 3 <= len(outcome.samples) <= 8 and len(outcome.stragglers) == 8 - len(outcome.samples)
        assert {one.index for one in outcome.stragglers} | {one.index for one in outcome.samples} == set(range(8))
    with pytest.raises(ValueError, match="min_finished"):
        offshoot.sample(llm, question, 8, min_finished=9)


def grade(text):
    return "7" in text


@pytest.mark.parametrize("search, settings", [
    (offshoot.tree_po, {"samples": 10, "segment": 8, "branches": 2, "tokens": 300}),
    (offshoot.entropy_branching, {"paths": 2, "forks": 3, "branches": 2}),
])
def test_searches_for_rollouts(llm, question, search, settings):
    params = SamplingParams(max_tokens=60, temperature=1.6, stop=["\n\n"])
    outcome, other = search(llm, [question, question], grade=grade, sampling_params=params, seed=2, **settings)
    trie = outcome.rollouts
    check(trie)
    assert len(trie.leaf_tokens) == len(outcome.samples) > 1
    assert trie.rewards.tolist() == [float(grade(sample.text)) for sample in outcome.samples]
    assert [bool(sample.correct) for sample in outcome.samples] == [reward == 1.0 for reward in trie.rewards]
    assert trie.sampled.sum() <= settings.get("tokens", 1 << 30)
    assert len(trie) < trie.unpacked_tokens / 2 and trie.depths.max() > 1
    assert trie.token_ids.tolist() != other.rollouts.token_ids.tolist(), "each prompt has its random numbers"
    again = search(llm, question, grade=grade, sampling_params=params, seed=2, **settings)
    assert again.rollouts.token_ids.tolist() == trie.token_ids.tolist()
    assert numpy.array_equal(again.rollouts.logprobs, trie.logprobs, equal_nan=True)


def test_a_node_is_split_and_forked_in_the_middle(llm, question):
    tree = llm.tree(question, seed=4)
    (node,) = tree.root.fork(1)
    node.extend(SamplingParams(max_tokens=12, ignore_eos=True))
    text, ids = node.text, node.token_ids
    rest = node.split(5)
    assert (node.text + rest.text, node.token_ids + rest.token_ids) == (text, ids) and rest.path_text == text
    (fork,) = node.fork(1)
    fork.extend(SamplingParams(max_tokens=12, ignore_eos=True))
    trie = tree.rollouts({rest: 1.0, fork: 0.0})
    check(trie)
    prompt = len(tree.root.token_ids)
    assert len(trie) == prompt + 12 + 12 and trie.depths[trie.path(1)][prompt:].tolist() == [1] * 5 + [2] * 12
    with pytest.raises(ValueError):
        rest.split(7)


def test_log_probabilities_of_a_trie_are_of_one_distribution(llm, question):
    tree = llm.tree(question, seed=1)
    model, drawn = (SamplingParams(max_tokens=8, temperature=0.6, ignore_eos=True, logprobs_mode=mode)
                    for mode in (None, "processed_logprobs"))
    one, other = tree.root.fork(2)
    tree.extend([one], model)
    tree.extend([other], drawn)
    both = {one: 1.0, other: 0.0}
    with pytest.raises(ValueError, match="expected a log-probability under the distribution that the token was drawn "
                                         "from .*processed_logprobs.*found only the model's own"):
        tree.rollouts(both, processed_logprobs=True)
    own, processed = tree.rollouts(both), tree.rollouts({other: 0.0}, processed_logprobs=True)
    leaf = [trie.logprobs[trie.path(at)][-8:] for trie, at in ((own, 1), (processed, 0))]
    assert (leaf[0] != leaf[1]).any() and numpy.isfinite(leaf).all()


def test_records_of_a_table_are_null_where_they_were_not_asked_for(llm, question):
    pytest.importorskip("pyarrow")
    plain = SamplingParams(max_tokens=3, seed=1, ignore_eos=True)
    recorded = SamplingParams(max_tokens=3, seed=1, ignore_eos=True, return_entropy=True, return_kept="ids", top_k=5)
    table = llm.generate_table([question] * 3, [plain, recorded, plain], use_tqdm=False)
    for name in ("kept_counts", "kept_lowest", "kept_ids", "entropies"):
        lists = table[name].to_pylist()
        assert lists[0] is None and lists[2] is None and len(lists[1]) == 3 and None not in lists[1], name
    assert table["kept_counts"].to_pylist()[1] == [5] * 3
    assert [len(row) for row in table["logprobs"].to_pylist()] == [3] * 3
