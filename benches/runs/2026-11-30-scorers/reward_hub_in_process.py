"""reward_hub's class for vLLM, unchanged, over offshoot in its place, beside transformers' own forward pass.

    python reward_hub_in_process.py     (in a folder that holds Qwen/Qwen2.5-Math-PRM-7B: see tests/clients/tiny_prm.py)
"""

import sys
import types

import offshoot
import torch
from transformers import AutoTokenizer, Qwen2ForCausalLM

vllm = types.ModuleType("vllm")
vllm.LLM, vllm.SamplingParams = offshoot.LLM, offshoot.SamplingParams
sys.modules["vllm"] = vllm
sys.modules["litellm"] = types.ModuleType("litellm")
from reward_hub.vllm.reward import VllmProcessRewardModel  # noqa: E402

NAME = "Qwen/Qwen2.5-Math-PRM-7B"
SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."
QUESTION = "Mia has 3 pens and buys 4 more. How many pens does Mia have now?"
STEPS = ["Mia has 3 pens.", "She buys 4 more.", "3 + 4 = 7.", "The answer is 7."]


def transformers_scores(steps):
    from safetensors.torch import load_file

    tokenizer = AutoTokenizer.from_pretrained(NAME)
    weights = load_file(f"{NAME}/model.safetensors")
    body = Qwen2ForCausalLM.from_pretrained(NAME, torch_dtype=torch.float32).model.eval()
    turns = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION},
             {"role": "assistant", "content": "".join(step + "<extra_0>" for step in steps)}]
    ids = tokenizer(tokenizer.apply_chat_template(turns, tokenize=False), return_tensors="pt").input_ids
    with torch.no_grad():
        hidden = body(ids).last_hidden_state[0]
        inner = torch.relu(hidden @ weights["score.0.weight"].T + weights["score.0.bias"])
        values = (inner @ weights["score.2.weight"].T + weights["score.2.bias"]).softmax(-1)[:, 1]
    tag = tokenizer.convert_tokens_to_ids("<extra_0>")
    return values[ids[0] == tag].tolist()


model = VllmProcessRewardModel(NAME)
asked = [[{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "\n\n".join(STEPS[:length])}]
         for length in (1, 2, 3, 4)]
results = model.score(asked, return_full_prm_result=True)
worst = max(abs(a - b) for length, result in enumerate(results, 1)
            for a, b in zip(result.step_scores, transformers_scores(STEPS[:length]), strict=True))
print("scores", [round(score, 4) for score in results[-1].step_scores], "largest difference", f"{worst:.1e}")
assert worst < 1e-4
