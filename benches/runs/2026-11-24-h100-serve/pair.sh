set -u; cd "$(dirname "$0")"; O=./offshoot; export OFFSHOOT_CACHE=/tmp/cache; D=/tmp
xz -dk offshoot.xz; chmod +x offshoot; nvidia-smi --query-gpu=name --format=csv,noheader
mkdir -p $D/m8 $D/m1; xz -dc tok/tokenizer.json.xz > $D/m8/tokenizer.json; cp $D/m8/tokenizer.json $D/m1/
python3 model.py $D/m8 llama3-8b && python3 model.py $D/m1 llama-1b
python3 requests.py 64 2048 64 256 1 > $D/r64.jsonl; python3 requests.py 1024 2048 64 256 1 > $D/r1024.jsonl; python3 requests.py 256 1024 64 256 16 > $D/r4096.jsonl
pair() { # MODEL REQUESTS STREAMS
  for k in 1 2; do
  rm -f $D/a.jsonl; $O batch $2 --out $D/a.jsonl --model $1 --device cuda -v > $D/b.log 2>&1; end=$(date +%s.%N)
  loaded=$(date -d "$(grep -o '^\[[^]]*\] the model was loaded' $D/b.log | sed 's/^\[//; s/\].*//')" +%s.%N)
  tokens=$(grep -o '[0-9,]* tokens sampled' $D/b.log | tr -d ', a-z')
  python3 -c "print('batch', '$3', $tokens, round($end-$loaded,3), round($tokens/($end-$loaded),1))" | tee -a $OUT/pairs.txt
  $O serve --model $1 --device cuda --port 8000 --data $D/data --no-page > $D/s.log 2>&1 & S=$!
  for i in $(seq 240); do curl -sf localhost:8000/health >/dev/null && break; sleep 0.25; done
  $O bench serve $2 --url http://127.0.0.1:8000 --concurrency $3 --json | tee -a $OUT/cold.jsonl | python3 -c "import json,sys; r=json.load(sys.stdin); print('serve', '$3', r['completion_tokens'], round(r['wall_s'],3), round(r['tokens_per_s'],1), 'ttft p99', r['first_token_s']['p99'], 'next p50', r['next_token_s']['p50'])" | tee -a $OUT/pairs.txt
  kill -TERM $S; wait $S; done; }
pair $D/m8 $D/r64.jsonl 64; pair $D/m8 $D/r1024.jsonl 1024; pair $D/m1 $D/r4096.jsonl 256
