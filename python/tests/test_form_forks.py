"""Branches in a form that fork at every token: each goes on as one that never forked, bit for bit."""

import json

import pytest

from offshoot import SamplingParams
from offshoot.sampling_params import StructuredOutputsParams

SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["pens", "péns", "cards"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "sizes": {"type": "array", "items": {"enum": ["small", "large"]}, "maxItems": 2},
        "more": {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^[a-c]{1,4}$"}]},
    },
    "required": ["kind", "count", "sizes", "more"],
    "additionalProperties": False,
}
#: Without white space, of which the model would write much.
FORM = StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True)
#: More than any text of the form has tokens.
ENOUGH = 150


def is_of_the_form(text):
    value = json.loads(text)
    more = value["more"]
    return (
        list(value) == ["kind", "count", "sizes", "more"]
        and value["kind"] in ("pens", "péns", "cards")
        and value["count"] in range(100)
        and len(value["sizes"]) <= 2 and set(value["sizes"]) <= {"small", "large"}
        and (more is None or 1 <= len(more) <= 4 and set(more) <= set("abc"))
    )


def extended(node, **fields):
    """The tokens and log-probabilities that a node gets."""
    node.extend(SamplingParams(**{"max_tokens": ENOUGH, **fields}))
    return list(node.token_ids), node.logprobs.tolist()


def whole(llm, question, seed, **fields):
    """A branch that never forks: its tokens, their log-probabilities and its text."""
    [node] = begun(llm, question, seed)
    tokens, logprobs = extended(node, **fields)
    assert node.finish_reason == "stop" and is_of_the_form(node.text), node.text
    return tokens, logprobs, node.text


def begun(llm, question, seed, n=1):
    tree = llm.tree(question, seed=seed)
    return tree.fork(tree.root, n, form=FORM)


def test_a_branch_that_forks_at_every_token_goes_on_as_one_that_does_not(llm, question):
    tokens, logprobs, text = whole(llm, question, 3, temperature=0)
    [head] = begun(llm, question, 3)
    path, scores = [], []
    while True:
        more, their = extended(head, temperature=0, max_tokens=1)
        path, scores = path + more, scores + their
        if head.finish_reason != "length":
            break
        # One child goes to the end at once, the other one by one.
        child, head = head.fork(2)
        rest, their = extended(child, temperature=0)
        assert (path + rest, scores + their) == (tokens, logprobs)
        assert child.path_text == text
    assert (path, scores) == (tokens, logprobs)


@pytest.mark.parametrize("seed", range(3))
def test_forks_in_the_middle_of_what_was_sampled_go_on_as_fresh_branches_do(llm, question, seed):
    tokens, logprobs, _ = whole(llm, question, seed, temperature=1.3)
    for at in range(1, len(tokens)):
        [node] = begun(llm, question, seed)
        extended(node, temperature=1.3)
        assert list(node.token_ids) == tokens
        node.split(at)
        [child] = node.fork(1)
        found = extended(child, temperature=0)
        assert is_of_the_form(child.path_text), child.path_text
        [fresh] = begun(llm, question, seed)
        first = extended(fresh, temperature=1.3, max_tokens=at)
        assert first == (tokens[:at], logprobs[:at])
        [other] = fresh.fork(1)
        assert extended(other, temperature=0) == found


def test_what_a_branch_samples_does_not_depend_on_company(llm, question):
    def grown(together):
        """The tokens below each node of a tree whose branches fork again and again, by their place."""
        heads = {(place,): node for place, node in enumerate(begun(llm, question, 8, 3))}
        found = {}
        params = SamplingParams(max_tokens=3, temperature=1.2)
        while heads:
            if together:
                next(iter(heads.values())).tree.extend(list(heads.values()), params)
            else:
                for node in heads.values():
                    node.extend(params)
            found |= {place: (list(node.token_ids), node.logprobs.tolist()) for place, node in heads.items()}
            open_heads = [(place, node) for place, node in heads.items() if node.finish_reason == "length"][:6]
            heads = {(*place, n): child for place, node in open_heads for n, child in enumerate(node.fork(2))}
        return found

    assert grown(True) == grown(False)
