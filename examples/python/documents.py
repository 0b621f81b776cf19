"""Questions to long documents: each document is computed once, whatever the number of its questions."""

import json

import offshoot

documents = [json.loads(line) for line in open("tasks/facts.jsonl")][:10]
asked = [(document, question) for document in documents for question in document["questions"]]
prompts = [f"{document['document']}\n\nQuestion: {question['question']}\nAnswer:" for document, question in asked]

llm = offshoot.LLM(offshoot.demo_model())
answers = llm.generate(prompts, offshoot.SamplingParams(temperature=0, max_tokens=12, stop="\n"))
right = [answer.outputs[0].text.strip() == question["answer"] for answer, (_, question) in zip(answers, asked)]
counters = llm.metrics()
print(f"{sum(right)} of {len(asked)} right; {counters['prompt_tokens_computed']:,} of "
      f"{counters['prompt_tokens_logical']:,} prompt tokens computed")
