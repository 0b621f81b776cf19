"""Multiple-choice requests of MMLU as lm-eval sends them: one for each choice of each question, behind worked examples.

python3 requests.py MMLU SUBJECT QUESTIONS letters|texts MAX_TOKENS > requests.jsonl
"""

import csv
import json
import sys

folder, subject, most, kind, max_tokens = sys.argv[1:]


def rows(split):
    with open(f"{folder}/{split}/{subject}_{split}.csv", newline="") as file:
        return list(csv.reader(file))


def question(row):
    choices = "".join(f"\n{letter}. {text}" for letter, text in zip("ABCD", row[1:5]))
    return f"{row[0].strip()}{choices}\nAnswer:"


head = f"The following are multiple choice questions (with answers) about {subject.replace('_', ' ')}.\n\n"
shots = head + "".join(f"{question(row)} {row[5]}\n\n" for row in rows("dev"))
for number, row in enumerate(rows("test")[: int(most)]):
    for choice, letter in enumerate("ABCD"):
        continuation = letter if kind == "letters" else row[1 + choice]
        body = {
            "model": "demo",
            "prompt": f"{shots}{question(row)} {continuation}",
            "max_tokens": int(max_tokens),
            "temperature": 0,
            "echo": True,
            "logprobs": 1,
        }
        line = {"custom_id": f"{number}-{letter}", "method": "POST", "url": "/v1/completions", "body": body}
        print(json.dumps(line))
