"""requests.py COUNT SHARED OWN OUT N: requests behind one shared prefix of token ids."""
import json, random, sys
count, shared, own, most, n = map(int, sys.argv[1:6])
random.seed(7)
prefix = [random.randrange(1000, 100000) for _ in range(shared)]
for i in range(count):
    tokens = prefix + [random.randrange(1000, 100000) for _ in range(own)]
    body = {"prompt": tokens, "max_tokens": most, "ignore_eos": True, "temperature": 1.0, "seed": i, "n": n}
    print(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body}))
