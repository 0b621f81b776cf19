"""reward_hub's client of a process reward model, unchanged, at a server of one, and its_hub's searches by its scores.

`--base-url` is a server of the bundled model, `--scorer-url` one of a model like `tiny_prm.py`'s under the name
Qwen/Qwen2.5-Math-PRM-7B: reward_hub knows no other. It asks for transformers and torch, of which its client of servers
uses nothing but the name of a tokenizer: they are stand-ins here.
"""

import asyncio
import json
import sys
import urllib.request
from unittest import mock

import checks

PRM = "Qwen/Qwen2.5-Math-PRM-7B"
for name in ("torch", "torch.nn", "torch.nn.functional", "transformers", "vllm"):
    sys.modules.setdefault(name, mock.MagicMock())
checks.skip_without("reward_hub", "its_hub")
from its_hub import AbstractOutcomeRewardModel, AbstractProcessRewardModel, BestOfN  # noqa: E402
from its_hub import OpenAICompatibleLanguageModel, StepGeneration  # noqa: E402
from its_hub.core.algorithms.beam_search import BeamSearch  # noqa: E402
from its_hub.core.algorithms.particle_gibbs import ParticleFiltering, ParticleGibbs  # noqa: E402
from reward_hub.openai.reward import OpenAIProcessRewardModel  # noqa: E402

QUESTION = "Mia has 3 pens and buys 4 more. How many pens does Mia have now?"
STEPS = ["Mia has 3 pens.", "She buys 4 more.", "3 + 4 = 7.", "The answer is 7."]


def conversation(steps, question=QUESTION, separator="\n\n"):
    return [{"role": "user", "content": question}, {"role": "assistant", "content": separator.join(steps)}]


def posted(url, path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def near(one, other):
    return len(one) == len(other) and all(abs(a - b) < 1e-6 for a, b in zip(one, other))


def check_reward_hub_has_a_score_for_each_step():
    [result] = CLIENT.score(conversation(STEPS), return_full_prm_result=True)
    scores = result.step_scores
    assert len(scores) == 4 and all(0 < score < 1 for score in scores), scores
    assert len(set(scores)) == 4, scores
    for how, expected in (("last", scores[-1]), ("min", min(scores)), ("prod", result.product)):
        assert near(CLIENT.score(conversation(STEPS), aggregation_method=how), [expected]), how
    [whole] = CLIENT.score(conversation(STEPS), aggregation_method="model")
    assert 0 < whole < 1 and whole != scores[-1]


def check_scores_of_a_beginning_are_those_of_the_whole():
    [whole] = CLIENT.score(conversation(STEPS), return_full_prm_result=True)
    for length in (1, 2, 3):
        [part] = CLIENT.score(conversation(STEPS[:length]), return_full_prm_result=True)
        assert near(part.step_scores, whole.step_scores[:length]), length


def check_each_row_has_both_classes():
    tagged = "".join(step + "<extra_0>" for step in STEPS)
    messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": tagged}]
    rows = posted(SCORER, "/pooling", {"model": PRM, "messages": messages})["data"][0]["data"]
    assert len(rows) == 4 and all(len(row) == 2 and abs(sum(row) - 1) < 1e-5 for row in rows), rows


def check_many_conversations_at_once():
    many = [conversation(STEPS[: 1 + i % 4], f"{QUESTION} ({i % 50})") for i in range(400)]
    at_once = CLIENT.score(many)
    assert near(at_once[:50], [CLIENT.score(one)[0] for one in many[:50]])
    assert len(at_once) == 400 and near(at_once[:200], at_once[200:])


class StepScores(AbstractProcessRewardModel):
    """its_hub's own class of this kind holds reward_hub's class for vLLM; this one holds that for servers."""

    def __init__(self):
        self.asked = 0

    async def ascore(self, prompt_or_messages, steps):
        texts = [steps] if isinstance(steps, str) else steps
        self.asked += len(texts)
        asked = [conversation([text], str(prompt_or_messages)) for text in texts]
        scores = await asyncio.to_thread(CLIENT.score, asked, step_sep="\n")
        return scores[0] if isinstance(steps, str) else scores

    def score(self, prompt_or_messages, steps):
        return asyncio.run(self.ascore(prompt_or_messages, steps))


class AnswerScores(AbstractOutcomeRewardModel):
    def score(self, messages, **_):
        return asyncio.run(self.ascore(messages))

    async def ascore(self, messages, orchestrator=None, **_):
        asked = [[{"role": turn.role, "content": turn.extract_text_content()} for turn in one] for one in messages]
        return await asyncio.to_thread(CLIENT.score, asked, step_sep="\n")


def generator():
    return OpenAICompatibleLanguageModel(endpoint=URL + "/v1", api_key="none", model_name=MODEL, temperature=0.8,
                                         max_completion_tokens=24, max_tries=1)


def lines():
    return StepGeneration(max_steps=3, step_token="\n", stop_token="####")


def check_its_hub_beam_search():
    scores = StepScores()
    search = BeamSearch(lines(), scores, beam_width=2)
    result = search.infer(generator(), QUESTION, budget=4, return_response_only=False)
    assert len(result.scores) == len(result.responses) == 4 and scores.asked >= 4
    assert result.scores[result.selected_index] == max(result.scores), result.scores
    # The score of a response is that of its text.
    again = scores.score("user: " + QUESTION, [response["content"] for response in result.responses])
    assert len(again) == 4 and all(0 < score < 1 for score in again)


def check_its_hub_particles():
    filtering = ParticleFiltering(lines(), StepScores())
    result = filtering.infer(generator(), QUESTION, budget=4, return_response_only=False)
    assert len(result.responses) == 4 and len(result.log_weights_lst) == 4
    gibbs = ParticleGibbs(lines(), StepScores(), num_iterations=2)
    result = gibbs.infer(generator(), QUESTION, budget=4, return_response_only=False)
    assert len(result.responses_lst) == 2 and all(result.responses_lst)


def check_its_hub_best_of_n():
    result = BestOfN(AnswerScores()).infer(generator(), QUESTION, budget=6, return_response_only=False)
    assert len(result.scores) == 6 and result.scores[result.selected_index] == max(result.scores)


if __name__ == "__main__":
    given = checks.options(lambda parser: parser.add_argument("--scorer-url", required=True))
    URL, MODEL, SCORER = given.base_url, given.model, given.scorer_url
    CLIENT = OpenAIProcessRewardModel(PRM, port=int(SCORER.rsplit(":", 1)[1]))
    checks.run(sys.modules[__name__])
