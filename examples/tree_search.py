"""Beam search over a running server. Each beam is a kept branch: no text is sent again, no prefix computed again.

    offshoot serve --model tasks/models/demo
    export OFFSHOOT_SERVER=http://127.0.0.1:8000/v1  # the default
    python3 examples/tree_search.py "Question: Mia has 3 pens and buys 4 more. How many pens does Mia have now?"
"""

import http.client
import json
import os
import sys
import urllib.error
import urllib.request

SERVER = os.environ.get("OFFSHOOT_SERVER", "http://127.0.0.1:8000/v1")
BEAMS, CHILDREN, STEP, DEPTH = 4, 6, 8, 16  # STEP: tokens by which a beam grows at once


def call(method, path, body=None):
    data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(SERVER + path, data, headers, method=method)) as response:
        return json.load(response)


def search(prompt):
    root = call("POST", "/completions", {"prompt": prompt, "max_tokens": 0, "keep": True})
    beams, ended = [(0.0, "", root["choices"][0]["branch"])], {}
    step = {"n": CHILDREN, "max_tokens": STEP, "stop": ["\n\n"], "logprobs": 0, "keep": True}
    for depth in range(DEPTH):
        grown, unused = {}, [branch for _, _, branch in beams]
        for score, text, branch in beams:
            for child in call("POST", "/completions", step | {"parent": branch, "seed": depth})["choices"]:
                likely = score + sum(child["logprobs"]["token_logprobs"])
                longer = text + child["text"]
                if child["finish_reason"] == "stop":
                    ended[longer] = likely
                if child["finish_reason"] == "stop" or longer in grown:
                    unused.append(child["branch"])
                else:
                    grown[longer] = (likely, longer, child["branch"])
        beams = sorted(grown.values(), reverse=True)
        unused += [branch for _, _, branch in beams[BEAMS:]]
        beams = beams[:BEAMS]
        for branch in unused:
            call("DELETE", f"/branches/{branch}")
        if not beams or len(ended) >= BEAMS:
            break
    for _, _, branch in beams:
        call("DELETE", f"/branches/{branch}")
    return sorted(((score, text) for text, score in ended.items()), reverse=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit('expected one question, as in: python3 examples/tree_search.py "Question: ..."')
    try:
        found = search(sys.argv[1] + "\nAnswer:")
    except urllib.error.HTTPError as error:
        sys.exit(f"the server at {SERVER} answered {error.code}: {error.read().decode(errors='replace')}")
    except (OSError, http.client.HTTPException, ValueError) as error:  # a URLError is an OSError
        why = getattr(error, "reason", None) or error or type(error).__name__
        sys.exit(f"no server at {SERVER} ({why}): start one with `offshoot serve --model tasks/models/demo`, or set "
                 "OFFSHOOT_SERVER to the address of another")
    for score, text in found:
        print(f"{score:9.4f}  {text.strip()!r}")
