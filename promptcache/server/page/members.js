// Members of collections: completion of their names in the prompt, and a field that adds them.
import { element } from "./dom.js";
import { encoded, isElement, moduleTags, readPrompt, references } from "./prompt.js";
import { send } from "./requests.js";

const MAX_OFFERED = 100;
const DELAY_MS = 150;

/** Return the first names of a collection's members that begin with a prefix, and whether there are more. */
async function memberNames(schema, path, prefix, signal) {
  const place = path.split("/").map(encodeURIComponent).join("/");
  const query = new URLSearchParams({ prefix, limit: MAX_OFFERED });
  try {
    const response = await send(`v1/schemas/${encodeURIComponent(schema)}/members/${place}?${query}`, { signal });
    const { data, has_more: more } = await response.json();
    return { names: data.map(({ id }) => id.slice(path.length + 1)), more };
  } catch {
    return { names: [], more: false }; // the server does not have this schema, or this collection of it
  }
}

/** Return a source of completions for the prompts of a schema: names of members, inside of their collection and in `use`. */
export function memberSource({ id, modules }) {
  const collections = new Set(modules.filter((each) => each.collection).map(({ path }) => path));
  return async (context) => {
    const place = collections.size ? placeInUse(context) ?? placeOfElement(context) : null;
    if (!place || !collections.has(place.path)) return null;
    const { from, path, prefix, apply } = place;
    const { names, more } = await memberNames(id, path, prefix);
    if (context.aborted) return null;
    return { from, options: names.map((label) => ({ label, apply: apply(label) })), validFor: more ? undefined : /^[^\s<>/"'&=]*$/ };
  };
}

/** Return where the name of an element is written: its place, the path around it, its prefix, and how a name is inserted. */
function placeOfElement(context) {
  const typed = context.matchBefore(/<[^\s<>/"'&=]*/);
  if (!typed && !context.explicit) return null;
  const from = typed ? typed.from : context.pos;
  const isClosed = context.state.sliceDoc(context.pos).startsWith("/>");
  return {
    from: typed ? from + 1 : from, path: pathAround(context, from), prefix: typed ? typed.text.slice(1) : "",
    apply: (name) => (view, _, start, to) => insert(view, name, from, to, isClosed && isElement(name)),
  };
}

/** Return where the last name of a path in `use` is written, like `placeOfElement`. */
function placeInUse(context) {
  const use = context.matchBefore(/<use\s(?:[^<>]*\s)?module\s*=\s*["'][^"'<>&]*/);
  if (!use) return null;
  const [written] = /[^"']*$/.exec(use.text);
  const steps = written.split("/");
  const prefix = steps.pop();
  const path = steps[0] === "" ? steps.slice(1) : [pathAround(context, use.from), ...steps].filter(Boolean);
  return { from: context.pos - prefix.length, path: path.join("/"), prefix, apply: encoded };
}

function insert(view, name, from, to, isClosed) {
  const [empty] = moduleTags(name);
  const written = isClosed ? empty.slice(0, -2) : empty;
  view.dispatch({ changes: { from, to, insert: written }, selection: { anchor: from + written.length }, userEvent: "input.complete" });
}

/** Return the path of the innermost module around a place in a prompt; what is written between it and the cursor is ignored. */
function pathAround({ state, pos }, place) {
  const text = state.sliceDoc(0, place) + state.sliceDoc(pos);
  const root = readPrompt(text);
  const isAround = ({ open, close, to }) => open.to <= place && place <= (close?.from ?? to) && text.slice(open.to - 2, open.to) !== "/>";
  return root ? [...references(root)].filter(isAround).at(-1)?.path : undefined;
}

/** Return how many members a prompt has of a collection, in words. */
export function limits({ min, max }) {
  if (max === null) return min ? `${min} or more members` : "any members";
  return min === max ? `${min} members` : `${min ? `${min} to` : "up to"} ${max} members`;
}

let numFields = 0;

/** Return a field for the name of a member with completion; `add` is called with the name. */
export function memberField(schema, path, add) {
  const list = element("datalist", { id: `members-${numFields += 1}` });
  const input = element("input", { type: "text", placeholder: "name of a member", autocomplete: "off" });
  input.setAttribute("list", list.id);
  input.setAttribute("aria-label", `Member of ${path}`);
  const button = element("button", { type: "button", textContent: "Add" });
  button.setAttribute("aria-label", `Add a member of ${path}`);
  let asking = null;
  let timer = null;
  const offer = async () => {
    asking?.abort();
    asking = new AbortController();
    const { signal } = asking;
    const { names } = await memberNames(schema, path, input.value.trim(), signal);
    if (!signal.aborted) list.replaceChildren(...names.map((value) => element("option", { value })));
  };
  const take = () => {
    const name = input.value.trim();
    input.value = "";
    if (name) add(name);
  };
  input.onfocus = offer;
  input.oninput = () => {
    clearTimeout(timer);
    timer = setTimeout(offer, DELAY_MS);
  };
  input.onkeydown = (event) => {
    if (event.key === "Enter" && !event.ctrlKey && !event.metaKey) take();
  };
  button.onclick = take;
  return element("span", { className: "add" }, input, list, button);
}

/** Show the members that a prompt has; `remove` is called with the path of one. */
export function showMembers(list, paths, remove) {
  const hadFocus = list.contains(document.activeElement);
  list.replaceChildren(...paths.map((path) => {
    const name = path.split("/").at(-1);
    const button = element("button", { type: "button", textContent: "×", onclick: () => remove(path) });
    button.setAttribute("aria-label", `Remove ${name}`);
    return element("li", {}, name, button);
  }));
  if (hadFocus) (list.querySelector("button") ?? list.parentElement.querySelector("input")).focus();
}
