// Completion: the elements and attributes of schemas, and those of the prompts of one schema.
import { encoded, isElement } from "./prompt.js";
import { markup, parse } from "./xml.js";

const TURNS = ["system", "user", "assistant"];
let elements = null;

/** Return the elements of schemas: what each can contain, and its attributes with their values. They are asked for once. */
async function elementsOfSchemas() {
  return elements ??= await (await fetch(new URL("elements.json", import.meta.url))).json();
}

/** Return a source of completions for schemas. */
export function schemaSource() {
  return source(async () => new Map(Object.entries(await elementsOfSchemas())), ["schema"]);
}

/** Return a source of completions for the prompts of a schema. Modules of one name at several places share theirs. */
export function promptSource({ id, modules, unions }) {
  const known = new Map();
  const details = new Map(TURNS.map((each) => [each, "turn"]));
  for (const { path, doc, required, parameters } of modules) {
    const name = path ? path.split("/").at(-1) : "prompt";
    const inside = modules.filter((each) => each.path && each.path.split("/").slice(0, -1).join("/") === path);
    const union = unions.find((each) => each.members.includes(path));
    const found = known.get(name) ?? { children: [], attributes: [] };
    found.children.push(...inside.map((each) => each.path.split("/").at(-1)).filter(isElement));
    found.attributes.push(...parameters.filter((each) => isElement(each.name)).map(attribute));
    if (!path) {
      found.children.push(...TURNS, "use", "answer", "text");
      found.attributes.push({ name: "schema", values: [id] }, { name: "version", values: [] });
    }
    if (path) details.set(name, doc ?? (union ? `one of ${union.name ?? "several"}` : required ? "required" : "module"));
    if (isElement(name)) known.set(name, found);
  }
  for (const each of TURNS) known.set(each, { children: ["text"], attributes: [] });
  known.set("use", { children: [], attributes: [{ name: "module", values: modules.map(({ path }) => path).filter(Boolean) }] });
  details.set("answer", "format of the answer");
  const withAnswer = ({ answer }) => known.set("answer", { children: [], attributes: answer.attributes.filter(({ name }) => name !== "src") });
  return source(async () => withAnswer(await elementsOfSchemas()), ["prompt"], details);
}

function attribute({ name, choices, required, length, default: usual }) {
  const facts = [required ? "required" : "", `at most ${length} tokens`, usual === null ? "" : `by default “${usual}”`];
  return { name, values: choices, detail: facts.filter(Boolean).join(", ") };
}

/** Return a source of completions for documents of elements that `load` returns; `top` are those outside of all others. */
function source(load, top, details = new Map()) {
  return async ({ text, at, explicit }) => {
    const known = await load();
    const before = text.slice(0, at);
    const tag = [...markup(before)].at(-1);
    const isInTag = tag?.kind === "tag" && tag.to === at && !tag.isWhole;
    const { open } = parse(isInTag ? before.slice(0, tag.from) : before);
    const children = open.parent ? known.get(open.name)?.children ?? [] : top;
    const asChildren = (start) => [...new Set(children)].map((name) => ({ label: name, insert: start + name, detail: details.get(name) }));
    if (!isInTag) return explicit ? { from: at, prefix: "", options: asChildren("<") } : null;
    const written = before.slice(tag.from);
    if (tag.isEnd) return open.parent ? { from: tag.from + 2, prefix: tag.name, options: [{ label: open.name, insert: `${open.name}>` }] } : null;
    if (written === `<${tag.name}`) return { from: tag.from + 1, prefix: tag.name, options: asChildren("") };
    const attributes = known.get(tag.name)?.attributes ?? [];
    const value = /([^\s=<>"'/&]+)\s*=\s*(["']?)([^"'<>]*)$/.exec(written);
    if (value) {
      const [, name, quote, prefix] = value;
      const close = quote && text[at] === quote ? "" : quote || '"';
      const values = attributes.filter((each) => each.name === name).flatMap((each) => each.values);
      const options = values.map((each) => ({ label: each, insert: (quote ? "" : '"') + encoded(each) + close }));
      return { from: at - prefix.length, prefix, options };
    }
    const prefix = /(?<=\s)[^\s=<>"'/&]*$/.exec(written)?.[0];
    if (prefix === undefined) return null;
    const given = tag.attributes.map((each) => each.name).slice(0, prefix ? -1 : undefined);
    const options = attributes.filter((each) => !given.includes(each.name)).map(({ name, detail }) => ({ label: name, insert: `${name}=""`, back: 1, detail }));
    return { from: at - prefix.length, prefix, options };
  };
}
