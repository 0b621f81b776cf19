"use strict";
// The page: the list of items, search and keys; hands the item on show to the outline and the node on show to the
// detail pane.

const part = (id) => document.getElementById(id);
const list = part("items");
const detail = part("detail");
const search = part("search");
const outline = new Outline(part("outline"), part("spacer"), (id) => showDetail(detail, outline.tree, id));
let shown = 0;
let found = [];

function showRun() {
  part("run-name").textContent = run.run;
  run.facts.forEach(([name, value]) => part("run-facts").append(element("dt", "", name), element("dd", "", value)));
  run.items.forEach((item, number) => {
    const row = element("li");
    row.id = `choice-${number}`;
    row.dataset.number = number;
    row.setAttribute("role", "option");
    const mark = typeof item.correct === "boolean" ? rightOrWrong(item.correct)[1] : "open";
    row.append(element("span", `mark ${mark}`, { right: "✓", wrong: "✗", open: "·" }[mark]));
    row.append(element("span", "name", visible(String(item.id))));
    row.append(element("span", "prediction",
      typeof item.prediction === "string" ? visible(item.prediction.slice(0, 60)) : ""));
    row.append(element("span", "hits"));
    list.append(row);
  });
}

/** Scrolls the list of items alone: a page around this one stays where it is. */
function bringIntoSight(row) {
  const [inner, outer] = [row.getBoundingClientRect(), list.getBoundingClientRect()];
  if (inner.top < outer.top) {
    list.scrollTop -= outer.top - inner.top;
  } else if (inner.bottom > outer.bottom) {
    list.scrollTop += inner.bottom - outer.bottom;
  }
}

function showItem(number) {
  shown = number;
  for (const row of list.children) {
    const selected = Number(row.dataset.number) === number;
    row.classList.toggle("selected", selected);
    row.setAttribute("aria-selected", selected);
  }
  bringIntoSight(list.children[number]);
  list.setAttribute("aria-activedescendant", `choice-${number}`);
  const tree = treeOf(number);
  const { item, nodes, distinct } = tree;
  part("item-name").textContent = visible(String(item.id));
  const verdict = part("item-verdict");
  verdict.replaceChildren();
  if (typeof item.correct === "boolean") {
    const [word, kind] = rightOrWrong(item.correct);
    verdict.append(element("span", `badge ${kind}`, word));
  }
  const unshared = run.items[number].unshared;
  const facts = [`${count(nodes.length)} nodes`, `${tokensAndBytes(distinct, item.kv_bytes_per_token)} distinct`,
    `${count(unshared)} without sharing`];
  if (typeof item.prediction === "string") {
    facts.unshift(`predicts ${visible(item.prediction.slice(0, 80))}`);
  }
  const reference = item.reference;
  if (typeof reference === "string" || typeof reference === "number") {
    facts.splice(1, 0, `reference ${visible(String(reference).slice(0, 80))}`);
  }
  if (Array.isArray(item.tied)) {
    facts.splice(1, 0, `first of ${count(item.tied.length)} that tie`);
  }
  part("item-facts").textContent = facts.join(" · ");
  part("notes").replaceChildren(...item.notes.map((note) => element("p", "", note)));
  part("to-answer").disabled = item.answer === null;
  look();
  outline.show(tree, 0);
}

/** Searches the tree on show. */
function look() {
  const words = search.value;
  found = words === "" ? [] : find(treeOf(shown), words);
  outline.found = new Set(found);
  sayFound();
}

/** How many match, and which of them is on show. */
function sayFound() {
  const at = found.indexOf(outline.selected);
  const all = at < 0 ? `${count(found.length)} found` : `${count(at + 1)} of ${count(found.length)}`;
  part("found").textContent = search.value === "" ? "" : all;
}

/** The number of the other items' matches, beside them in the list, some at a time so that typing is not held up. */
function lookElsewhere(number) {
  const words = search.value;
  const until = performance.now() + 12;
  while (number < run.items.length && performance.now() < until) {
    const hits = words === "" ? 0 : find(treeOf(number), words).length;
    const row = list.children[number];
    row.querySelector(".hits").textContent = hits > 0 ? count(hits) : "";
    row.classList.toggle("without", words !== "" && hits === 0);
    number++;
  }
  if (number < run.items.length) {
    lookElsewhere.later = setTimeout(() => lookElsewhere(number));
  }
}

/** The next match behind the node on show, or the one before it; around the end. */
function step(forward) {
  if (found.length === 0) {
    return;
  }
  const at = found.indexOf(outline.selected);
  const next = at < 0 ? (forward ? 0 : found.length - 1) : (at + (forward ? 1 : -1) + found.length) % found.length;
  outline.goTo(found[next]);
  sayFound();
}

function toAnswer() {
  const { answer } = outline.tree.item;
  if (answer !== null) {
    outline.goTo(answer);
  }
}

search.addEventListener("input", () => {
  look();
  outline.redraw();
  if (!found.includes(outline.selected)) {
    step(true);
  }
  clearTimeout(lookElsewhere.later);
  lookElsewhere.later = setTimeout(() => lookElsewhere(0), 150);
});
search.addEventListener("keydown", (event) => {
  if (event.key === "Enter") {
    step(!event.shiftKey);
  } else if (event.key === "Escape") {
    search.value = "";
    search.dispatchEvent(new Event("input"));
    part("outline").focus();
  } else if (event.key === "ArrowDown") {
    part("outline").focus();
  } else {
    return;
  }
  event.preventDefault();
});
list.addEventListener("click", (event) => {
  const row = event.target.closest("li");
  if (row !== null) {
    showItem(Number(row.dataset.number));
  }
});
list.addEventListener("keydown", (event) => {
  const to = shown + ({ ArrowDown: 1, ArrowUp: -1 }[event.key] ?? 0);
  if (to !== shown && run.items[to] !== undefined) {
    showItem(to);
    event.preventDefault();
  }
});
part("outline").addEventListener("keydown", (event) => {
  if (!event.ctrlKey && !event.metaKey && !event.altKey && outline.key(event)) {
    event.preventDefault();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.target === search || event.ctrlKey || event.metaKey || event.altKey) {
    return;
  }
  const to = shown + ({ "]": 1, "[": -1 }[event.key] ?? 0);
  if (event.key === "/") {
    search.focus();
    search.select();
  } else if (event.key === "a") {
    toAnswer();
  } else if (event.key === "n" || event.key === "N") {
    step(event.key === "n");
  } else if (to !== shown && run.items[to] !== undefined) {
    showItem(to);
  } else {
    return;
  }
  event.preventDefault();
});
part("unfold").addEventListener("click", () => outline.foldAll(true));
part("fold").addEventListener("click", () => outline.foldAll(false));
part("to-answer").addEventListener("click", toAnswer);
part("show-pruned").addEventListener("change", (event) => {
  outline.showPruned = event.target.checked;
  outline.refresh();
});

showRun();
if (run.items.length > 0) {
  showItem(0);
  // In a frame, as in a notebook, the keys belong to the page around it until somebody clicks here.
  if (window.parent === window) {
    part("outline").focus();
  }
} else {
  part("notes").append(element("p", "", "No item has finished and no sample is on disk."));
}
