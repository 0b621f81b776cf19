"""Rollouts for a trainer by two programs over the tree: segments that branch where they are likeliest and fall back
where all fail, and forks at the tokens of highest entropy. What samples share is in the trie once."""

import json

import offshoot

fewshot = open("tasks/words_fewshot.txt").read()
problems = [json.loads(line) for line in open("tasks/words.jsonl")][:8]
ends_at = ["\n\n", "\nQuestion"]
llm = offshoot.LLM(offshoot.demo_model())


def depth(node):
    return 0 if node.parent is None else 1 + depth(node.parent)


def by_segments(prompt, grade, samples=12, segment=24, most=10):
    tree = llm.tree(prompt, seed=1)
    params = offshoot.SamplingParams(temperature=0.9, max_tokens=segment, stop=ends_at)
    borders, going, rewards, solved = [tree.root], [tree.root], {}, set()
    while len(rewards) < samples:
        if not going:  # Back to the last end of a segment behind which no sample is right.
            going = [max(borders, key=lambda node: (node not in solved, -len(node.children), depth(node)))]
        going.sort(key=lambda node: node.logprob / max(1, len(node.token_ids)), reverse=True)
        more = samples - len(rewards) - len(going)
        forks = [fork for at, node in enumerate(going) for fork in node.fork(2 if at < more else 1)]
        going = []
        for node in sorted(tree.extend(forks, params), key=lambda node: node.id):
            if node.finish_reason == "length" and depth(node) < most:
                going.append(node)
                continue
            rewards[node] = grade(node.path_text)
            while rewards[next(reversed(rewards))] and node is not None:
                solved.add(node)
                node = node.parent
        borders += going
    return tree.rollouts(rewards)


def by_entropy(prompt, grade, paths=3, forks=3):
    tree = llm.tree(prompt, seed=1)
    params = offshoot.SamplingParams(temperature=0.9, max_tokens=280, stop=ends_at, return_entropy=True)
    ends, heads = tree.root.fork(paths), []
    tree.extend(ends, params)
    for at, end in enumerate(ends):
        done = 0
        for token in sorted((-end.entropies[1:]).argsort(kind="stable")[:forks] + 1):
            rest = end.split(int(token) - done)  # What is before the token stays in `end`, and is forked.
            heads.append(end)
            end, done = rest, int(token)
        ends[at] = end
    new = [fork for head in heads for fork in head.fork(1)]
    tree.extend(new, params)
    return tree.rollouts({node: grade(node.path_text) for node in ends + new})


for search in (by_segments, by_entropy):
    tries = [search(f"{fewshot}Question: {problem['question']}\nAnswer:",
                    lambda text, right=problem["answer"].split("#### ")[1]: float(f"#### {right}" in text))
             for problem in problems]
    tokens, unpacked = sum(map(len, tries)), sum(trie.unpacked_tokens for trie in tries)
    rewards = [reward for trie in tries for reward in trie.rewards]
    print(f"{search.__name__}: {len(rewards)} samples, {sum(rewards) / len(rewards):.0%} right, "
          f"{tokens} tokens in place of {unpacked}: {unpacked / tokens:.1f} times fewer")
