"""Starts the server with a document pinned, three times: without a store, with an empty one, with what that left."""
import json, os, signal, subprocess, sys, time, urllib.request
O, PORT = "offshoot", 8104
def start(*more):
    began = time.monotonic()
    server = subprocess.Popen(["../soak/start.sh", "0", O, "-v", "serve", "--model", "model", "--port", str(PORT), "--device", "cpu",
        "--threads", "1", "--kv-memory", "600", "--prefix", "document.txt", *more], stdout=subprocess.PIPE, stderr=open("stderr.txt", "a"), text=True, start_new_session=True)
    times = {}
    for line in server.stdout:
        times[line.split()[0]] = time.monotonic() - began
        print(f"{time.monotonic() - began:8.2f} s  {line.strip()}", flush=True)
        if line.startswith("serving"):
            return server, times
def metric(name):
    text = urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics").read().decode()
    return float(next(line for line in text.splitlines() if line.startswith(name + " ")).split()[1])
def ask():
    body = {"prompt": open("document.txt").read() + " He said", "max_tokens": 64, "n": 4, "seed": 7, "logprobs": 5, "ignore_eos": True}
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    began = time.monotonic()
    answer = json.load(urllib.request.urlopen(request, timeout=3000))
    return [{key: choice[key] for key in ("text", "logprobs", "finish_reason")} for choice in answer["choices"]], answer["usage"], time.monotonic() - began
answers, rows = [], []
for name, options in [("no store", []), ("empty store", ["--prefix-store", "store"]), ("filled store", ["--prefix-store", "store"]), ("filled store again", ["--prefix-store", "store"])]:
    server, times = start(*options)
    row = {"start": name, "pinned_s": times.get("pinned"), "serving_s": times["serving"], "computed": metric("offshoot_engine_prompt_tokens_computed_total")}
    choices, usage, seconds = ask()
    row |= {"answer_s": seconds, "usage": usage}
    answers.append(choices)
    began = time.monotonic(); server.send_signal(signal.SIGTERM); server.wait(); row["end_s"] = time.monotonic() - began
    row["store_bytes"] = sum(os.path.getsize(os.path.join(at, f)) for at, _, files in os.walk("store") for f in files)
    row["same_bits"] = choices == answers[0]
    rows.append(row); print(json.dumps(row), flush=True)
    json.dump(rows, open("prefix.json", "w"), indent=1)
