"""inspect-ai through its OpenAI-compatible provider: epochs of sampled answers, and log-probabilities."""

import asyncio
import os
import sys
import tempfile

import checks

checks.skip_without("inspect_ai", "openai")
FOLDER = tempfile.TemporaryDirectory()
os.environ["INSPECT_LOG_DIR"] = FOLDER.name
os.environ["INSPECT_DISPLAY"] = "none"
from inspect_ai import Task, eval as evaluate  # noqa: E402
from inspect_ai.dataset import Sample  # noqa: E402
from inspect_ai.model import GenerateConfig, get_model  # noqa: E402
from inspect_ai.scorer import includes  # noqa: E402
from inspect_ai.solver import generate  # noqa: E402


def model(**config):
    return get_model(f"openai-api/offshoot/{MODEL}", base_url=URL + "/v1", api_key="none",
                     config=GenerateConfig(max_tokens=16, **config), memoize=False)


def check_epochs():
    samples = [Sample(input=f"How many are {n} and 2?", target=str(n + 2)) for n in range(5)]
    task = Task(dataset=samples, solver=generate(), scorer=includes())
    [log] = evaluate(task, model=model(temperature=0.8), epochs=4, max_connections=20)
    assert log.status == "success", log.error
    assert len(log.samples) == 20
    assert all(sample.output.usage.output_tokens > 0 for sample in log.samples)


def check_logprobs():
    answer = asyncio.run(model(logprobs=True, top_logprobs=2, temperature=0).generate("How many are 3 and 4?"))
    content = answer.choices[0].logprobs.content
    assert content and all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in content)


if __name__ == "__main__":
    given = checks.options()
    URL, MODEL = given.base_url, given.model
    checks.run(sys.modules[__name__])
