"""requests.py COUNT SHARED OWN OUT: requests behind one shared prefix of token ids."""
import json, random, sys
count, shared, own, most = map(int, sys.argv[1:5])
random.seed(7)
prefix = [random.randrange(10, 900) for _ in range(shared)]
for i in range(count):
    tokens = prefix + [random.randrange(10, 900) for _ in range(own)]
    body = {"model": "demo", "prompt": tokens, "max_tokens": most, "ignore_eos": True, "temperature": 1.0, "seed": i}
    print(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body}))
