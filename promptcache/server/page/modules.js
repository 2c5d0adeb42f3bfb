// The list of modules: boxes, choices and fields that edit the prompt, and agree with its text.
import { $, element } from "./dom.js";
import { limits, memberField, showMembers } from "./members.js";
import { argument, readPrompt, references, withArgument, withModule, withoutModule } from "./prompt.js";

const MAX_LISTED = 300;

let editor = null; // of the prompt
let described = null; // the schema: {id, modules, unions}
let shape = "";

/** Use an editor for the prompt. */
export function editPromptIn(promptEditor) {
  editor = promptEditor;
}

/** List the modules of a schema. */
export function listModules(schema) {
  described = schema;
  const wanted = JSON.stringify([schema.id, schema.modules, schema.unions]);
  if (wanted !== shape) fill(schema);
  shape = wanted;
  showModules();
}

function edit(text) {
  editor.text = text;
  showModules();
}

function fill({ modules, unions }) {
  const listed = modules.slice(0, MAX_LISTED);
  const lists = new Map();
  const list = (parent) => {
    if (!lists.has(parent)) lists.set(parent, element("ul"));
    return lists.get(parent);
  };
  const unionLists = new Map();
  for (const module of listed) {
    const { path } = module;
    const parent = path.includes("/") ? path.slice(0, path.lastIndexOf("/")) : "";
    const union = unions.findIndex((each) => each.members.includes(path));
    const row = element("li", {}, moduleRow(module, union));
    if (!path) {
      if (module.parameters.length) list("").append(row);
      continue;
    }
    row.append(list(path));
    if (union >= 0 && !unionLists.has(union)) {
      const [group, members] = unionGroup(unions[union], union);
      unionLists.set(union, members);
      list(parent).append(group);
    }
    (union >= 0 ? unionLists.get(union) : list(parent)).append(row);
  }
  const more = modules.length - listed.length;
  const rest = more > 0 ? [element("p", { className: "faded" }, `${more} more: write their names in the prompt.`)] : [];
  $("modules").replaceChildren($("modules").querySelector("legend"), list(""), ...rest);
  for (const each of lists.values()) if (!each.children.length) each.remove();
}

/** Return the group of a union, and its list. "None" is a choice unless a prompt has to name a member. */
function unionGroup({ name, required, default: usual, members: paths }, index) {
  const words = `one of${name ? ` ${name}` : ""}${required ? ", required" : ""}`;
  const members = element("ul");
  const group = element("li", { className: "one-of" }, element("span", { className: "faded" }, words), members);
  group.setAttribute("role", "radiogroup");
  group.setAttribute("aria-label", words);
  if (!required) {
    const none = element("input", { type: "radio", name: `union-${index}` });
    none.dataset.union = index;
    none.onchange = () => edit(paths.reduce(withoutModule, editor.text));
    const label = usual === null ? "none" : `${lastName(usual)} by default`;
    members.append(element("li", {}, element("div", { className: "module" }, element("label", { className: "none" }, none, label))));
  }
  return [group, members];
}

function moduleRow({ path, parameters, required, doc, collection }, union) {
  const row = element("div", { className: "module", title: doc ?? "" });
  if (collection) row.append(...collectionParts(path, collection));
  else if (path) {
    const isChoice = union >= 0;
    const box = element("input", isChoice ? { type: "radio", name: `union-${union}` } : { type: "checkbox" });
    box.dataset.module = path;
    box.onchange = () => edit(box.checked ? withModule(editor.text, path, described.unions) : withoutModule(editor.text, path));
    row.append(element("label", {}, box, lastName(path)));
    if (required) row.append(element("span", { className: "faded" }, "required"));
  }
  for (const parameter of parameters) row.append(argumentField(path, parameter));
  return row;
}

function collectionParts(path, collection) {
  const members = element("ul", { className: "members" });
  members.dataset.collection = path;
  members.setAttribute("aria-label", `Members of ${path} in the prompt`);
  const add = (name) => edit(withModule(editor.text, `${path}/${name}`, described.unions));
  return [
    element("span", { className: "name" }, lastName(path)), element("span", { className: "faded" }, limits(collection)),
    members, memberField(described.id, path, add),
  ];
}

function argumentField(path, parameter) {
  const field = element(parameter.choices.length ? "select" : "input", { placeholder: parameter.default ?? "" });
  if (parameter.choices.length) field.append(...["", ...parameter.choices].map((each) => element("option", {}, each)));
  else field.type = "text";
  field.dataset.owner = path;
  field.dataset.parameter = parameter.name;
  field.oninput = () => { editor.text = withArgument(editor.text, path, parameter.name, field.value); };
  return element("label", { className: "argument" }, parameter.name, field);
}

/** Let the list agree with the prompt. */
export function showModules() {
  const list = $("modules");
  const text = editor.text;
  const root = readPrompt(text);
  const present = new Map(root ? [...references(root)].map((each) => [each.path, each]) : []);
  for (const box of list.querySelectorAll("[data-module]")) box.checked = present.has(box.dataset.module);
  for (const none of list.querySelectorAll("[data-union]")) {
    none.checked = !described.unions[none.dataset.union].members.some((each) => present.has(each));
  }
  for (const members of list.querySelectorAll("[data-collection]")) {
    const path = members.dataset.collection;
    const paths = [...present.keys()].filter((each) => each.startsWith(`${path}/`));
    showMembers(members, paths, (each) => edit(withoutModule(editor.text, paths.length > 1 ? each : path)));
  }
  for (const field of list.querySelectorAll("[data-parameter]")) {
    const owner = present.get(field.dataset.owner);
    field.closest("label").hidden = !owner;
    if (field !== document.activeElement) field.value = argument(text, owner, field.dataset.parameter) ?? "";
  }
  for (const each of list.querySelectorAll("input, button")) each.disabled = !root;
}

function lastName(path) {
  return path.split("/").at(-1);
}
