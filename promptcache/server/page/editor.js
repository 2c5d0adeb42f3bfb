// Editors of XML documents, with completions and marks at diagnostics.
import {
  autocompletion, closeBrackets, closeBracketsKeymap, Compartment, completeFromSchema, completionKeymap, defaultKeymap,
  drawSelection, EditorState, EditorView, HighlightStyle, history, historyKeymap, keymap, lineNumbers, lintKeymap,
  setDiagnostics, syntaxHighlighting, tags, xml,
} from "./codemirror.min.js";
import { $, element } from "./dom.js";
import { overtype } from "./overtype.js";

const { nonce } = document.querySelector("script[nonce]");
const colours = HighlightStyle.define([
  { tag: [tags.tagName, tags.angleBracket], color: "var(--tag)" },
  { tag: tags.attributeName, color: "var(--attribute)" },
  { tag: [tags.attributeValue, tags.character], color: "var(--value)" },
  { tag: tags.comment, color: "var(--faded)" },
  { tag: tags.invalid, color: "var(--error)" },
]);
const look = EditorView.theme({
  "&": { backgroundColor: "var(--paper)", color: "var(--ink)" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.5" },
  ".cm-content": { caretColor: "var(--ink)", padding: "6px 0" },
  ".cm-cursor": { borderLeftColor: "var(--ink)" },
  ".cm-gutters": { backgroundColor: "var(--raised)", color: "var(--faded)", borderRight: "1px solid var(--line)" },
  ".cm-selectionBackground, &.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground": {
    backgroundColor: "var(--selection)",
  },
  ".cm-tooltip": { backgroundColor: "var(--raised)", color: "var(--ink)", border: "1px solid var(--edge)" },
  ".cm-tooltip-autocomplete > ul > li[aria-selected]": { backgroundColor: "var(--accent)", color: "var(--on-accent)" },
  ".cm-diagnostic": { whiteSpace: "pre-wrap", maxWidth: "48ch" },
});

/** Make an editor. `changed` is called after each change, `run` on Ctrl-Enter. */
export function editor(parent, label, { changed, run }) {
  const complete = new Compartment();
  const view = new EditorView({
    parent: $(parent),
    state: EditorState.create({
      extensions: [
        EditorView.cspNonce.of(nonce),
        EditorView.contentAttributes.of({ "aria-label": label }),
        EditorView.lineWrapping,
        lineNumbers(), history(), drawSelection(), overtype, closeBrackets(), complete.of(autocompletion({ icons: false })), xml(),
        syntaxHighlighting(colours), look,
        keymap.of([
          { key: "Mod-Enter", run: () => (run(), true) },
          { key: "Ctrl-Enter", run: () => (run(), true) },
          ...closeBracketsKeymap, ...completionKeymap, ...defaultKeymap, ...historyKeymap, ...lintKeymap,
        ]),
        EditorView.updateListener.of((update) => update.docChanged && changed()),
      ],
    }),
  });
  return {
    view,
    get text() { return view.state.doc.toString(); },
    /** Replace the text by another one; what is equal at both ends stays, and so does the cursor there. */
    set text(wanted) {
      const old = this.text;
      let from = 0;
      while (from < old.length && from < wanted.length && old[from] === wanted[from]) from++;
      let end = 0;
      while (end < Math.min(old.length, wanted.length) - from && old.at(-1 - end) === wanted.at(-1 - end)) end++;
      view.dispatch({ changes: { from, to: old.length - end, insert: wanted.slice(from, wanted.length - end) } });
    },
    /** Complete elements and attributes, and what other sources offer. */
    completeWith(elements, ...sources) {
      const ofElements = completeFromSchema(elements, []);
      const outsideEndTags = (context) => (context.matchBefore(/<\/[^<>]*/) ? null : ofElements(context)); // the editor writes these
      view.dispatch({ effects: complete.reconfigure(autocompletion({ icons: false, override: [outsideEndTags, ...sources] })) });
    },
  };
}

/** Return the index of a place that the server counts in lines and code points. */
function offset(view, line, column) {
  if (line < 1) return 0;
  const { doc } = view.state;
  if (line > doc.lines) return doc.length;
  const { from, text } = doc.line(line);
  return from + [...text].slice(0, column - 1).join("").length;
}

/** Mark diagnostics in an editor, and list them. */
export function showMarks({ view }, list, diagnostics) {
  const marks = diagnostics.map((each) => {
    const from = offset(view, each.line, each.column);
    const to = Math.max(from, offset(view, each.stop_line, each.stop_column));
    const fix = each.help ? `\nFix: ${each.help}` : "";
    return { from, to, severity: each.severity, source: each.code, message: each.message + fix };
  });
  view.dispatch(setDiagnostics(view.state, marks));
  $(list).replaceChildren(...diagnostics.map((each, index) => {
    const goThere = () => {
      view.dispatch({ selection: { anchor: Math.min(marks[index].from, view.state.doc.length) }, scrollIntoView: true });
      view.focus();
    };
    const fix = each.help ? ` Fix: ${sentence(each.help)}` : "";
    const place = each.line ? ` line ${each.line}, column ${each.column}` : "";
    const button = element("button", { type: "button", onclick: goThere },
      element("b", {}, each.severity), `${place}: ${sentence(each.message)}${fix} `, element("span", { className: "faded" }, each.code));
    return element("li", { className: each.severity }, button);
  }));
}

function sentence(words) {
  return /[.?!]$/.test(words) ? words : `${words}.`;
}
