import asyncio, time, importlib.metadata
from its_hub import SelfConsistency, OpenAICompatibleLanguageModel, StepGeneration, BestOfN
from its_hub.core.algorithms.beam_search import BeamSearch
from its_hub.core.algorithms.particle_gibbs import ParticleFiltering
from its_hub import AbstractProcessRewardModel, AbstractOutcomeRewardModel
import inspect
URL = "http://127.0.0.1:8102/v1"
lm = OpenAICompatibleLanguageModel(endpoint=URL, api_key="none", model_name="demo", max_tokens=32, temperature=0.8, max_tries=1)
def score(text): return 0.05 + 0.9 * min(1, sum(map(text.count, "=0123456789")) / (1 + len(text)))
class PRM(AbstractProcessRewardModel):
    async def ascore(self, prompt, texts, *a, **k):
        if isinstance(texts, str): return score(texts)
        return [score(t) for t in texts]
    def score(self, prompt, texts, *a, **k):
        if isinstance(texts, str): return score(texts)
        return [score(t) for t in texts]
question = "Mia has 3 pens and buys 4 more. How many pens does Mia have now?"
def tell(name, run):
    began = time.time()
    try: print(name, repr(run())[:160], round(time.time() - began, 1), "s", flush=True)
    except Exception as error: print(name, "FAILED", type(error).__name__, str(error)[:400], flush=True)
print(importlib.metadata.version("its_hub"))
tell("self-consistency", lambda: SelfConsistency().infer(lm, question, budget=8))
sg = StepGeneration(max_steps=4, step_token="\n", stop_token="####", include_stop_str_in_output=False)
tell("beam search", lambda: BeamSearch(sg, PRM(), beam_width=2).infer(lm, question, budget=8))
tell("particle filtering", lambda: ParticleFiltering(sg, PRM()).infer(lm, question, budget=8))
sg = StepGeneration(max_steps=4, tokens_per_step=8)
tell("beam search by tokens", lambda: BeamSearch(sg, PRM(), beam_width=2).infer(lm, question, budget=8))
