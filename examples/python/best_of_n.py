"""Best of N by a grader of one's own: a program for each of a few functions, judged in a sandbox while others are
sampled."""

import json

import offshoot

task = [json.loads(line) for line in open("tasks/functions.jsonl")][:4]
judge = offshoot.Judge()
llm = offshoot.LLM(offshoot.demo_model())
outcomes = offshoot.best_of_n(
    llm, [problem["prompt"] for problem in task], 32,
    grade=lambda program, at: judge.judge(task[at], program).accepted, stop_when_passed=True,
    sampling_params=offshoot.SamplingParams(temperature=0.8, max_tokens=120, stop=["\ndef ", "\n\n\n"]), seed=1)
for problem, outcome in zip(task, outcomes):
    print(problem["task_id"], "solved" if outcome.correct else "not solved", f"after {len(outcome.samples)} samples")
print(sum(bool(outcome.correct) for outcome in outcomes), "of", len(task), "solved")
