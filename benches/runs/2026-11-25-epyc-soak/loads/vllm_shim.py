# vLLM's offline engine as a client of a server: one request a call, with the list of prompts.
import os
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace
import requests
from transformers import AutoTokenizer
@dataclass
class SamplingParams:
    temperature: float = 1.0
    max_tokens: int = 16
    top_p: float = 1.0
    stop: list = None
    include_stop_str_in_output: bool = False
    n: int = 1
class LLM:
    def __init__(self, url, model):
        self.url, self.tokenizer, self.calls, self.prompts = url, AutoTokenizer.from_pretrained(model), 0, 0
    def get_tokenizer(self):
        return self.tokenizer
    def generate(self, prompts, sampling_params, use_tqdm=False):
        body = {"prompt": prompts, "add_special_tokens": False, "return_token_ids": True, **asdict(sampling_params)}
        answer = requests.post(self.url + "/v1/completions", json=body, timeout=600)
        assert answer.status_code == 200, answer.text
        answer = answer.json()
        self.calls += 1; self.prompts += len(prompts)
        outputs = [[] for _ in prompts]
        for choice in answer["choices"]:
            outputs[choice["index"] // sampling_params.n].append(SimpleNamespace(
                text=choice["text"], token_ids=choice["token_ids"], stop_reason=choice["stop_reason"],
                finish_reason=choice["finish_reason"]))
        return [SimpleNamespace(outputs=output) for output in outputs]
