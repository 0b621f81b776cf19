# A second generator as the judge beside a model on one GPU, end to end. Run in the repository's root on the device
# machine with .gpu/offshoot.xz (and .gpu/checks.xz of the same commit, if cuda_beside is to run), .gpu/tok.tar.xz and
# .gpu/gs/ there; writes $OUT/pair.tgz. About 6 minutes; each step prints its exit code and the seconds so far.
export OFFSHOOT_CACHE=/tmp/oc CUDA_VISIBLE_DEVICES=0 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
ROOT=$PWD; T=/tmp/pair; G=/tmp/gp; mkdir -p /tmp/tok $G $T; tar xJf .gpu/tok.tar.xz -C /tmp/tok
( cd .gpu; for f in offshoot checks; do [ -f $f.xz ] && xz -dkf $f.xz && chmod +x $f; done )
BIN=$ROOT/.gpu/offshoot
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader > $T/gpu.txt; date >> $T/gpu.txt
if [ -x .gpu/checks ]; then
  timeout 100 .gpu/checks cuda_beside --nocapture > $T/beside.txt 2>&1; echo "beside $? $SECONDS"; tail -8 $T/beside.txt
fi
# The 8B generator, and a 1B generator as the judge (the scorer's folder is not needed).
sed '/^folder("scorer"/d' .gpu/gs/make_models.py > $G/make.py
cat >> $G/make.py <<'PY'
folder("judge", llama(*small, architectures=["LlamaForCausalLM"]), ("lm_head.weight", (128256, small[0]), small[0]**-0.5))
PY
python3 $G/make.py /tmp/tok $G ${SMALL:+small}; echo "models $? $SECONDS"
cat > $G/tasks.py <<'PY'
import json
items = [dict(json.loads(line), answer="7") for line in open("items.jsonl")][:1]
items = [dict(item, id=str(ix), question=item["question"][: 1500 + 200 * ix]) for ix in range(2) for item in items]
json.dump(items, open("items.json", "w"))
ask = "Question: {{question}}\nAnswer: {{sample}}\nIs the answer right? (yes/no):"
words = {" yes": 1, " no": 0}
rating = {"type": "object", "properties": {"reasoning": {"type": "string", "maxLength": 80},
          "score": {"type": "integer", "minimum": 0, "maximum": 10}}, "required": ["reasoning", "score"],
          "additionalProperties": False}
score = {"prompt": ask, "score": {"at": "/score", "low": 0, "high": 10, "schema": rating}, "max_tokens": 256}
pairs = {"prompt": "{{question}}\nA: {{first}}\nB: {{second}}\nThe better one is:",
         "pairs": {"words": [" A", " B"], "opponents": 4}}
rubric = {"prompt": ask + " {{criterion}}", "rubric": [{"criterion": "Is it short?", "points": 1},
          {"criterion": "Is it sound?", "points": 3}], "words": words}
def best(by, **more):
    return {"best_of_n": {"samples": 128, "by": by, **more}}
methods = {
    "plain": best("logprob"),
    "words": best({"prompt": ask, "words": words}),
    "score": best(score),
    "pairs": best(pairs),
    "rubric": best(rubric),
    "beam": {"step_beam": {"samples": 64, "expansions": 4, "step_tokens": 64, "scorer": {"prompt": ask, "words": words}}},
    "vote": {"self_consistency": {"samples": 128, "weigh_by": score}},
    "grade": {"sample": {"samples": 64}},
}
for name, method in methods.items():
    task = {"name": name, "model": "generator", "items": "items.json", "prompt": "Question: {{question}}\nAnswer:",
            "sampling": {"temperature": 1.0, "max_tokens": 512, "seed": 1}, "method": method}
    if name in ("vote", "grade", "beam"):
        task["answer"] = {"regex": "([0-9]+)"}
    if name == "grade":
        task["grade"] = {"verdict": {"prompt": ask, "words": words, "right_from": 0.5}}
    json.dump(task, open(name + ".json", "w"), indent=1)
PY
cp .gpu/gs/items.jsonl $G; cd $G; python3 tasks.py; echo "tasks $?"
J="--device cuda --judge judge"
timeout 60 $BIN run score.json $J --dry-run > $T/dry.txt 2>&1; echo "dry-run $? $SECONDS"; grep -A1 -E "^(judge|kv pool)" $T/dry.txt
timeout 60 $BIN plan score.json --judge judge > $T/plan.txt 2>&1; echo "plan $? $SECONDS"; grep -E "judge|both" $T/plan.txt
for t in plain words score pairs rubric beam vote grade; do
  timeout 120 $BIN run $t.json $( [ $t = plain ] && echo --device cuda || echo $J ) --out out-$t > $T/run-$t.txt 2>&1
  echo "$t $? $SECONDS"; grep -E "sampled|judge|scorer|error" $T/run-$t.txt | head -5
  for f in summary manifest; do cp out-$t/$f.json $T/$f-$t.json; done; head -c 20000 out-$t/samples.jsonl > $T/samples-$t.jsonl
done
# Samples do not depend on the judge: the bits of a deterministic run alone and beside it.
timeout 120 $BIN run plain.json --deterministic --samples 32 --device cuda --out det-alone > $T/det-alone.txt 2>&1; echo "det-alone $? $SECONDS"
timeout 120 $BIN run words.json --deterministic --samples 32 $J --out det-judged > $T/det-judged.txt 2>&1; echo "det-judged $? $SECONDS"
python3 - <<'PY' | tee $T/same.txt
import json
read = lambda folder: sorted((s["id"], s["index"], s["text"]) for s in map(json.loads, open(folder + "/samples.jsonl")))
print("samples are the same beside a judge:", read("det-alone") == read("det-judged"), len(read("det-alone")))
for name in ("words", "score", "pairs", "rubric", "vote"):
    samples = [json.loads(line) for line in open(f"out-{name}/samples.jsonl")]
    scores = [s.get("score") for s in samples]
    scored = [s for s in scores if s is not None]
    print(name, len(samples), "samples,", len(scored), "scored, in 0..1:", all(0 <= s <= 1 for s in scored),
          "first error:", next((s["score_error"] for s in samples if s.get("score_error")), None))
PY
# Killed in the middle and resumed; resumed with another judge is refused by name.
( timeout -s KILL 14 $BIN run score.json $J --out killed > $T/killed.txt 2>&1 ); echo "killed $? $SECONDS; $(wc -l < killed/samples.jsonl) samples"
timeout 90 $BIN run score.json --device cuda --judge generator --out killed --resume > $T/other.txt 2>&1; echo "another judge: $?"; tail -2 $T/other.txt
timeout 120 $BIN run score.json $J --out killed --resume > $T/resumed.txt 2>&1; echo "resumed $? $SECONDS"; tail -3 $T/resumed.txt
# Refusals.
timeout 30 $BIN run words.json --judge judge --devices cpu,cpu --out no 2>&1 | tail -1
timeout 30 $BIN run words.json --device cuda --judge generator --out own > $T/own.txt 2>&1; echo "the model's own folder $?"; grep -cE "^judge" $T/own.txt
timeout 30 $BIN run words.json --device cuda --judge judge --judge-memory 1.5 --out no 2>&1 | tail -1
# An embedder (the judge's weights as one) beside the generator: its vectors are those of the CPU, but for bf16.
cp -r judge embedder; mkdir embedder/1_Pooling; echo '{"pooling_mode_lasttoken": true}' > embedder/1_Pooling/config.json
echo '[{"type":"sentence_transformers.models.Transformer","path":""},{"type":"sentence_transformers.models.Pooling","path":"1_Pooling"},{"type":"sentence_transformers.models.Normalize","path":"2_Normalize"}]' > embedder/modules.json
serve() { timeout 60 $BIN serve "$@" --port $PORT > $T/serve-$PORT.txt 2>&1 & echo $! > $G/pid; }
PORT=8011; serve --model generator --scorer embedder --device cuda --data $G/data
cat > $G/embed.py <<'PY'
import json, sys, time, urllib.request
port, model = sys.argv[1], sys.argv[2]
def post(path, body):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=30))
for _ in range(50):
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health"); break
    except OSError: time.sleep(1)
texts = ["How many apples are there?", "There are seven apples.", "How many apples are there?"]
vectors = [d["embedding"] for d in post("/v1/embeddings", {"model": "embedder", "input": texts})["data"]]
json.dump(vectors, open(f"vectors-{port}.json", "w"))
print(port, len(vectors), "vectors of", len(vectors[0]), "equal texts equal:", vectors[0] == vectors[2])
if model != "-":
    print(repr(post("/v1/completions", {"model": model, "prompt": "Question:", "max_tokens": 8, "temperature": 0})["choices"][0]["text"]))
PY
python3 embed.py $PORT generator; echo "embedder beside $? $SECONDS"; kill $(cat $G/pid); wait $(cat $G/pid) 2>/dev/null; grep room $T/serve-$PORT.txt
PORT=8012; serve --model embedder --device cpu; python3 embed.py $PORT -; echo "embedder on the CPU $? $SECONDS"; kill $(cat $G/pid)
python3 -c "
import json
a, b = (json.load(open(f'vectors-{p}.json')) for p in (8011, 8012))
print('cosines of GPU and CPU:', [sum(x * y for x, y in zip(u, v)) for u, v in zip(a, b)])" | tee $T/cosines.txt
cd $ROOT; rm -rf $G; tar -C $T -czf $OUT/pair.tgz .; ls -la $OUT
