"use strict";
// The panel with the details of one node.

/** Characters of a text that are shown before one asks for the rest. */
const MOST_TEXT = 20_000;

function showDetail(pane, tree, id) {
  const node = tree.nodes[id];
  const each = tree.item.kv_bytes_per_token;
  pane.replaceChildren();
  pane.scrollTop = 0;
  const title = element("h3", "", node.parent === null ? "Prompt" : coinsPath(tree, id));
  pane.append(title, badges(tree, node));
  const facts = element("dl");
  const fact = (name, value) => {
    if (value !== null && value !== undefined) {
      facts.append(element("dt", "", name), element("dd", "", value));
    }
  };
  fact("Ended by", node.parent === null ? null : finishOf(node));
  fact("Score", node.score === null ? null : String(node.score));
  fact("Visits", node.visits === undefined ? null : count(node.visits));
  if (node.logprob !== null) {
    fact("Log-probability", `${node.logprob.toFixed(3)} nats`);
    if (node.tokens > 0) {
      fact("A token", `${(node.logprob / node.tokens).toFixed(3)} nats`);
    }
  }
  fact("Tokens", tokensAndBytes(node.tokens, each));
  fact("Shared by",
    node.branches === 1 ? "not shared: of one branch" : `${count(node.branches)} branches, counted once`);
  if (node.branches > 1) {
    fact("Sharing saves", tokensAndBytes(node.tokens * (node.branches - 1), each));
  }
  const { judged, attention, ...sample } = node.sample ?? {};
  fact("Attention", attentionOf(attention));
  for (const [key, value] of Object.entries(sample).concat(Object.entries(judged ?? {}))) {
    const words = key.replaceAll("_", " ");
    fact(words[0].toUpperCase() + words.slice(1),
      value === null ? "none" : visible(typeof value === "object" ? JSON.stringify(value) : String(value)));
  }
  fact("Children", node.children.length === 0 ? null : count(node.children.length));
  fact("Node", String(node.id));
  pane.append(facts);
  pane.append(text("Text", node.text));
  if (node.level > 1 && !node.asks) {
    pane.append(text("Whole path", pathText(tree, id)));
  }
}

/** On which levels a sample's attention fell, if the run recorded it. */
function attentionOf(parts) {
  if (!Array.isArray(parts)) {
    return null;
  }
  const name = (level) => (level + 1 === parts.length ? "own text" : `prompt level ${level + 1}`);
  return parts.map((part, level) => `${name(level)} ${(100 * part).toFixed(1)} %`).join(", ");
}

function badges(tree, node) {
  const line = element("p", "badges");
  const said = verdictOf(node.sample);
  if (tree.item.answer === node.id) {
    line.append(element("span", "badge answer", "the answer"));
  } else if (node.chosen) {
    line.append(element("span", "badge answer", "on the answer's path"));
  }
  if (said !== null) {
    line.append(element("span", `badge ${said[1]}`, said[0]));
  }
  line.append(element("span", "badge", node.state));
  if (node.asks) {
    line.append(element("span", "badge", "a question: a prompt of its own"));
  }
  return line;
}

function text(name, all) {
  const part = element("div", "part");
  part.append(element("h4", "", `${name} (${count(all.length)} characters)`));
  const shown = element("pre", "", visible(all.slice(0, MOST_TEXT)));
  part.append(shown);
  if (all.length > MOST_TEXT) {
    const more = element("button", "", "Show all of it");
    more.addEventListener("click", () => {
      shown.textContent = visible(all);
      more.remove();
    });
    part.append(more);
  }
  return part;
}
