# pairs.sh REQUESTS STREAMS TIMES: `offshoot batch`, then a fresh server under `offshoot bench serve`, by turns.
O=${OFFSHOOT:-target/release/offshoot} M=tasks/models/demo D=$(mktemp -d)
for k in $(seq "$3"); do
    begun=$(date +%s.%N)
    $O batch "$1" --out "$D/$k.jsonl" --model $M --device cpu -v 2> "$D/log"
    ended=$(date +%s.%N)
    tokens=$(grep -o '[0-9,]* tokens sampled' "$D/log" | tr -d ', a-z')
    echo "batch $(python3 -c "print(round($tokens / ($ended - $begun)))")"
    $O serve --model $M --device cpu --port 8123 --data "$D/data" --no-page > "$D/serve.log" 2>&1 & server=$!
    until curl -sf localhost:8123/health > "$D/health"; do sleep 0.1; done
    $O bench serve "$1" --url http://127.0.0.1:8123 --concurrency "$2" --json |
        python3 -c "import json, sys; print('serve', round(json.load(sys.stdin)['tokens_per_s']))"
    kill -TERM $server; wait $server
done
