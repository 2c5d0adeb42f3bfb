// Completion: the elements and attributes of schemas, and those of the prompts of one schema.
import { encoded, isElement } from "./prompt.js";

const FLAG = ["true", "false"];
const INHERITED = { whitespace: ["dedent", "preserve", "collapse", "compact"], separator: [], context: ["guaranteed", "own"],
  sees: ["stand-ins", "previous", "earlier", "nothing"] };
const CONTENT = ["text", "doc", "parameter", "module", "union", "collection", "include"];
const TURNS = ["system", "user", "assistant"];
const TYPE = { type: ["text", "line", "int", "number", "choice"], choices: [], pattern: [] };

/** Elements of a schema: [children, attributes with their values]. tests/server/test_page.py compares them with the grammar. */
export const SCHEMA_ELEMENTS = {
  schema: [
    [...CONTENT, ...TURNS, "scaffold", "stand-in", "answer", "rules", "example"],
    { name: [], version: [], repair: ["none", "slots", "first-16", "first-20%", "all"], positions: ["closed", "fixed"], ...INHERITED },
  ],
  module: [
    [...CONTENT, ...TURNS, "scaffold"],
    { name: [], required: FLAG, requires: [], excludes: [], after: [], cache: FLAG, private: FLAG, reserve: [], src: [], ...INHERITED },
  ],
  collection: [["doc", "module", "include"],
    { name: [], min: [], max: [], src: [], whitespace: INHERITED.whitespace, separator: [], sees: INHERITED.sees }],
  union: [["doc", "module"], { name: [], required: FLAG, default: [], scaffold: [] }],
  parameter: [
    [],
    { name: [], length: [], default: [], placeholder: [], scaffold: [], required: FLAG,
      ...TYPE, message: [] },
  ],
  scaffold: [[], { name: [], modules: [] }],
  include: [[], { href: [], select: [], prefix: [] }],
  system: [CONTENT, {}],
  user: [CONTENT, {}],
  assistant: [CONTENT, {}],
  text: [[], {}],
  doc: [[], {}],
  "stand-in": [[], {}],
  answer: [[], { ...TYPE, src: [] }],
  rules: [["require", "exclude", "choose", "assert", "doc"], {}],
  require: [[], { if: [], then: [], message: [] }],
  exclude: [[], { modules: [], message: [] }],
  choose: [[], { modules: [], min: [], max: [], message: [] }],
  assert: [[], { test: [], message: [] }],
  example: [["prompt"], { name: [], valid: FLAG, contains: [], answer: [] }],
  prompt: [[...TURNS, "use", "answer"], { schema: [], version: [] }],
};

/** Return the elements of schemas for `completeFromSchema`. */
export function schemaElements() {
  return Object.entries(SCHEMA_ELEMENTS).map(([name, [children, attributes]]) => ({
    name, children, top: name === "schema",
    attributes: Object.entries(attributes).map(([each, values]) => ({ name: each, values, completion: { apply: withQuotes } })),
  }));
}

/** Return the elements of the prompts of a schema. Modules of one name at several places share their completions. */
export function promptElements({ id, modules, unions }) {
  const found = new Map();
  const words = ["text"];
  for (const { path, doc, required, parameters } of modules) {
    const name = path ? path.split("/").at(-1) : "prompt";
    const inside = modules.filter((each) => each.path && each.path.split("/").slice(0, -1).join("/") === path);
    const union = unions.find((each) => each.members.includes(path));
    const children = inside.map((each) => each.path.split("/").at(-1)).filter(isElement);
    const known = found.get(name) ?? { name, top: !path, children: [], attributes: [] };
    known.children.push(...children, ...(path ? [] : [...TURNS, "use", "answer", "text"]));
    known.attributes.push(...parameters.filter((each) => isElement(each.name)).map(attribute), ...(path ? [] : [{ name: "schema", values: [id].map(escaped) }, { name: "version" }]));
    if (path) known.completion = { detail: union ? `one of ${union.name ?? "several"}` : required ? "required" : "module", info: doc, boost: 1 };
    if (isElement(name)) found.set(name, known);
  }
  for (const each of TURNS) found.set(each, { name: each, children: words, completion: { detail: "turn" } });
  found.set("answer", { name: "answer", children: [], attributes: typed(), completion: { detail: "format of the answer" } });
  found.set("text", { name: "text", children: [] });
  found.set("use", { name: "use", children: [], attributes: [{ name: "module", values: modules.map(({ path }) => path).filter(Boolean).map(escaped) }] });
  return [...found.values()];
}

/** Return the attributes of an answer in a prompt; prompts on the page have no folder, and so no src. */
function typed() {
  return Object.entries(TYPE).map(([name, values]) => ({ name, values, completion: { apply: withQuotes } }));
}

function attribute({ name, choices, required, length, default: usual }) {
  const facts = [required ? "required" : "", `at most ${length} tokens`, usual === null ? "" : `by default “${usual}”`];
  return { name, values: choices.map(escaped), completion: { info: facts.filter(Boolean).join(", "), apply: withQuotes } };
}

function escaped(value) {
  return { label: `"${value}"`, apply: `"${encoded(value)}"`, type: "constant" };
}

/** Insert an attribute with its quotes, and put the cursor between them. */
function withQuotes(view, { label }, from, to) {
  view.dispatch({ changes: { from, to, insert: `${label}=""` }, selection: { anchor: from + label.length + 2 }, userEvent: "input.complete" });
}
