"""its_hub's searches, unchanged, with a model and a scorer of this process: beam search, particles and best-of-n."""

from pathlib import Path

import pytest

import offshoot
from offshoot import SamplingParams

pytest.importorskip("its_hub")
from its_hub.api import AbstractLanguageModel  # noqa: E402
from its_hub.core.algorithms.beam_search import BeamSearch  # noqa: E402
from its_hub.core.algorithms.bon import BestOfN  # noqa: E402
from its_hub.core.algorithms.particle_gibbs import ParticleFiltering, ParticleGibbs  # noqa: E402
from its_hub.core.lms.step_generation import StepGeneration  # noqa: E402

import offshoot.its_hub as adapters  # noqa: E402

REWARD = Path(__file__).resolve().parents[2] / "tasks" / "models" / "reward"


class Generator(AbstractLanguageModel):
    """The bundled model: a user's text, and what the assistant has begun to say behind it."""

    def __init__(self, llm):
        self.llm, self.calls = llm, 0

    async def agenerate(self, messages, stop=None, **more):
        batch = messages if isinstance(messages[0], list) else [messages]
        prompts = ["".join(turn.extract_text_content() for turn in turns) for turns in batch]
        self.calls += 1
        params = [SamplingParams(max_tokens=40, stop=[stop or "\n\n"], temperature=0.8, seed=100 * self.calls + i)
                  for i in range(len(prompts))]
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        answers = [{"role": "assistant", "content": output.outputs[0].text} for output in outputs]
        return answers if isinstance(messages[0], list) else answers[0]

    async def agenerate_single(self, messages, stop=None, **more):
        return await self.agenerate(messages, stop)


@pytest.fixture(scope="module")
def scorer():
    with offshoot.Scorer(REWARD, device="cpu", kv_memory=64) as scorer:
        yield scorer


@pytest.fixture
def generator(llm):
    return Generator(llm)


def steps():
    return StepGeneration(max_steps=4, step_token="\n", stop_token="####")


def probabilities(scorer, question, texts):
    return [rated.probability for rated in scorer.rate(question, texts)]


def test_beam_search(generator, scorer, question):
    search = BeamSearch(steps(), adapters.ProcessReward(scorer), beam_width=2)
    result = search.infer(generator, question, budget=4, return_response_only=False)
    assert len(result.responses) == 4 and result.selected_index == result.scores.index(max(result.scores))
    texts = [response["content"] for response in result.responses]
    # A path that had ended keeps the score of its text; those that went on last have it as well.
    assert result.scores == pytest.approx(probabilities(scorer, question, texts), abs=1e-6)


def test_particles(generator, scorer, question):
    filtering = ParticleFiltering(steps(), adapters.ProcessReward(scorer))
    result = filtering.infer(generator, question, budget=4, return_response_only=False)
    assert len(result.responses) == len(result.log_weights_lst) == 4
    gibbs = ParticleGibbs(steps(), adapters.ProcessReward(scorer, aggregate="min"), num_iterations=2)
    result = gibbs.infer(generator, question, budget=4, return_response_only=False)
    assert len(result.responses_lst) == 2 and all(result.responses_lst)


def test_what_was_scored_is_not_computed_again(generator, scorer, question):
    def computed():
        return scorer.metrics()["prompt_tokens_computed"]

    texts = [" Mia has 3 + 4 = 7 pens.\n", " Mia has 3 + 4 = 7 pens.\n#### 7"]
    scorer.rate(question + " ", texts)
    before = computed()
    scorer.rate(question + " ", texts)
    assert computed() - before <= 2


def test_best_of_n(generator, scorer, question):
    result = BestOfN(adapters.OutcomeReward(scorer)).infer(generator, question, budget=6, return_response_only=False)
    texts = [response["content"] for response in result.responses]
    if len(set(texts)) > 1:  # its_hub scores nothing where all are the same
        assert result.scores == pytest.approx(probabilities(scorer, question, texts), abs=1e-6)
    assert result.scores[result.selected_index] == max(result.scores)
