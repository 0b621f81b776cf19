"""10,000 kept branches, and what a request costs while each of its steps raises the peak of memory."""
import json, subprocess, sys, time, urllib.request
O, PORT = sys.argv[1], 8105
server = subprocess.Popen(["soak/start.sh", "0", O, "serve", "--model", "tasks/models/demo", "--port", str(PORT), "--device", "cpu", "--threads", "1", "--kv-memory", "2000"], stdout=subprocess.PIPE, text=True, start_new_session=True)
for line in server.stdout:
    if line.startswith("serving"): break
def post(body):
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=3000))
def metric(name):
    text = urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics").read().decode()
    return float(next(line for line in text.splitlines() if line.startswith(name + " ")).split()[1])
def once():
    steps = metric("offshoot_engine_steps_total"); began = time.monotonic()
    post({"prompt": "Question: ", "n": 1, "max_tokens": 2000, "ignore_eos": True, "seed": int(began * 1e6) % 1000000, "keep": True})
    seconds = time.monotonic() - began
    return 1e6 * seconds / (metric("offshoot_engine_steps_total") - steps)
none = [once() for _ in range(5)]
began = time.monotonic()
for _ in range(10): post({"prompt": "Question: ", "n": 1000, "max_tokens": 24, "ignore_eos": True, "keep": True})
keeping = time.monotonic() - began
kept = [once() for _ in range(5)]
print(json.dumps({"build": O, "kept": metric("offshoot_branches_kept"), "held_pages": metric("offshoot_engine_kv_pages_held"), "keeping_s": keeping, "us_per_step_before": sorted(none), "us_per_step_with_kept": sorted(kept)}))
server.terminate(); server.wait()
