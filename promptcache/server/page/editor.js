// Editors of XML documents: a text area under a copy of its text, the paper, that has colours and underlines.
import { completions } from "./completions.js";
import { $, element } from "./dom.js";
import { markup } from "./xml.js";

/** Make an editor. `changed` is called after each change. */
export function editor(parent, label, changed) {
  const paper = element("div", { className: "paper" });
  const area = element("textarea", { id: `${parent}-text`, spellcheck: false, autocomplete: "off", autocapitalize: "off" });
  area.setAttribute("aria-label", label);
  paper.setAttribute("aria-hidden", true);
  $(parent).append(element("div", { className: "sheet" }, area, paper));
  const list = completions(area, (place, { insert, back = 0 }) => replace(place.from, area.selectionEnd, insert, back));
  let text = "";
  let marks = [];
  let painted = []; // the lines of the paper

  /** Replace a part of the text, which the user can undo while the editor has the focus. */
  function replace(from, to, insert, back = 0) {
    if (document.activeElement === area) {
      area.setSelectionRange(from, to);
      document.execCommand(insert ? "insertText" : "delete", false, insert); // the only way that keeps the steps of undoing
      if (back) area.setSelectionRange(area.selectionEnd - back, area.selectionEnd - back);
    } else {
      area.setRangeText(insert, from, to, "preserve");
      update();
    }
  }

  function update() {
    const { from, to, end } = difference(text, area.value);
    const moved = (place) => (place < from ? place : place >= to ? place + end - to : Math.min(place, end));
    marks = marks.map((each) => ({ ...each, from: moved(each.from), to: moved(each.to), place: moved(each.place) }));
    text = area.value;
    paint();
    changed();
  }

  /** Paint the lines that have changed. */
  function paint() {
    const wanted = lines(text, [...colours(text), ...marks.map((each) => ({ ...each, kind: `mark ${each.severity}` }))]);
    const keys = wanted.map((each) => JSON.stringify(each));
    const { from, to, end } = difference(painted, keys);
    const made = wanted.slice(from, end).map((line) => element("div", { className: "line" },
      ...line.map(([kind, piece]) => (kind ? element("span", { className: kind }, piece) : piece))));
    [...paper.children].slice(from, to).forEach((each) => each.remove());
    made.forEach((each, index) => paper.insertBefore(each, paper.children[from + index] ?? null));
    painted = keys;
  }

  /** Return where a place of the text is on the screen. */
  function rectangle(place) {
    const before = text.slice(0, place);
    const line = paper.children[before.split("\n").length - 1];
    let left = place - before.lastIndexOf("\n") - 1;
    const walker = document.createTreeWalker(line, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      if (left <= node.length) {
        const range = document.createRange();
        range.setStart(node, left);
        return range.getBoundingClientRect();
      }
      left -= node.length;
    }
    return line.getBoundingClientRect();
  }

  /** Scroll to the cursor: the browser has looked for it before the text area got its new height. */
  function reveal() {
    const box = $(parent).getBoundingClientRect();
    const { top, bottom } = rectangle(area.selectionEnd);
    if (bottom > box.bottom - 6) $(parent).scrollTop += bottom - box.bottom + 6;
    else if (top < box.top + 6) $(parent).scrollTop += top - box.top - 6;
  }

  const suggest = (explicit) => list.open(explicit, () => rectangle(area.selectionStart));
  area.oninput = ({ isComposing, inputType }) => {
    update();
    reveal();
    if (!isComposing && /^(insertText|insertCompositionText|deleteContentBackward)$/.test(inputType)) suggest(false);
    else list.close();
  };
  area.onblur = area.onpointerdown = list.close;
  $(parent).onscroll = list.close;
  area.onkeydown = (event) => {
    const { key, ctrlKey, metaKey, altKey, isComposing } = event;
    const isPlain = !ctrlKey && !metaKey && !altKey && !isComposing;
    if (isComposing) return;
    if (list.press(event)) event.preventDefault();
    else if (key === " " && ctrlKey) {
      event.preventDefault();
      suggest(true);
    } else if (key === "Enter" && isPlain) {
      event.preventDefault();
      const [indent] = /[ \t]*$/.exec(/(?:^|\n)([ \t]*)[^\n]*$/.exec(text.slice(0, area.selectionStart))[1]);
      replace(area.selectionStart, area.selectionEnd, `\n${indent}`);
    } else if (/^(Arrow|Home|End|Page)/.test(key)) list.close();
  };
  paint();

  return {
    completeWith: list.completeWith,
    get text() { return text; },
    /** Replace the text by another one; what is equal at both ends stays, and so does the cursor there. */
    set text(wanted) {
      const { from, to, end } = difference(text, wanted);
      replace(from, to, wanted.slice(from, end));
    },
    /** Underline diagnostics, and return a function that goes to one of them by its index. */
    mark(diagnostics) {
      marks = diagnostics.map(({ severity, ...each }) => {
        const from = offset(text, each.line, each.column);
        const to = Math.max(from, offset(text, each.stop_line, each.stop_column));
        const isPoint = from === to;
        const isAtEnd = isPoint && (from === text.length || text[from] === "\n");
        return { severity, place: from, from: isAtEnd ? Math.max(0, from - 1) : from, to: isPoint && !isAtEnd ? to + 1 : to };
      });
      paint();
      return (index) => {
        const { place } = marks[index];
        area.focus({ preventScroll: true });
        area.setSelectionRange(place, place);
        paper.children[text.slice(0, place).split("\n").length - 1].scrollIntoView({ block: "nearest" });
      };
    },
  };
}

/** Return what differs between two texts or lists: from `from` to `to` in the old one, and to `end` in the new one. */
function difference(old, wanted) {
  let from = 0;
  while (from < old.length && from < wanted.length && old[from] === wanted[from]) from++;
  let same = 0;
  while (same < Math.min(old.length, wanted.length) - from && old.at(-1 - same) === wanted.at(-1 - same)) same++;
  return { from, to: old.length - same, end: wanted.length - same };
}

/** Yield the coloured parts of a document. */
function* colours(text) {
  for (const { kind, name, isEnd, isWhole, attributes, from, to } of markup(text)) {
    if (kind !== "tag") yield { kind, from, to };
    else if (name) {
      const inside = from + (isEnd ? 2 : 1) + name.length;
      yield { kind: "name", from, to: inside };
      for (const each of attributes) {
        yield { kind: "attribute", from: each.from, to: each.from + each.name.length };
        if (each.value) yield { kind: "value", from: each.value.from - 1, to: each.to };
      }
      if (isWhole) yield { kind: "name", from: Math.max(inside, text[to - 2] === "/" ? to - 2 : to - 1), to };
    }
  }
}

/** Return the lines of a text, each as a list of [kinds, piece]. */
function lines(text, spans) {
  const changes = new Map([[0, []], [text.length, []]]);
  const change = (at, ...found) => (changes.has(at) ? changes.get(at).push(...found) : changes.set(at, found));
  for (const each of spans) if (each.from < each.to) [each.from, each.to].forEach((at) => change(at, each));
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) [at, at + 1].forEach((each) => change(each));
  const places = [...changes.keys()].sort((one, other) => one - other);
  const made = [[]];
  const kinds = new Set();
  places.forEach((at, index) => {
    for (const each of changes.get(at)) kinds.delete(each) || kinds.add(each);
    const piece = text.slice(at, places[index + 1] ?? at);
    if (piece === "\n") made.push([]);
    else if (piece) made.at(-1).push([[...kinds].map((each) => each.kind).join(" "), piece]);
  });
  return made;
}

/** Return the index of a place that the server counts in lines and code points. */
function offset(text, line, column) {
  if (line < 1) return 0;
  let start = 0;
  for (let number = 1; number < line; number++) {
    const end = text.indexOf("\n", start);
    if (end < 0) return text.length;
    start = end + 1;
  }
  return start + [...text.slice(start).split("\n", 1)[0]].slice(0, column - 1).join("").length;
}

/** Underline diagnostics in an editor, and list them. */
export function showMarks(edited, list, diagnostics) {
  const goTo = edited.mark(diagnostics);
  $(list).replaceChildren(...diagnostics.map((each, index) => {
    const fix = each.help ? ` Fix: ${sentence(each.help)}` : "";
    const place = each.line ? ` line ${each.line}, column ${each.column}` : "";
    const button = element("button", { type: "button", onclick: () => goTo(index) },
      element("b", {}, each.severity), `${place}: ${sentence(each.message)}${fix} `, element("span", { className: "faded" }, each.code));
    return element("li", { className: each.severity }, button);
  }));
}

function sentence(words) {
  return /[.?!]$/.test(words) ? words : `${words}.`;
}
