"""Writes particles.json: what its_hub 1.2.0 makes of particles in a small world, with the uniform numbers that Offshoot
draws. The world: after a text the model says the letters of `letters` in turn, each with a line end; `z` ends a text.

    pip install numpy; pip download --no-deps its_hub==1.2.0; unzip its_hub-*.whl
    python particles.py PATH_TO/its_hub/core/algorithms/particle_gibbs.py > particles.json
"""

import asyncio
import collections
import importlib.util
import json
import random
import sys
import types

import numpy as np

# What the module imports from its package: names alone.
for name in ("its_hub", "its_hub.api", "its_hub.core", "its_hub.core.lms", "its_hub.core.lms.step_generation"):
    sys.modules[name] = types.ModuleType(name)
for name in ("AbstractLanguageModel", "AbstractProcessRewardModel", "AbstractScalingAlgorithm",
             "AbstractScalingResult", "ChatMessage"):
    setattr(sys.modules["its_hub.api"], name, type(name, (), {}))
sys.modules["its_hub.api"].ChatMessages = type("ChatMessages", (), {
    "from_prompt_or_messages": staticmethod(lambda prompt: types.SimpleNamespace(to_prompt=lambda: prompt))})
sys.modules["its_hub.core.lms.step_generation"].StepGeneration = type("StepGeneration", (), {})
spec = importlib.util.spec_from_file_location("particle_gibbs", sys.argv[1])
its = importlib.util.module_from_spec(spec)
spec.loader.exec_module(its)

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(z):
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def uniforms(seed, name):
    """The numbers that the root of a tree gives to its search, from number 1 on."""
    hashed = 0xCBF29CE484222325
    for byte in name.encode():
        hashed = (hashed ^ byte) * 0x100000001B3 & MASK
    key = mix(mix((seed + GOLDEN) & MASK) ^ hashed)
    number = 1
    while True:
        yield (mix((key + (number + 1) * GOLDEN) & MASK) >> 11) / 2**53
        number += 1


def score(text):
    hashed = 7
    for byte in text.encode():
        hashed = (hashed * 31 + byte) % 9973
    return hashed % 997 / 996


class Steps:
    def __init__(self, letters, most):
        self.letters, self.max_steps, self.drawn = letters, most, collections.Counter()

    async def aforward(self, lm, prompts, steps_so_far, **_):
        said = []
        for steps in steps_so_far:
            text = "".join(steps)
            letter = self.letters[self.drawn[text] % len(self.letters)]
            self.drawn[text] += 1
            step = letter if letter == "z" else letter + "\n"
            said.append((step, letter == "z" or len(steps) + 1 >= self.max_steps))
        return said

    def _post_process(self, steps, stopped):
        return "".join(steps)


class Scores:
    async def ascore(self, prompt, texts):
        return [score(text) for text in texts]


class Drawn(random.Random):
    """Python's own `choices`, on given uniform numbers."""

    def __init__(self, numbers):
        super().__init__()
        self.numbers = numbers

    def random(self):
        return next(self.numbers)


def case(letters, most, samples, iterations, references, resampling):
    numbers = uniforms(1, "item")
    its.random = types.SimpleNamespace(choices=Drawn(numbers).choices)
    its.np.random.uniform = lambda low, high: next(numbers)
    search = its.ParticleGibbs(Steps(letters, most), Scores(), num_iterations=iterations,
                               num_ref_particles=references, resampling_method=resampling)
    result = asyncio.run(search.ainfer(None, "Q:", samples, return_response_only=False))
    texts = [response["content"] for response in result.responses_lst[-1]]
    return {
        "letters": letters, "most": most, "samples": samples, "iterations": iterations, "references": references,
        "resampling": resampling, "texts": texts, "log_weights": [float(w) for w in result.log_weights_lst[-1]],
        "chosen": result.the_one["content"],
    }


cases = [
    case(letters, most, samples, iterations, references, resampling)
    for letters in ("abc", "abzcdzefg", "zab", "bbaabz")
    for most in (1, 3, 6)
    for samples, iterations, references in ((1, 1, 1), (4, 1, 1), (16, 1, 1), (6, 2, 1), (12, 3, 2), (16, 4, 3))
    for resampling in ("multinomial", "systematic")
]
print("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]")
