"""Samples that have a form: parameters as vLLM has them, forks of trees, searches, and votes over fields of JSON."""

import json
import re
import types

import pytest

import offshoot
from offshoot import CalledTools, JsonPointer, SamplingParams
from offshoot.sampling_params import GuidedDecodingParams, StructuredOutputsParams

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "count": {"type": "integer", "minimum": 0,
                                                                         "maximum": 99}},
    "required": ["name", "count"], "additionalProperties": False,
}


class Person:
    """What a pydantic model is to others."""

    @classmethod
    def model_json_schema(cls):
        return SCHEMA


def is_person(text):
    value = json.loads(text)
    return sorted(value) == ["count", "name"] and 0 <= value["count"] <= 99 and len(value["name"]) <= 8


def formed(llm, question, n=4, **fields):
    params = SamplingParams(n=n, temperature=1.2, max_tokens=200, seed=1, **fields)
    return llm.generate(question, params, use_tqdm=False)[0].outputs


FORMS = [
    (dict(json=SCHEMA), is_person), (dict(json=json.dumps(SCHEMA)), is_person), (dict(json=Person), is_person),
    (dict(json=SCHEMA, disable_any_whitespace=True), lambda text: is_person(text) and not re.search(r'[:,] ', text)),
    (dict(regex=r"[0-9]{3}-[a-c]{2}"), lambda text: re.fullmatch(r"[0-9]{3}-[a-c]{2}", text)),
    (dict(choice=["yes", "no", "perhaps"]), lambda text: text in ("yes", "no", "perhaps")),
    (dict(grammar='start: "a" /[bc]/ "d"'), lambda text: re.fullmatch("a[bc]d", text)),
    (dict(grammar='root ::= "a" [bc] "d"'), lambda text: re.fullmatch("a[bc]d", text)),
]


@pytest.mark.parametrize("fields, has_form", FORMS)
def test_samples_have_their_form(llm, question, fields, has_form):
    for params in (dict(structured_outputs=StructuredOutputsParams(**fields)), dict(structured_outputs=fields),
                   dict(guided_decoding=GuidedDecodingParams(**fields))):
        outputs = formed(llm, question, **params)
        assert all(output.finish_reason == "stop" and has_form(output.text) for output in outputs), outputs


def test_an_object_of_json_is_cut_by_max_tokens_alone(llm, question):
    for output in formed(llm, question, structured_outputs=StructuredOutputsParams(json_object=True)):
        assert output.text.lstrip().startswith("{")
        assert output.finish_reason == "length" or isinstance(json.loads(output.text), dict)


def test_vllms_own_parameters_are_read(llm, question):
    theirs = types.SimpleNamespace(
        json=None, regex="[ab]{4}", choice=None, grammar=None, json_object=None, structural_tag=None,
        disable_any_whitespace=False, disable_additional_properties=False, whitespace_pattern=None, _backend="xgrammar")
    assert all(re.fullmatch("[ab]{4}", output.text) for output in formed(llm, question, structured_outputs=theirs))
    nothing = GuidedDecodingParams(json=None)
    assert nothing.all_constraints_none() and GuidedDecodingParams.from_optional(regex=None) is None
    free = SamplingParams(max_tokens=8, seed=1)
    with_none = SamplingParams(max_tokens=8, seed=1, guided_decoding=nothing)
    assert llm.generate(question, with_none)[0].outputs[0].text == llm.generate(question, free)[0].outputs[0].text


@pytest.mark.parametrize("wrong, kind, says", [
    (dict(regex="a", choice=["b"]), ValueError, "regex and choice"),
    (dict(choice="yes"), TypeError, r"choice: expected a list of texts"),
    (dict(json=7), TypeError, r"json: expected a JSON Schema as a dict or text, or a pydantic model"),
    (dict(json="{"), ValueError, r"json: expected a JSON Schema"),
    (dict(regex=7), TypeError, r"regex: expected a text"),
    (dict(json_object=1), TypeError, r"json_object: expected True or False"),
    (dict(regex="a", whitespace_pattern=" "), ValueError, r"whitespace_pattern: expected json or json_object"),
    (dict(json={}, disable_any_whitespace="yes"), TypeError, r"disable_any_whitespace: expected True or False"),
    (dict(structural_tag="{}"), NotImplementedError, "structural_tag is not supported"),
    (dict(grammar='root ::= "a'), ValueError, "grammar: "),
])
def test_what_is_no_form_is_refused_by_name(wrong, kind, says):
    for make in (StructuredOutputsParams, GuidedDecodingParams):
        with pytest.raises(kind, match=says):
            make(**wrong)
    with pytest.raises(kind, match=says):
        SamplingParams(structured_outputs=wrong)


def test_what_no_text_of_the_model_has_is_refused_before_it_samples(llm, question):
    with pytest.raises(ValueError, match=r"structured_outputs\.regex: expected "):
        llm.generate(question, SamplingParams(structured_outputs={"regex": "("}))
    with pytest.raises(ValueError, match=r"guided_decoding\.json: expected "):
        llm.generate(question, SamplingParams(guided_decoding={"json": {"$ref": "https://example.org/x.json"}}))
    both = dict(structured_outputs={"regex": "a"}, guided_decoding={"regex": "a"})
    with pytest.raises(ValueError, match="guided_decoding: expected None beside structured_outputs"):
        SamplingParams(**both)
    with pytest.raises(ValueError, match=r"form\.regex: expected "):
        llm.tree(question).root.fork(1, form={"regex": "("})


def test_forced_tokens_are_marked(llm, question):
    params = SamplingParams(
        n=2, max_tokens=60, seed=1, logprobs=0, logprobs_mode="processed_logprobs",
        structured_outputs=StructuredOutputsParams(choice=["perhaps it is", "perhaps not"]))
    for output in llm.generate(question, params, use_tqdm=False)[0].outputs:
        assert len(output.forced) == len(output.token_ids) and not all(output.forced)
        for row, token, forced in zip(output.logprobs, output.token_ids, output.forced):
            assert not forced or row[token].logprob == 0.0
    assert llm.generate(question, SamplingParams(max_tokens=2))[0].outputs[0].forced is None


def test_a_fork_begins_a_form_and_extends_go_on_with_it(llm, question):
    tree = llm.tree(question, seed=3)
    step = SamplingParams(max_tokens=3, temperature=1.2)
    nodes = tree.root.fork(4, form=Person)
    alive = list(nodes)
    for _ in range(80):
        alive = [node for node in tree.extend(alive, step) if node.finish_reason == "length"]
        if not alive:
            break
    assert not alive and all(node.finish_reason == "stop" and is_person(node.text) for node in nodes)
    assert len(nodes[0].forced) == len(nodes[0].token_ids)

    # A child goes on in the form of its parent, wherever that stopped; another form begins anew.
    half = tree.fork(tree.root, 1, form={"regex": "[ab]{12}"})[0].extend(SamplingParams(max_tokens=2, min_tokens=2))
    child = half.fork(1)[0].extend(SamplingParams(max_tokens=40))
    assert re.fullmatch("[ab]{12}", half.text + child.text)
    other = half.fork(1, form=StructuredOutputsParams(choice=["yes", "no"]))[0].extend(SamplingParams(max_tokens=8))
    assert other.text in ("yes", "no")
    free = half.fork(1, form=False)[0].extend(SamplingParams(max_tokens=8, seed=1))
    assert not free.forced or not any(free.forced)
    own = SamplingParams(max_tokens=8, structured_outputs={"choice": ["perhaps"]})
    assert half.fork(1)[0].extend(own).text == "perhaps", "parameters go before the node's form"
    with pytest.raises(TypeError, match="form: expected StructuredOutputsParams, a JSON Schema as a dict or text"):
        tree.root.fork(1, form=7)
    with pytest.raises(ValueError, match="form: expected a JSON Schema, found 'a\\+'"):
        tree.root.fork(1, form="a+")
    by_text = tree.root.fork(1, form=json.dumps(SCHEMA))[0].extend(SamplingParams(max_tokens=200))
    assert is_person(by_text.text)
    with pytest.raises(ValueError, match="form: expected one of json, regex"):
        tree.root.fork(1, form=StructuredOutputsParams())


def test_a_split_node_goes_on_in_its_form(llm, question):
    tree = llm.tree(question, seed=5)
    node = tree.root.fork(1, form={"regex": "[abc]{20}"})[0].extend(SamplingParams(max_tokens=60))
    assert re.fullmatch("[abc]{20}", node.text)
    rest = node.split(max(1, len(node.token_ids) // 2))
    again = [child.extend(SamplingParams(max_tokens=60)) for child in node.fork(3)]
    assert all(re.fullmatch("[abc]{20}", node.text + child.text) for child in [rest, *again])


ANSWERS = StructuredOutputsParams(disable_any_whitespace=True, json={
    "type": "object", "properties": {"answer": {"type": "integer", "minimum": 0, "maximum": 3}},
    "required": ["answer"], "additionalProperties": False})


def test_a_vote_over_a_field(llm, question):
    params = SamplingParams(max_tokens=60, structured_outputs=ANSWERS)
    outcome = offshoot.vote(llm, question, 12, json="/answer", grade=lambda answer: answer == "1",
                            sampling_params=params, seed=2)
    assert len(outcome.samples) == 12 and outcome.prediction in ("0", "1", "2", "3")
    for sample in outcome.samples:
        assert sample.answer == str(json.loads(sample.text)["answer"]) and sample.finish_reason == "end_of_text"
    assert sum(votes for _, votes in outcome.votes) == 12
    again = offshoot.vote(llm, question, 12, answer=JsonPointer("/answer"), sampling_params=params, seed=2)
    assert again.votes == outcome.votes


SEARCHES = [
    lambda llm, question, how: offshoot.best_of_n(llm, question, 4, sampling_params=how),
    lambda llm, question, how: offshoot.sample(llm, question, 4, sampling_params=how),
    lambda llm, question, how: offshoot.tree_po(llm, question, samples=4, segment=3, sampling_params=how),
    lambda llm, question, how: offshoot.entropy_branching(llm, question, paths=2, forks=2, sampling_params=how),
    lambda llm, question, how: offshoot.beam_search(
        llm, question, samples=4, expansions=2, delimiter=",", sampling_params=how),
    lambda llm, question, how: offshoot.dvts(
        llm, question, samples=4, expansions=2, delimiter=",", sampling_params=how),
    lambda llm, question, how: offshoot.mcts(
        llm, question, samples=4, expansions=2, delimiter=",", answer=JsonPointer("/count"), sampling_params=how),
    lambda llm, question, how: offshoot.tree_of_thoughts(
        llm, question, value=lambda path: len(path[-1]), steps=4, breadth=2, thoughts=2, thought_stop=",",
        thought=lambda text: text, sampling_params=how),
]


@pytest.mark.parametrize("search", SEARCHES)
def test_every_search_keeps_the_form(llm, question, search):
    how = SamplingParams(max_tokens=120, temperature=1.1, seed=4, structured_outputs={"json": SCHEMA})
    outcome = search(llm, question, how)
    assert outcome.samples
    ended = [sample for sample in outcome.samples if sample.finish_reason == "end_of_text"]
    assert ended and all(is_person(sample.text) for sample in ended), outcome.samples


def test_answers_in_json_and_in_calls():
    pointer = JsonPointer("/answer")
    assert pointer('So: ```json\n{"answer": {"b": 1.0, "a": "x"}}\n```') == '{"a":"x","b":1}'
    assert pointer("<think>{\"answer\": 1}</think>none") is None
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    assert json.loads(CalledTools()(call)) == {"name": "weather", "arguments": {"city": "Oslo"}}
    assert CalledTools("/arguments/city")(call) == "Oslo" and CalledTools()("none") is None
    for wrong in ("answer", "/a~b"):
        with pytest.raises(ValueError, match="JSON pointer"):
            JsonPointer(wrong)


def test_a_vote_says_how_answers_are_found_in_one_way(llm, question):
    with pytest.raises(TypeError, match="`answer`, `json` or `tool_call`"):
        offshoot.vote(llm, question, 2)
    with pytest.raises(TypeError, match="answer: expected none beside json"):
        offshoot.vote(llm, question, 2, answer="a", json="/a")
    with pytest.raises(ValueError, match="JSON pointer"):
        offshoot.vote(llm, question, 2, json="a")
    outcome = offshoot.vote(llm, question, 2, tool_call=True, sampling_params=SamplingParams(max_tokens=4))
    assert outcome.prediction is None and outcome.votes == []


def test_a_chat_keeps_its_form_whatever_ends_its_turns(llm):
    messages = [{"role": "user", "content": "Mia has 3 pens and buys 4 more. How many pens does Mia have now?"}]
    params = SamplingParams(n=4, max_tokens=120, temperature=1.2, seed=2, structured_outputs=ANSWERS)
    for output in llm.chat(messages, params, use_tqdm=False)[0].outputs:
        assert output.finish_reason == "stop" and json.loads(output.text)["answer"] in range(4)


def test_samples_are_scored_again_in_their_form(llm, question):
    params = SamplingParams(
        n=3, max_tokens=60, temperature=1.2, seed=2, logprobs=0, logprobs_mode="processed_logprobs",
        structured_outputs=ANSWERS)
    for drawn in (llm.generate(question, params, use_tqdm=False),
                  llm.chat([{"role": "user", "content": "How many?"}], params, use_tqdm=False)):
        again = llm.rescore(drawn, params)
        for one, other in zip(drawn[0].outputs, again[0].outputs):
            assert one.cumulative_logprob == other.cumulative_logprob and one.forced == other.forced
