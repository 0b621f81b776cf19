import asyncio, sys, types, importlib
sys.path.insert(0, "NeMo-Skills")
# The client alone: the package's own modules bring evaluation and sandboxes along.
import nemo_skills
package = types.ModuleType("nemo_skills.inference"); package.__path__ = ["NeMo-Skills/nemo_skills/inference"]; sys.modules["nemo_skills.inference"] = package
package = types.ModuleType("nemo_skills.inference.model"); package.__path__ = ["NeMo-Skills/nemo_skills/inference/model"]; sys.modules["nemo_skills.inference.model"] = package
try:
    import nemo_skills.utils
except ImportError as error:
    print("nemo_skills.utils is a stub:", error)
    import logging
    utils = types.ModuleType("nemo_skills.utils"); utils.get_logger_name = lambda file: "nemo_skills"; utils.nested_dataclass = __import__("dataclasses").dataclass
    sys.modules["nemo_skills.utils"] = utils
from nemo_skills.inference.model.vllm import VLLMModel
from nemo_skills.inference.model.base import EndpointType
async def main():
    model = VLLMModel(model="demo", base_url="http://127.0.0.1:8102/v1", tokenizer=None, enable_soft_fail=True, context_limit_retry_strategy="reduce_generation")
    one = await model.generate_async(prompt="Question: Mia has 3 pens and buys 4 more. How many pens does Mia have now?\nAnswer:", tokens_to_generate=40, temperature=0.0, stop_phrases=["\n\n"], random_seed=1, endpoint_type=EndpointType.text)
    print("text", one)
    many = await asyncio.gather(*(model.generate_async(prompt=[{"role": "user", "content": "How many are 3 and 4?"}], tokens_to_generate=24, temperature=0.7, top_k=20, random_seed=seed, top_logprobs=2, endpoint_type=EndpointType.chat) for seed in range(8)))
    print("chat", len(many), {m["generation"] for m in many}.__len__(), {k: (v if not isinstance(v, list) else len(v)) for k, v in many[0].items()})
    stream = await model.generate_async(prompt=[{"role": "user", "content": "How many are 3 and 4?"}], tokens_to_generate=24, temperature=0.7, random_seed=3, stream=True, endpoint_type=EndpointType.chat)
    print("stream", "".join([c["generation"] async for c in stream]))
    long = await model.generate_async(prompt="word " * 1500, tokens_to_generate=4000, temperature=0.0, endpoint_type=EndpointType.text)
    print("long", {k: (v if not isinstance(v, str) else v[:80]) for k, v in long.items()})
asyncio.run(main())
