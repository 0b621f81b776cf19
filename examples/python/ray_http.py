"""Ray's own HTTP processor against `offshoot serve`, which shares what requests begin with. Needs `pip install
'ray[data]' pydantic aiohttp`; vLLM is not needed.
"""

import json
import subprocess

import ray
from ray.data.llm import HttpRequestProcessorConfig, build_processor

import offshoot
from offshoot.command import command

documents = [json.loads(line) for line in open("tasks/facts.jsonl")][:3]
asked = [{"prompt": f"{document['document']}\n\nQuestion: {question['question']}\nAnswer:", "right": question["answer"]}
         for document in documents for question in document["questions"]]

server = subprocess.Popen([command(), "serve", "--model", offshoot.demo_model(), "--port", "0"], stdout=subprocess.PIPE,
                          text=True)
try:
    address = next(line.split()[-1] for line in server.stdout if "http://" in line)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    answer = build_processor(
        HttpRequestProcessorConfig(url=f"{address}/completions", batch_size=len(asked), concurrency=1),
        preprocess=lambda row: {"payload": {"prompt": row["prompt"], "temperature": 0, "max_tokens": 12, "stop": "\n"}},
        postprocess=lambda row: {"is_right": row["http_response"]["choices"][0]["text"].strip() == row["right"]})
    rows = answer(ray.data.from_items(asked)).take_all()
    print(f"{sum(row['is_right'] for row in rows)} of {len(rows)} right")
finally:
    server.terminate()
    server.wait()
