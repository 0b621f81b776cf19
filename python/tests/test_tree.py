"""Sampling trees: fork, extend, score, prune, cancel, and what is recorded."""

import math
import re
import threading
import time

import numpy
import pytest

from offshoot import SamplingParams


def test_forks_share_what_is_above_and_repeat_with_a_seed(llm, question):
    params = SamplingParams(max_tokens=8)

    def grown():
        tree = llm.tree(question, seed=4)
        first = tree.fork(tree.root, 3)
        tree.extend(first, params)
        second = first[0].fork(2)
        tree.extend(second, params)
        return tree, [node.path_text for node in tree.leaves]

    tree, paths = grown()
    assert paths == grown()[1]
    assert len(tree) == 6 and len(tree.leaves) == 4
    second = tree.nodes[1].children
    assert [node.parent for node in second] == [tree.nodes[1]] * 2
    assert all(node.path_text.startswith(tree.nodes[1].text) for node in second)
    assert tree.root.text == question


def test_a_tree_samples_what_generate_does(llm, question):
    tree = llm.tree(question, seed=6)
    nodes = tree.fork(tree.root, 4)
    tree.extend(nodes, SamplingParams(max_tokens=16))
    outputs = llm.generate(question, SamplingParams(n=4, max_tokens=16, seed=6))[0].outputs
    assert [node.text for node in nodes] == [output.text for output in outputs]


def test_log_probabilities_are_arrays(llm, question):
    tree = llm.tree(question, seed=1)
    nodes = tree.extend(tree.fork(tree.root, 3), SamplingParams(max_tokens=6, ignore_eos=True))
    assert all(node.logprobs.dtype == numpy.float32 and len(node.logprobs) == 6 for node in nodes)
    children = tree.extend(nodes[0].fork(1), SamplingParams(max_tokens=3, ignore_eos=True))
    rows = tree.cut([children[0], nodes[1]])
    assert rows.shape == (2, 9)
    assert not numpy.isnan(rows[0]).any() and numpy.isnan(rows[1, 6:]).all()
    assert math.isclose(float(rows[0, :6].sum()), nodes[0].logprob, rel_tol=1e-5)


def test_scores_leave_the_tree_as_it_is(llm, question):
    tree = llm.tree(question, seed=1)
    nodes = tree.extend(tree.fork(tree.root, 2), SamplingParams(max_tokens=5))
    before = len(tree)
    totals = tree.score(nodes, " = 7")
    assert len(tree) == before and all(total < 0 for total in totals)
    assert tree.score(nodes, [" = 7", " = 8"])[0] == pytest.approx(totals[0])
    given = tree.fork(nodes[0], 1)[0].append(" = 7", score=True)
    assert given.logprob == pytest.approx(totals[0], abs=1e-4)


def test_growing_nodes_can_be_cancelled_forked_and_pruned_in_the_loop(llm, question):
    tree = llm.tree(question, seed=2)
    short, *long = tree.fork(tree.root, 5)
    growth = tree.growing(long, SamplingParams(max_tokens=3000, ignore_eos=True))
    tree.extend([short], SamplingParams(max_tokens=2))
    growth.cancel()
    ended = list(growth)
    assert {node.finish_reason for node in ended} == {"abort"}
    tree.prune(ended)
    assert {node.state for node in ended} == {"pruned"}
    with pytest.raises(RuntimeError, match="pruned"):
        ended[0].fork(1)
    assert len(short.fork(2)) == 2

    seen = []
    for node in tree.growing(tree.fork(short, 6), SamplingParams(max_tokens=20)):
        seen.append(node)
        if len(seen) == 2:
            break
    assert len(seen) == 2 and llm.metrics()["running"] == 0


def test_the_interpreter_goes_on_while_a_thread_waits_for_a_tree_that_scores(llm, question):
    tree = llm.tree(question, seed=1)
    nodes = tree.fork(tree.root, 24)
    continuations = [llm.encode(f"{at} " * 400, False)[:400] for at in range(24)]
    beats, is_done = [], threading.Event()

    def beat():
        while not is_done.wait(0.001):
            beats.append(len(beats))

    beater = threading.Thread(target=beat, daemon=True)
    beater.start()
    # One wait with some beats is enough: in others the system may not let the beater run, or the scores come at once.
    # If the interpreter stood still, there would be none in any.
    meanwhile, patience = 0, time.monotonic() + 60
    while meanwhile <= 3 and time.monotonic() < patience:
        scorer = threading.Thread(target=tree.score, args=(nodes, continuations), daemon=True)
        scorer.start()
        while scorer.is_alive():
            before = len(beats)
            assert len(tree) == 25
            meanwhile = max(meanwhile, len(beats) - before)
            time.sleep(0.002)
    is_done.set()
    beater.join()
    assert meanwhile > 3, "another thread ran while this one waited for the tree"


def test_scores_of_nodes_are_kept(llm, question):
    tree = llm.tree(question)
    (node,) = tree.fork(tree.root, 1)
    assert node.score is None
    node.score = 0.5
    assert node.score == 0.5


def test_a_tree_draws_itself(llm, question):
    tree = llm.tree(question, seed=3)
    tree.extend(tree.fork(tree.root, 2), SamplingParams(max_tokens=5))
    page = tree._repr_html_()
    assert page.startswith("<iframe") and "http://" not in tree.html() and "https://" not in tree.html()
    (name,) = re.findall("<title>(.*?) – Offshoot</title>", tree.html())
    assert name and f'"id":"{name}"' in tree.html(), "the list of items names it"


def test_wrong_nodes(llm, question):
    one, two = llm.tree(question), llm.tree(question)
    with pytest.raises(ValueError, match="another tree"):
        one.extend([two.root])
    with pytest.raises(TypeError):
        one.extend([3])
    with pytest.raises(ValueError, match="n"):
        one.extend([one.root], SamplingParams(n=2))
    for wrong in (0, 10 ** 9):
        with pytest.raises(ValueError, match="^n: expected"):
            one.fork(one.root, wrong)
    with pytest.raises(TypeError, match="sampling_params"):
        one.root.fork(1)[0].extend({"max_tokens": 3})


def test_what_cannot_be_appended_is_said(llm, question):
    tree = llm.tree(question)
    (node,) = tree.fork(tree.root, 1)
    for wrong, kind in (([1 << 20], ValueError), ([-1], ValueError), (None, TypeError), ([2.5], TypeError)):
        with pytest.raises(kind, match="token ids"):
            node.append(wrong)
    with pytest.raises(ValueError, match="the model's context is 4096"):
        node.append([5] * 5000)
    assert "the model's context is 4096" in node.facts["error"]
