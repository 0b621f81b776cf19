"use strict";
// The page's data: the run, its items, and for the item on show a tree whose nodes know their children. Nothing here
// touches what is drawn.

const run = JSON.parse(document.getElementById("run").textContent);
const trees = new Map();

/** The tree of item number `number`, read when it is first asked for. */
function treeOf(number) {
  if (!trees.has(number)) {
    const item = JSON.parse(document.getElementById(`item-${number}`).textContent);
    const nodes = item.nodes;
    for (const node of nodes) {
      node.children = [];
      node.open = false;
    }
    for (const node of nodes) {
      if (node.parent === null) {
        node.level = 0;
        continue;
      }
      const parent = nodes[node.parent];
      parent.children.push(node.id);
      node.level = parent.level + 1;
    }
    // An only child is not set in, so that a chain of thoughts does not run out of sight. Parents come first.
    for (const node of nodes) {
      const parent = nodes[node.parent];
      node.joined = parent !== undefined && parent.children.length === 1 && node.parent !== 0;
      node.indent = parent === undefined ? 0 : parent.indent + (node.joined ? 0 : 1);
    }
    trees.set(number, { item, nodes, distinct: item.totals.tokens });
    unfoldAtFirst(trees.get(number));
  }
  return trees.get(number);
}

/** Opens nodes from the root down while few rows show, and the path to the answer. */
function unfoldAtFirst(tree) {
  const most = 400;
  let rows = 1;
  let next = [0];
  while (next.length > 0) {
    const below = next.flatMap((id) => tree.nodes[id].children);
    if (rows + below.length > most && rows > 1) {
      break;
    }
    next.forEach((id) => (tree.nodes[id].open = true));
    rows += below.length;
    next = below;
  }
  if (tree.item.answer !== null) {
    reveal(tree, tree.item.answer);
  }
}

/** Opens everything above a node. */
function reveal(tree, id) {
  for (let up = tree.nodes[id].parent; up !== null; up = tree.nodes[up].parent) {
    tree.nodes[up].open = true;
  }
}

/** Ids of the nodes that show, in the order of their rows. */
function rowsOf(tree, showPruned) {
  const rows = [];
  const below = [0];
  while (below.length > 0) {
    const node = tree.nodes[below.pop()];
    if (!showPruned && node.state === "pruned") {
      continue;
    }
    rows.push(node.id);
    if (node.open) {
      for (let i = node.children.length - 1; i >= 0; i--) {
        below.push(node.children[i]);
      }
    }
  }
  return rows;
}

/** Ids of the nodes whose text holds `words`, depth-first, whether they show or not. */
function find(tree, words) {
  const wanted = words.toLowerCase();
  const found = [];
  const below = [0];
  while (below.length > 0) {
    const node = tree.nodes[below.pop()];
    node.lower ??= node.text.toLowerCase();
    if (node.lower.includes(wanted)) {
      found.push(node.id);
    }
    for (let i = node.children.length - 1; i >= 0; i--) {
      below.push(node.children[i]);
    }
  }
  return found;
}

/** How a node came about, as its random numbers are keyed: `sample 3 / value 0`. */
function coinsPath(tree, id) {
  const path = [];
  for (let node = tree.nodes[id]; node.parent !== null; node = tree.nodes[node.parent]) {
    path.unshift(`${node.kind} ${node.ordinal}`);
  }
  return path.join(" / ");
}

/** The texts from below the prompt, or the question above, down to a node. */
function pathText(tree, id) {
  const path = [];
  for (let node = tree.nodes[id]; node.parent !== null && !node.asks; node = tree.nodes[node.parent]) {
    path.unshift(node.text);
  }
  return path.join("");
}

/** A finish reason in a word or two; some carry the string or token that ended the text. */
function finishOf(node) {
  if (node.finish === null) {
    return "nothing: it was never extended";
  }
  if (typeof node.finish === "string") {
    return node.finish.replaceAll("_", " ");
  }
  const [[reason, by]] = Object.entries(node.finish);
  return `${reason.replaceAll("_", " ")} ${JSON.stringify(by)}`;
}

/** What a judge or grader says of the sample that ends here: `[word, class]`, or null. */
function verdictOf(sample) {
  if (sample === undefined) {
    return null;
  }
  if (sample.judged) {
    return [sample.judged.verdict, sample.judged.verdict === "AC" ? "right" : "wrong"];
  }
  return typeof sample.correct === "boolean" ? rightOrWrong(sample.correct) : null;
}

function rightOrWrong(correct) {
  return correct ? ["right", "right"] : ["wrong", "wrong"];
}

/**
 * Text with what cannot be seen, or would turn the direction of what follows, as its number; line ends and tabs stay.
 */
function visible(text) {
  const unseen = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
  return text.replace(unseen, (c) => `⟨${c.codePointAt(0).toString(16)}⟩`);
}

const counts = new Intl.NumberFormat("en");

function count(n) {
  return counts.format(n);
}

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1000 && unit < units.length - 1) {
    n /= 1024;
    unit++;
  }
  return `${unit === 0 ? n : n.toPrecision(3)} ${units[unit]}`;
}

/** Tokens, and as bytes of keys and values where those are known. */
function tokensAndBytes(tokens, each) {
  return each === null ? `${count(tokens)} tokens` : `${count(tokens)} tokens, ${bytes(tokens * each)}`;
}

/** An element with a class and a text. Texts are only ever set as text. */
function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) {
    made.className = className;
  }
  if (text !== undefined) {
    made.textContent = text;
  }
  return made;
}
