"use strict";
// The tree as an indented list, a row a node. Only rows in sight are elements, so that ten thousand nodes scroll like
// ten.

class Outline {
  static rowHeight = 26;
  static spare = 12;
  /** Browsers know no element higher than some 16 million pixels. */
  static mostRows = 600_000;
  static mostIndent = 24;

  constructor(list, spacer, onSelect) {
    this.list = list;
    this.spacer = spacer;
    this.onSelect = onSelect;
    this.drawn = new Map();
    this.found = new Set();
    this.showPruned = true;
    list.addEventListener("scroll", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(list);
    list.addEventListener("click", (event) => {
      const row = event.target.closest(".row");
      if (row === null) {
        return;
      }
      const id = Number(row.dataset.id);
      if (event.target.closest(".twisty") !== null) {
        this.toggle(id);
      }
      this.select(id);
    });
    list.addEventListener("dblclick", (event) => {
      const row = event.target.closest(".row");
      if (row !== null && event.target.closest(".twisty") === null) {
        this.toggle(Number(row.dataset.id));
      }
    });
  }

  show(tree, selected) {
    this.tree = tree;
    this.selected = selected;
    this.list.scrollTop = 0;
    this.refresh();
    this.select(selected);
  }

  /** What is open has changed. */
  refresh() {
    this.rows = rowsOf(this.tree, this.showPruned).slice(0, Outline.mostRows);
    this.place = new Map(this.rows.map((id, row) => [id, row]));
    this.spacer.style.height = `${this.rows.length * Outline.rowHeight}px`;
    this.redraw();
  }

  redraw() {
    this.drawn.forEach((row) => row.remove());
    this.drawn.clear();
    this.draw();
  }

  draw() {
    if (this.tree === undefined) {
      return;
    }
    const { rowHeight, spare } = Outline;
    const first = Math.max(0, Math.floor(this.list.scrollTop / rowHeight) - spare);
    const end = Math.min(this.rows.length,
      Math.ceil((this.list.scrollTop + this.list.clientHeight) / rowHeight) + spare);
    for (const [row, drawn] of this.drawn) {
      if (row < first || row >= end) {
        drawn.remove();
        this.drawn.delete(row);
      }
    }
    for (let row = first; row < end; row++) {
      if (!this.drawn.has(row)) {
        const drawn = this.row(this.tree.nodes[this.rows[row]], row);
        this.drawn.set(row, drawn);
        this.spacer.append(drawn);
      }
    }
  }

  row(node, at) {
    const row = element("div", "row");
    row.id = `row-${node.id}`;
    row.dataset.id = node.id;
    row.style.top = `${at * Outline.rowHeight}px`;
    row.setAttribute("role", "treeitem");
    row.setAttribute("aria-level", node.level + 1);
    row.classList.toggle("selected", node.id === this.selected);
    row.setAttribute("aria-selected", node.id === this.selected);
    row.classList.toggle("pruned", node.state === "pruned");
    row.classList.toggle("chosen", node.chosen);
    row.classList.toggle("found", this.found.has(node.id));

    const text = element("span", "text");
    text.style.paddingLeft = `${Math.min(node.indent, Outline.mostIndent) * 18}px`;
    const twisty = element("span", "twisty");
    if (node.children.length > 0) {
      row.setAttribute("aria-expanded", node.open);
      twisty.textContent = node.open ? "▾" : "▸";
    } else {
      twisty.classList.add("leaf");
      twisty.textContent = "·";
    }
    text.append(twisty);
    text.append(element("span", `kind ${node.kind}`, nameOf(node)));
    if (this.tree.item.answer === node.id) {
      text.append(element("span", "badge answer", "answer"));
    }
    if (node.visits !== undefined) {
      text.append(element("span", "badge", `${count(node.visits)} visits`));
    }
    text.append(element("span", "snippet", snippet(node)));
    if (!node.open && node.children.length > 0) {
      text.append(element("span", "badge",
        `${count(node.children.length)} ${node.children.length === 1 ? "child" : "children"}`));
    }
    row.append(text);

    const verdict = element("span", "verdict");
    const said = verdictOf(node.sample);
    if (said !== null) {
      verdict.append(element("span", `badge ${said[1]}`, said[0]));
    } else if (node.state === "pruned") {
      verdict.append(element("span", "badge", "pruned"));
    }
    row.append(verdict);
    row.append(element("span", "score", node.score === null ? "" : node.score.toFixed(3)));
    row.append(element("span", "tokens", count(node.tokens)));
    row.append(element("span", "shared", node.branches > 1 ? `× ${count(node.branches)}` : ""));
    const bar = element("span", "bar");
    const fill = element("span", "fill");
    fill.style.width = `${(100 * node.tokens) / Math.max(this.tree.distinct, 1)}%`;
    fill.classList.toggle("many", node.branches > 1);
    bar.append(fill);
    row.append(bar);
    return row;
  }

  select(id) {
    this.selected = id;
    const at = this.place.get(id);
    if (at !== undefined) {
      const { rowHeight } = Outline;
      const top = at * rowHeight;
      if (top < this.list.scrollTop) {
        this.list.scrollTop = top;
      } else if (top + rowHeight > this.list.scrollTop + this.list.clientHeight) {
        this.list.scrollTop = top + rowHeight - this.list.clientHeight;
      }
    }
    this.draw();
    for (const drawn of this.drawn.values()) {
      const selected = Number(drawn.dataset.id) === id;
      drawn.classList.toggle("selected", selected);
      drawn.setAttribute("aria-selected", selected);
    }
    this.list.setAttribute("aria-activedescendant", `row-${id}`);
    this.onSelect(id);
  }

  /** Opens what is above a node and goes there. */
  goTo(id) {
    reveal(this.tree, id);
    this.refresh();
    const at = this.place.get(id);
    if (at !== undefined) {
      this.list.scrollTop = Math.max(0, at * Outline.rowHeight - this.list.clientHeight / 2);
    }
    this.select(id);
  }

  toggle(id) {
    const node = this.tree.nodes[id];
    if (node.children.length > 0) {
      node.open = !node.open;
      this.refresh();
    }
  }

  foldAll(open) {
    this.tree.nodes.forEach((node) => (node.open = open));
    this.tree.nodes[0].open = true;
    this.refresh();
    this.select(this.place.has(this.selected) ? this.selected : 0);
  }

  /** Obeys a key as file trees do; says whether it knew it. */
  key(event) {
    const at = this.place.get(this.selected) ?? 0;
    const node = this.tree.nodes[this.selected];
    const page = Math.max(1, Math.floor(this.list.clientHeight / Outline.rowHeight) - 1);
    const step = {
      ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity
    }[event.key];
    if (step !== undefined) {
      this.select(this.rows[Math.max(0, Math.min(this.rows.length - 1, at + step))]);
    } else if (event.key === "ArrowRight" && event.shiftKey) {
      this.foldAll(true);
    } else if (event.key === "ArrowLeft" && event.shiftKey) {
      this.foldAll(false);
    } else if (event.key === "ArrowRight" && node.children.length > 0) {
      if (node.open) {
        this.select(this.rows[Math.min(this.rows.length - 1, at + 1)]);
      } else {
        this.toggle(node.id);
      }
    } else if (event.key === "ArrowLeft") {
      if (node.open && node.children.length > 0) {
        this.toggle(node.id);
      } else if (node.parent !== null) {
        this.select(node.parent);
      }
    } else if (event.key === "Enter" || event.key === " ") {
      this.toggle(node.id);
    } else {
      return false;
    }
    return true;
  }
}

/** What a row calls its node: its place among its parent's children, and for an only child an arrow from above. */
function nameOf(node) {
  if (node.parent === null) {
    return "prompt";
  }
  const name = node.kind === "sample" ? String(node.ordinal) : `${node.kind} ${node.ordinal}`;
  return node.joined ? `↳ ${name}` : name;
}

/** The beginning of a node's text on one line, from where it parts from its siblings'. */
function snippet(node) {
  const skipped = node.parts_at ?? 0;
  const own = skipped === 0 ? node.text : Array.from(node.text.slice(0, 2 * skipped + 400)).slice(skipped).join("");
  const start = own.slice(0, 400).trim().replace(/\s+/g, " ").slice(0, 240);
  const text = skipped === 0 ? start : `… ${start}`;
  if (text === "") {
    return node.parent === null ? "(the prompt's text is not recorded)" : node.tokens === 0 ? "(nothing)" : "(no text)";
  }
  return visible(text);
}
