// Types an end tag over the one that the editor wrote, where it would otherwise be written twice.
import { EditorView, syntaxTree, xmlLanguage } from "./codemirror.min.js";

/** Moves the cursor over a character of an end tag, or over the ">" of a tag, that is there already. */
export const overtype = EditorView.inputHandler.of((view, from, to, typed) => {
  if (from !== to || view.state.selection.ranges.length > 1) return false;
  const text = view.state.doc.toString();
  const edit = typed === "/" && text[from - 1] === "<" ? overEndTag(text, from - 1) : overCharacter(view.state, text, from, typed);
  if (edit) view.dispatch({ ...edit, userEvent: "input.type", scrollIntoView: true });
  return Boolean(edit);
});

function overCharacter(state, text, at, typed) {
  if (text[at] !== typed) return null;
  const tag = enclosing(syntaxTree(state).resolveInner(at, 1), ["CloseTag", "OpenTag", "SelfClosingTag"]);
  if (!tag) return null;
  const isEndTag = tag.name === "CloseTag" && at >= tag.from + 2;
  return isEndTag || (typed === ">" && at === tag.to - 1) ? { selection: { anchor: at + 1 } } : null;
}

/** Return the edit for a "/" behind the "<" at a place: the "<" goes if only spaces are between it and the end tag. */
function overEndTag(text, at) {
  const rest = text.slice(0, at) + text.slice(at + 1);
  const spaces = /^\s*(?=<\/)/.exec(rest.slice(at))?.[0];
  if (spaces === undefined) return null;
  const tree = xmlLanguage.parser.parse(rest);
  const close = enclosing(tree.resolveInner(at + spaces.length, 1), ["CloseTag"]);
  if (close?.from !== at + spaces.length || !isInnermost(tree, at, close.parent)) return null;
  const line = /\n[ \t]*$/.exec(text.slice(0, at))?.[0];
  if (line && spaces.includes("\n")) { // the end tag keeps its place, and the line of the "<" goes
    const from = at - line.length;
    return { changes: { from, to: at + 1 }, selection: { anchor: from + spaces.length + 2 } };
  }
  return { changes: { from: at, to: at + 1 + spaces.length }, selection: { anchor: at + 2 } };
}

/** Return whether an element is the innermost one that is open at a place. */
function isInnermost(tree, at, element) {
  let node = tree.resolveInner(at, -1);
  while (node && (node.name !== "Element" || (node.to <= at && isComplete(node)))) node = node.parent;
  return node?.from === element.from;
}

function isComplete(element) {
  return Boolean(element.getChild("CloseTag") ?? element.getChild("SelfClosingTag"));
}

function enclosing(node, names) {
  while (node && !names.includes(node.name)) node = node.parent;
  return node;
}
