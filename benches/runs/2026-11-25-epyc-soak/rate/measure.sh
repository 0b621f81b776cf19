#!/bin/bash
# For each rate: the server on core 0 with one thread, the client on core 1; the engine alone on the same core; the model.

O=offshoot
date
for rate in 15 30 45; do
    ../soak/start.sh 0 $O bench batches --shape demo --file shapes.json --table rate --job system-512 --way ours --lengths lengths.csv --rate $rate --span 30 --device cpu --threads 1 --step-rows 128 >> engine.jsonl 2>> engine.err
    $O bench batches --shape demo --file shapes.json --table rate --job system-512 --way ours --lengths lengths.csv --rate $rate --span 30 --simulated $1 --step-rows 128 >> model.jsonl 2>> model.err
    setsid ../soak/start.sh 0 $O serve --model tasks/models/demo --port 8103 --device cpu --kv-memory 256 --threads 1 > server.log 2>&1 < /dev/null &
    sleep 3
    python3 - $rate <<'P'
import json, os, subprocess, sys, urllib.request
rate = float(sys.argv[1])
def metrics():
    text = urllib.request.urlopen("http://127.0.0.1:8103/metrics").read().decode()
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
before = metrics()
count = round(rate * 30)
lines = open("requests.jsonl").readlines()[:count]
open("part.jsonl", "w").writelines(lines)
ran = subprocess.run(["../soak/start.sh", "1", "offshoot", "bench", "serve", "--json", "--url", "http://127.0.0.1:8103", "--rate", str(rate), "--seed", "1", "part.jsonl"], capture_output=True, text=True)
after = metrics()
seen = json.loads(ran.stdout)
mean = lambda name: (float(after[name + "_sum"]) - float(before[name + "_sum"])) / max(1, float(after[name + "_count"]) - float(before[name + "_count"]))
seen["mean"] = {name: mean("offshoot_" + name) for name in ["time_to_first_token_seconds", "time_between_chunks_seconds", "request_seconds"]}
open("serve.jsonl", "a").write(json.dumps(seen) + "\n")
P
    kill $(pgrep -f "serve --model tasks/models/demo --port 8103"); sleep 1
done
date
