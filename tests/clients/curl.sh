#!/usr/bin/env bash
# The server as a person meets it with curl alone. Usage: curl.sh [URL] [MODEL]
set -euo pipefail
url="${1:-http://127.0.0.1:8000}" model="${2:-demo}"
command -v curl >/dev/null || { echo "skipped: curl is not installed"; exit 77; }

get() { curl -sS --fail-with-body --max-time 60 "$@"; }
post() { get -H 'Content-Type: application/json' -d "$2" "$url$1"; }
expect() { grep -q -- "$1" <<<"$2" || { echo "FAILED: $1 is not in: $2"; exit 1; }; }

get "$url/health" >/dev/null
expect "\"$model\"" "$(get "$url/v1/models")"
expect '"finish_reason":' "$(post /v1/completions '{"model": "'"$model"'", "prompt": "Question:", "max_tokens": 5}')"
expect '"role":"assistant"' "$(post /v1/chat/completions \
    '{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}')"
stream="$(post /v1/completions '{"prompt": "Question:", "max_tokens": 5, "stream": true}')"
expect '^data: {' "$stream"
expect '^data: \[DONE\]' "$stream"
expect '^# TYPE ' "$(get "$url/metrics")"
# Errors have a status and a message that names the field.
status="$(curl -sS -o /dev/null -w '%{http_code}' -d '{"prompt": 5}' -H 'Content-Type: application/json' \
    "$url/v1/completions")"
expect '^400$' "$status"
# A body in pieces, behind Expect: 100-continue.
expect '"choices"' "$(get -H 'Transfer-Encoding: chunked' -H 'Expect: 100-continue' \
    -H 'Content-Type: application/json' -d '{"prompt": "Question:", "max_tokens": 2}' "$url/v1/completions")"
# A page of another site can make a browser send a form, but not JSON.
status="$(curl -sS -o /dev/null -w '%{http_code}' -d '{"prompt": "Question:"}' "$url/v1/completions")"
expect '^415$' "$status"
echo "all holds"
