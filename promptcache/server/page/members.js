// Members of collections: completion of their names in the prompt, and a field that adds them.
import { element } from "./dom.js";
import { encoded, isElement, moduleTags, readPrompt, references } from "./prompt.js";
import { send } from "./requests.js";

const MAX_OFFERED = 100;
const DELAY_MS = 150;

/** Return the first names of a collection's members that begin with a prefix. */
async function memberNames(schema, path, prefix, signal) {
  const place = path.split("/").map(encodeURIComponent).join("/");
  const query = new URLSearchParams({ prefix, limit: MAX_OFFERED });
  try {
    const response = await send(`v1/schemas/${encodeURIComponent(schema)}/members/${place}?${query}`, { signal });
    return (await response.json()).data.map(({ id }) => id.slice(path.length + 1));
  } catch {
    return []; // the server does not have this schema, or this collection of it
  }
}

/** Return a source of completions for the prompts of a schema: names of members, inside of their collection and in `use`. */
export function memberSource({ id, modules }) {
  const collections = new Set(modules.filter((each) => each.collection).map(({ path }) => path));
  return async (context) => {
    const place = collections.size ? placeInUse(context) ?? placeOfElement(context) : null;
    if (!place || !collections.has(place.path)) return null;
    const { from, path, prefix, written } = place;
    if (!context.explicit) await new Promise((resolve) => setTimeout(resolve, DELAY_MS));
    if (context.isOver()) return null;
    const names = await memberNames(id, path, prefix);
    return { from, prefix, options: names.map((label) => ({ label, insert: written(label), detail: "member" })) };
  };
}

/** Return where the name of an element is written: its place, the path around it, its prefix, and what is written for a name. */
function placeOfElement({ text, at, explicit }) {
  const [typed] = /<[^\s<>/"'&=]*$/.exec(text.slice(0, at)) ?? [null];
  if (typed === null && !explicit) return null;
  const from = at - (typed ?? "").length;
  const isClosed = text.startsWith("/>", at);
  const written = (name) => (isClosed && isElement(name) ? moduleTags(name)[0].slice(0, -2) : moduleTags(name)[0]);
  return { from, path: pathAround(text, from, at), prefix: (typed ?? "").slice(1), written };
}

/** Return where the last name of a path in `use` is written, like `placeOfElement`. */
function placeInUse({ text, at }) {
  const use = /<use\s(?:[^<>]*\s)?module\s*=\s*["'][^"'<>&]*$/.exec(text.slice(0, at));
  if (!use) return null;
  const steps = /[^"']*$/.exec(use[0])[0].split("/");
  const prefix = steps.pop();
  const path = steps[0] === "" ? steps.slice(1) : [pathAround(text, use.index, at), ...steps].filter(Boolean);
  return { from: at - prefix.length, path: path.join("/"), prefix, written: encoded };
}

/** Return the path of the innermost module around a place; what is written between it and the cursor is ignored. */
function pathAround(text, place, cursor) {
  const rest = text.slice(0, place) + text.slice(cursor);
  const root = readPrompt(rest);
  const isAround = ({ open, close, to }) => open.to <= place && place <= (close?.from ?? to) && !open.isEmpty;
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
    const names = await memberNames(schema, path, input.value.trim(), signal);
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
