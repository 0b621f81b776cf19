"""A pipeline on Ray: questions to documents, by two actors that each hold the model. Needs `pip install 'ray[data]'`.

On a cluster the same script runs with `ray.init()`, an actor a GPU, and a folder that all nodes see for `journal=`.
"""

import json

import ray

import offshoot
from offshoot.ray import OffshootConfig, build_processor, by_prefix

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
documents = [json.loads(line) for line in open("tasks/facts.jsonl")][:3]
asked = [{"prompt": f"{document['document']}\n\nQuestion: {question['question']}\nAnswer:", "right": question["answer"]}
         for document in documents for question in document["questions"]]
asked = asked[::2] + asked[1::2]                     # in an order in which neighbours share little

answer = build_processor(
    OffshootConfig(
        model=offshoot.demo_model(), engine_kwargs={"threads": 1}, concurrency=2,
        sampling_params={"temperature": 0, "max_tokens": 12, "stop": ["\n"]}),
    postprocess=lambda row: {"is_right": row["generated_text"].strip() == row["right"]})
parts = by_prefix(ray.data.from_items(asked), parts=3, max_tokens=12)   # says on stderr what the cut costs
rows = answer(parts).take_all()
counters = answer.metrics()
print(f"{sum(row['is_right'] for row in rows)} of {len(rows)} right; {counters['prompt_tokens_computed']:,} of "
      f"{counters['prompt_tokens_logical']:,} prompt tokens computed by {counters['actors']} actors")
