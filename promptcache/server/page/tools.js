// Tools: definitions in the schema and of the user, and calls that wait for their results.
import { $, element } from "./dom.js";

/** Name the tools that the modules of the prompt define. */
export function nameTools(definitions) {
  const names = definitions.map((each) => each.function.name).join(", ");
  $("tools-found").textContent = names ? `of the modules in the prompt: ${names}` : "";
}

/** Return the tools of a request. Those that the user wrote win over those of modules. */
export function withOwnTools(found) {
  const text = $("tool-definitions").value.trim();
  if (!text) return found;
  let own;
  try {
    own = [JSON.parse(text)].flat();
  } catch (error) {
    throw new Error(`The tools are not JSON: ${error.message}`);
  }
  const names = new Set(own.map((each) => each?.function?.name));
  return [...own, ...found.filter((each) => !names.has(each.function.name))];
}

/** Add the parts of calls that an event of a stream has. */
export function addCalls(calls, parts = []) {
  for (const { index, id, function: part } of parts) {
    calls[index] ??= { id, type: "function", function: { name: part.name, arguments: "" } };
    calls[index].function.arguments += part.arguments ?? "";
  }
}

/** Show calls with a field for each result; `goOn` gets the messages with the results. */
export function askForResults(calls, goOn) {
  const form = $("calls");
  form.hidden = !calls.length;
  const fields = calls.map(() => element("textarea", { rows: 2, spellcheck: false }));
  form.replaceChildren(
    element("p", { className: "faded" }, "The answer calls tools, which this page does not run. Write what they return."),
    ...calls.map((call, index) => element("div", { className: "call" }, called(call), element("label", {}, "Result", fields[index]))),
    element("button", { className: "primary" }, "Go on"),
  );
  form.onsubmit = (event) => {
    event.preventDefault();
    goOn(calls.map(({ id }, index) => ({ role: "tool", tool_call_id: id, content: fields[index].value })));
  };
}

/** Return calls and their results as elements of the answer. */
export function answeredCalls(calls, results) {
  return calls.map((call, index) => element("div", { className: "call" }, called(call), element("div", {}, `→ ${results[index].content}`)));
}

function called({ function: { name, arguments: text } }) {
  return element("code", {}, element("b", {}, name), ` ${text}`);
}
