"""Self-consistency on word problems: 32 samples vote on each. With your own model and GSM8K: another folder, file and
prompt."""

import json

import offshoot

fewshot = open("tasks/words_fewshot.txt").read()
problems = [json.loads(line) for line in open("tasks/words.jsonl")][:10]
prompts = [f"{fewshot}Question: {problem['question']}\nAnswer:" for problem in problems]
right = [problem["answer"].split("#### ")[1] for problem in problems]

llm = offshoot.LLM(offshoot.demo_model())
params = offshoot.SamplingParams(temperature=0.8, max_tokens=280, stop=["\n\n", "\nQuestion"])
outcomes = offshoot.vote(llm, prompts, 32, answer=r"#### (-?[0-9.,]+)", grade=lambda answer, at: answer == right[at],
                         sampling_params=params, seed=1)
print(f"one sample {sum(s.correct for o in outcomes for s in o.samples) / sum(len(o.samples) for o in outcomes):.1%}, "
      f"the vote {sum(outcome.correct for outcome in outcomes) / len(outcomes):.1%}")
