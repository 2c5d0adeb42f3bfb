// Reads and edits the text of a prompt document. Every edit returns the whole new text.
import { elements, parse } from "./xml.js";

const NO_MODULES = new Set(["prompt", "use", "arg", "text", "doc", "system", "user", "assistant", "tool"]);
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'" };

/** Return whether a name can be that of an element or attribute; others stand in `use` and `arg`. */
export function isElement(name) {
  return /^[A-Za-z_][\w.-]*$/.test(name) && !/^xml/i.test(name);
}

/** Return the tags of a module: [empty element, start tag, end tag]. */
export function moduleTags(name) {
  if (isElement(name) && !NO_MODULES.has(name)) return [`<${name}/>`, `<${name}>`, `</${name}>`];
  const tag = `<use module="${encoded(name)}"`;
  return [`${tag}/>`, `${tag}>`, "</use>"];
}

/**
 * Return the prompt element of a document with its references as a tree, or null if there is none.
 *
 * A reference has `path`, `from`, `to`, `open` (its first tag), `inside` (its children) and `values`: the place of each
 * argument's text. It has `close` unless it is an empty element.
 */
export function readPrompt(text) {
  const element = parse(text).root.inside.find((each) => each.name === "prompt");
  return element ? reference(text, element, "") : null;
}

/** Yield a reference and all references in it. */
export function* references(root) {
  yield root;
  for (const each of root.inside) yield* references(each);
}

/** Return the text of an argument, or null if the prompt gives none. */
export function argument(text, found, parameter) {
  const place = found?.values.get(parameter);
  return place ? decoded(text.slice(place.from, place.to)) : null;
}

/** Return the prompt with a module, in its parents; other members of its unions are removed. */
export function withModule(text, path, unions) {
  const steps = path.split("/");
  const wanted = steps.map((_, index) => steps.slice(0, index + 1).join("/"));
  for (const union of unions) {
    if (!union.members.some((each) => wanted.includes(each))) continue;
    for (const each of union.members) if (!wanted.includes(each)) text = withoutModule(text, each);
  }
  let at = readPrompt(text);
  if (!at) return text;
  let rest = wanted;
  for (let next; rest.length && (next = at.inside.find((each) => each.path === rest[0])); rest = rest.slice(1)) at = next;
  if (!rest.length) return text;
  const element = rest.map((each) => moduleTags(each.split("/").at(-1)))
    .reduceRight((inside, [empty, start, end]) => (inside ? start + inside + end : empty), "");
  if (!at.close) return withContent(text, at, element);
  const before = at.inside.at(-1);
  const place = before ? before.to : at.open.to;
  const indent = indentation(text, (before ?? at.open).from);
  const breaks = indent !== null && /^[ \t]*(\r?\n|$)/.test(text.slice(place));
  return spliced(text, place, place, breaks ? `\n${indent}${before ? "" : "  "}${element}` : element);
}

/** Return the prompt without a module and the modules in it. */
export function withoutModule(text, path) {
  const root = readPrompt(text);
  const found = root && [...references(root)].find((each) => each.path === path && each !== root);
  if (!found) return text;
  const indent = indentation(text, found.from);
  const end = /^[ \t]*\r?\n/.exec(text.slice(found.to));
  const isLine = indent !== null && end;
  return spliced(text, isLine ? found.from - indent.length : found.from, isLine ? found.to + end[0].length : found.to, "");
}

/** Return the prompt with another text for an argument; an empty text removes the attribute. */
export function withArgument(text, path, parameter, value) {
  const root = readPrompt(text);
  const found = root && [...references(root)].find((each) => each.path === path);
  if (!found) return text;
  const place = found.values.get(parameter);
  if (place?.attribute && !value) {
    const start = text.slice(0, place.attribute.from).trimEnd().length;
    return spliced(text, start, place.attribute.to, "");
  }
  if (place) return spliced(text, place.from, place.to, encoded(value));
  if (!value) return text;
  if (!isElement(parameter)) {
    const element = `<arg name="${encoded(parameter)}">${encoded(value)}</arg>`;
    return found.close ? spliced(text, found.open.to, found.open.to, element) : withContent(text, found, element);
  }
  const end = found.open.from + text.slice(found.open.from, found.open.to).search(/\s*\/?>$/);
  return spliced(text, end, end, ` ${parameter}="${encoded(value)}"`);
}

/** Return the prompt of the first valid example in a schema that has a turn of the user, else of the first valid one. */
export function exampleOf(schema) {
  const found = [];
  for (const { name, values, inside } of elements(parse(schema).root)) {
    const valid = values.get("valid");
    const prompt = inside.find((each) => each.name === "prompt");
    if (name !== "example" || !prompt || (valid && schema.slice(valid.from, valid.to) !== "true")) continue;
    const indent = indentation(schema, prompt.from) ?? "";
    found.push(schema.slice(prompt.from, prompt.to).replaceAll(`\n${indent}`, "\n"));
  }
  return found.find((each) => each.includes("<user>")) ?? found[0] ?? null;
}

/** Return the prompt with content in an empty element. */
function withContent(text, { name, open }, content) {
  const tag = text.slice(open.from, open.to).replace(/\s*\/>$/, ">");
  return spliced(text, open.from, open.to, `${tag}${content}</${name}>`);
}

function reference(text, { name, from, to, open, close, inside, values }, path) {
  const found = { path, name, from, to, open, close, inside: [], values: new Map(values) };
  for (const child of inside) {
    const named = (attribute) => {
      const place = child.values.get(attribute);
      return place ? decoded(text.slice(place.from, place.to)) : "";
    };
    if (child.name === "arg") {
      if (named("name") && child.close) found.values.set(named("name"), { from: child.open.to, to: child.close.from });
    } else if (child.name === "use") {
      const target = named("module").trim();
      if (target) found.inside.push(reference(text, child, target.startsWith("/") ? target.slice(1) : joined(path, target)));
    } else if (!NO_MODULES.has(child.name)) {
      found.inside.push(reference(text, child, joined(path, child.name)));
    }
  }
  return found;
}

function joined(path, step) {
  return path ? `${path}/${step}` : step;
}

/** Return the spaces before a place that begins its line, else null. */
function indentation(text, place) {
  return /(^|\n)([ \t]*)$/.exec(text.slice(0, place))?.[2] ?? null;
}

function spliced(text, from, to, insert) {
  return text.slice(0, from) + insert + text.slice(to);
}

/** Return a text as it stands in an attribute or element. */
export function encoded(value) {
  return value.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;").replaceAll("'", "&apos;");
}

function decoded(value) {
  return value.replace(/&(#x?[0-9a-f]+|\w+);/gi, (whole, code) => {
    if (code[0] !== "#") return ENTITIES[code] ?? whole;
    const point = /^#x/i.test(code) ? parseInt(code.slice(2), 16) : Number(code.slice(1));
    return point <= 0x10ffff ? String.fromCodePoint(point) : whole;
  });
}
