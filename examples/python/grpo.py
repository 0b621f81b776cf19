"""Trains the bundled model by GRPO on word problems that it has not seen, in minutes on two cores: TRL trains, Offshoot
samples, and the weights go to it in memory at every step.

    pip install offshoot trl torch
    python examples/python/grpo.py            # or --trees: samples that branch at their tokens of highest entropy

Writes OUT/samples.jsonl (trees.jsonl), a line a step and a line for each look at the held-out problems of
tasks/words.jsonl, and draws OUT/curve.svg of what is there. The model makes slips on purpose, one in ten lines at
temperature 0.8 (tasks/models/demo/README.md): that is what there is to unlearn."""

import argparse
import json
import os
import pathlib
import random
import re
import shutil
import sys
import time

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
import offshoot
import offshoot.trl
from trl import GRPOConfig, GRPOTrainer

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tasks/models/demo/train"), str(ROOT / "benches")]
import curve  # how curves are drawn
import words  # the problems that the model was trained on; those of tasks/words.jsonl are never among them

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--trees", action="store_true", help="samples that share beginnings, at equal sampled tokens")
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--every", type=int, default=10, help="steps between two looks at the held-out problems")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/grpo"))
given = parser.parse_args()

GROUP = 8                                 # samples of a problem
PROBLEMS = 12 if given.trees else 8       # of a step: a tree of 8 leaves has 5/8 of the tokens of 8 samples
TREE = {"paths": 2, "forks": 3}           # 2 samples, each forked at its 3 tokens of highest entropy
STOP = ["\n\n", "\nQuestion"]
CONFIG = {
    "learning_rate": 4e-4, "lr_scheduler_type": "constant", "temperature": 1.0, "beta": 0.0, "loss_type": "dapo",
    "num_generations": GROUP, "per_device_train_batch_size": 32, "gradient_accumulation_steps": GROUP * PROBLEMS // 32,
    "max_completion_length": 256, "max_steps": given.steps, "seed": given.seed,
    "use_vllm": True, "vllm_mode": "colocate", "generation_kwargs": {"stop": STOP},
    "use_cpu": True, "bf16": False, "gradient_checkpointing": False, "report_to": [], "save_strategy": "no",
    "logging_steps": 1, "disable_tqdm": True, "shuffle_dataset": False,
}
ANSWER = re.compile(r"#### (-?[0-9.,]+)")
name = "trees" if given.trees else "samples"
given.out.mkdir(parents=True, exist_ok=True)
log = open(given.out / f"{name}.jsonl", "w", buffering=1)
begun, tokens = time.time(), 0


def answer(text):
    return found[1] if (found := ANSWER.search(text)) else None


def reward(completions, right, **_):
    return [float(answer(text) == number) for text, number in zip(completions, right)]


def say(**line):
    print(line)
    log.write(json.dumps({"minutes": round((time.time() - begun) / 60, 3), "sampled_tokens": tokens, **line}) + "\n")


def look(llm, step, samples=1):
    """Accuracy of one sample on the held-out problems, asked as tasks/words-vote.json asks them."""
    fewshot = (ROOT / "tasks/words_fewshot.txt").read_text()
    held_out = [json.loads(line) for line in open(ROOT / "tasks/words.jsonl")]
    outputs = llm.generate(
        [fewshot + words.question_text(problem["question"]) for problem in held_out],
        offshoot.SamplingParams(n=samples, temperature=0.8, max_tokens=280, stop=STOP, seed=1), use_tqdm=False)
    right = [answer(sample.text) == answer(problem["answer"])
             for problem, output in zip(held_out, outputs) for sample in output.outputs]
    say(step=step, held_out=sum(right) / len(right), of=len(right))


class Log(TrainerCallback):
    """Notes each step, and looks at the held-out problems now and then."""

    def on_log(self, args, state, control, logs, **_):
        global tokens
        if "reward" in logs:
            took = trainer.vllm_generation.seconds
            if not given.trees:
                tokens += round(logs["completions/mean_length"] * GROUP * PROBLEMS)
            say(step=state.global_step, reward=round(logs["reward"], 3), seconds=round(logs["step_time"], 2),
                seconds_samples=round(took["samples"], 2), seconds_update=round(took["update"], 3),
                apart=logs["sampling/sampling_logp_difference/mean"], entropy=logs["entropy"])
            if state.global_step % given.every == 0 and state.global_step < given.steps:
                trainer.vllm_generation.sync_weights()
                look(llm, state.global_step)


def by_trees(prompts, trainer):
    """A rollout function: for each problem a tree, whose leaves are the samples of its group."""
    global tokens
    start = time.perf_counter()
    found = offshoot.entropy_branching(
        llm, prompts[::GROUP], **TREE, sampling_params=trainer.vllm_generation.sampling_params(),
        seed=trainer.state.global_step)
    rolled = {"prompt_ids": [], "completion_ids": [], "logprobs": []}
    for trie in (outcome.rollouts for outcome in found):
        tokens += int(trie.sampled.sum())
        for leaf in range(GROUP):
            path = trie.path(leaf % len(trie.leaf_tokens))
            own = path[trie.sampled[path]]
            rolled["prompt_ids"].append(trie.token_ids[path[~trie.sampled[path]]].tolist())
            rolled["completion_ids"].append(trie.token_ids[own].tolist())
            rolled["logprobs"].append(trie.logprobs[own].tolist())
    trainer.vllm_generation.seconds["samples"] = time.perf_counter() - start
    return rolled


torch.set_num_threads(given.threads)
folder = given.out / "model"  # In f32, as it is trained: then sampler and trainer agree to the last digits.
shutil.copytree(offshoot.demo_model(), folder, dirs_exist_ok=True)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
model.save_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)
tokenizer.pad_token = tokenizer.eos_token

draw = random.Random(given.seed)
problems = [words.problem(draw) for _ in range(PROBLEMS * given.steps)]
train = Dataset.from_list([{"prompt": words.question_text(problem.question),
                            "right": str(words.render(problem, draw, slip=0.0)[1])} for problem in problems])

llm = offshoot.LLM(folder, device="cpu", threads=given.threads, kv_memory=512, logprobs_mode="processed_logprobs")
with offshoot.trl.use(llm=llm):
    trainer = GRPOTrainer(
        model, reward, GRPOConfig(str(given.out / "trainer"), **CONFIG), train_dataset=train,
        processing_class=tokenizer, callbacks=[Log()], rollout_func=by_trees if given.trees else None)
trainer.remove_callback(PrinterCallback)
look(llm, 0, samples=4)
trainer.train()
trainer.vllm_generation.sync_weights()
look(llm, given.steps, samples=4)

drawn = {"samples": "groups of samples", "trees": "trees"}
(given.out / "curve.json").write_text(json.dumps({
    "title": "Word problems that were held out, one sample at temperature 0.8", "mark": 0.75,
    "x": {"field": "sampled_tokens", "label": "tokens sampled for training"},
    "y": {"field": "held_out", "label": "right", "percent": True},
    "series": [{"name": said, "file": f"{each}.jsonl"} for each, said in drawn.items()
               if (given.out / f"{each}.jsonl").exists()],
}, indent=2))
(given.out / "curve.svg").write_text(curve.draw(curve.read_curves(str(given.out / "curve.json"))))
