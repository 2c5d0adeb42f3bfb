// The page: two editors with marks, the picture of the layout, and answers with their times.
// What the server or the model sends enters the document as text. Only the picture, which the server draws, is markup.
import { $, element, say } from "./dom.js";
import { editor, showMarks } from "./editor.js";
import { promptSource, schemaSource } from "./elements.js";
import { memberSource } from "./members.js";
import { editPromptIn, listModules, showModules } from "./modules.js";
import { encoded, exampleOf } from "./prompt.js";
import { askForKey, events, guarded, send, setKey, retryWithKey } from "./requests.js";
import { clearResults, showResults } from "./results.js";
import { addCalls, answeredCalls, askForResults, nameTools, withOwnTools } from "./tools.js";

const CHECK_DELAY_MS = 250;
const SAMPLE = `<schema name="my-schema">
  <system>
    The name of the agency is Blue Harbour.
    <module name="trip-plan">
      The duration of the trip is <parameter name="duration" length="8" placeholder="three days"/>.
    </module>
    <module name="miami">
      The best dish of Miami is stone crab.
    </module>
  </system>
  <example>
    <prompt schema="my-schema">
      <trip-plan duration="four days"/>
      <miami/>
      <user>What is the best dish of Miami?</user>
    </prompt>
  </example>
</schema>
`;
const NO_SCHEMA = "This server has no schema. Start it with --schema FILE, or save this one with an admin key.";
const KEY_WORDS = "Saving needs an admin key: one in the file that the server got with --admin-key-file.";

let saved = null; // the schema as the server has it: {id, xml, modules, unions}, and isNew if this page has saved it
let described = null; // the last valid schema of the editor: {id, modules, unions}
let override = null; // its text, if it differs from the server's
let running = null; // the AbortController of an answer

// ---- editors ----

const promptEditor = editor("prompt", "Prompt", () => { say(null); showModules(); scheduleCheck(); });
editPromptIn(promptEditor);
const schemaEditor = editor("schema", "Schema", () => { say(null); scheduleCheck(); });

// ---- checks while typing ----

let timer = null;
let checking = null;
let known = { text: null, answer: null }; // the last check of a schema

function scheduleCheck() {
  clearTimeout(timer);
  timer = setTimeout(guarded(checkAll), CHECK_DELAY_MS);
}

async function checkAll() {
  checking?.abort();
  checking = new AbortController();
  const { signal } = checking;
  const check = async (json) => (await send("v1/check", { json, signal })).json();
  const schemaText = schemaEditor.text;
  if (known.text !== schemaText) known = { text: schemaText, answer: await check({ document: schemaText }) };
  const ofSchema = known.answer;
  showMarks(schemaEditor, "schema-marks", ofSchema.diagnostics);
  if (ofSchema.schema) {
    override = saved?.xml === schemaText ? null : schemaText;
    describe(ofSchema.schema);
  }
  noteSchema(ofSchema.valid && Boolean(ofSchema.schema));
  const prompt = promptEditor.text;
  let isValid = false;
  try {
    const ofPrompt = await check({ document: prompt, ...unsaved() });
    isValid = ofPrompt.valid && ofPrompt.kind === "prompt";
    nameTools(ofPrompt.tools ?? []);
    showMarks(promptEditor, "prompt-marks", ofPrompt.kind === "prompt" ? ofPrompt.diagnostics : [noPrompt()]);
  } catch (error) {
    if (error.status !== 404) throw error;
    showMarks(promptEditor, "prompt-marks", [{ ...noPrompt(), message: error.message, help: null }]);
  }
  await draw(isValid ? prompt : null, signal);
}

function unsaved() {
  return override ? { schema: override } : {};
}

function noPrompt() {
  const place = { line: 1, column: 1, stop_line: 1, stop_column: 1 };
  return { ...place, severity: "error", code: "", message: "this is a schema", help: 'a prompt begins with <prompt schema="…">' };
}

function isEdited() {
  return saved?.xml !== schemaEditor.text;
}

function noteSchema(isValid) {
  $("save").hidden = !(isEdited() && isValid);
  const isKnown = [...$("schemas").options].some((each) => each.value === described?.id);
  $("schema-note").textContent = isEdited()
    ? `Edited here only: marks and picture follow your text. To run it, save it${isKnown ? ` in the place of the server's ${described.id}` : ""}.`
    : saved.isNew ? "Saved: the server has this schema now." : "As on the server. You can edit it here; saving needs an admin key.";
}

/** Show what a valid prompt uses, else the schema alone. */
async function draw(prompt, signal) {
  const picture = $("picture");
  const document = prompt ?? override ?? saved?.xml;
  if (!document) return;
  const response = await send("v1/layout.html", { json: { document, ...(prompt ? unsaved() : {}) }, signal });
  const drawn = await response.text();
  picture.innerHTML = drawn.slice(drawn.indexOf("<body>")); // its style is a file of the page
  picture.hidden = false;
  picture.ariaLabel = prompt ? "Layout of the schema with what the prompt reuses and adds" : "Layout of the schema";
  $("caption").textContent = prompt
    ? "One row for each module, at its positions in the prompt. Open a row for its texts."
    : "The schema alone: the prompt has problems.";
}

function describe(schema) {
  described = schema;
  promptEditor.completeWith(promptSource(schema), memberSource(schema));
  listModules(schema);
}

// ---- answers ----

async function run() {
  if (!await mayAsk(run)) return;
  await answering(guarded(async (signal) => {
    clearAnswer();
    const question = await questionOf(signal);
    const made = await ask(question, true, signal, (piece) => $("answer").append(piece));
    showResults(made, null);
    waitForResults(question, made);
  }));
}

async function compare() {
  if (!await mayAsk(compare)) return;
  await answering(guarded(async (signal) => {
    clearAnswer();
    const question = await questionOf(signal);
    const made = await ask(question, true, signal, (piece) => $("answer").append(piece));
    showResults(made, null);
    const ours = await ask(question, true, signal, () => {}); // the first request of a server is slow, so the second one is measured
    const plain = await ask(question, false, signal, () => {});
    showResults(ours, plain);
    waitForResults(question, made);
  }));
}

function clearAnswer() {
  clearResults();
  askForResults([]);
}

/** Return what the editor asks, with the tools that the server finds in the modules of its own schema. */
async function questionOf(signal) {
  const prompt = promptEditor.text;
  let found = [];
  try {
    found = (await (await send("v1/check", { json: { document: prompt }, signal })).json()).tools ?? [];
  } catch (error) {
    if (!error.status) throw error; // of a refusal, the answer says why
  }
  return { prompt, messages: [], tools: withOwnTools(found) };
}

/** Let the user write what called tools return, and go on with it. If this fails, the user can try again. */
function waitForResults(question, made) {
  askForResults(made.calls, async (results) => {
    if (running || !isLimitRight()) return;
    await answering(guarded(async (signal) => {
      const before = [...$("answer").childNodes];
      const called = { role: "assistant", content: made.text, tool_calls: made.calls };
      const later = { ...question, messages: [...question.messages, called, ...results] };
      $("calls").hidden = true;
      $("answer").append(...answeredCalls(made.calls, results));
      try {
        const next = await ask(later, true, signal, (piece) => $("answer").append(piece));
        showResults(next, null);
        waitForResults(later, next);
      } catch (error) {
        $("answer").replaceChildren(...before);
        $("calls").hidden = false;
        throw error;
      }
    }));
  });
}

/** Return whether the prompt can be answered; else say why not. A schema that is not saved is offered to be, before `then`. */
async function mayAsk(then) {
  if (running || !isLimitRight()) return false;
  if (!isEdited()) return true;
  await guarded(checkAll)();
  if ($("save").hidden) say("The schema has problems: correct them first.");
  else say("The server does not have this schema. Save it first: ", element("button", { onclick: guarded(() => save(then)) }, "Save and go on"));
  return false;
}

/** Return whether the limit of tokens is one; else say so. */
function isLimitRight() {
  const field = $("max-tokens");
  const { valid } = field.validity;
  field.setAttribute("aria-invalid", !valid);
  if (valid) return true;
  say(`An answer cannot have at most ${field.value || "…"} tokens: write a whole number from 1.`);
  field.focus();
  return false;
}

/** One answer is made at a time. */
function enableRun() {
  $("run").disabled = $("compare").disabled = Boolean(running);
}

/** Do work that "Stop" ends. */
async function answering(work) {
  running = new AbortController();
  say(null);
  $("answer").setAttribute("aria-busy", "true");
  enableRun();
  $("stop").hidden = false;
  const { signal } = running;
  await work(signal);
  if (signal.aborted) $("finish").textContent = "Stopped.";
  const hadFocus = document.activeElement === $("stop");
  running = null;
  $("answer").removeAttribute("aria-busy");
  enableRun();
  $("stop").hidden = true;
  if (hadFocus) $("run").focus();
}

/** Ask for the answer of a question as a stream, and return it with usage and times. */
async function ask(question, reuse, signal, show) {
  const json = {
    ...question, temperature: 0, reuse, stream: true, stream_options: { include_usage: true },
    max_tokens: $("max-tokens").valueAsNumber,
  };
  const response = await send("v1/prompts", { json, signal });
  const made = { text: "", calls: [], finish: null, cache: null, usage: null };
  for await (const event of events(response.body)) {
    if (event.error) throw new Error(event.error.message);
    const [choice] = event.choices;
    const piece = choice?.delta.content ?? "";
    if (piece) show(piece);
    made.text += piece;
    addCalls(made.calls, choice?.delta.tool_calls);
    made.finish = choice?.finish_reason ?? made.finish;
    made.cache = event.prompt_cache ?? made.cache;
    made.usage = event.usage ?? made.usage;
  }
  if (!made.usage) throw new Error("The answer ended early: the connection was lost.");
  return made;
}

// ---- the schemas of the server ----

/** Save the schema, and then do what needs it. A missing or wrong admin key is asked for. */
async function save(then, hasKey) {
  say(null);
  const { id } = described;
  const xml = schemaEditor.text; // it may be edited while it is saved
  try {
    await send(`v1/schemas/${encodeURIComponent(id)}`, { method: "PUT", body: xml, type: "application/xml" });
  } catch (error) {
    if (![401, 403].includes(error.status)) throw error;
    return askForKey(`${hasKey ? "This is not an admin key. " : ""}${KEY_WORDS}`, () => save(then, true));
  }
  await listSchemas(id);
  saved = { ...await (await send(`v1/schemas/${encodeURIComponent(id)}`)).json(), xml, isNew: true };
  noteSchema(true);
  scheduleCheck();
  await then?.();
}

async function listSchemas(chosen) {
  const { data } = await (await send("v1/schemas")).json();
  const names = data.map((each) => each.id);
  $("schemas").replaceChildren(...names.map((each) => element("option", {}, each)), element("option", { value: "" }, "New schema"));
  if (chosen) $("schemas").value = chosen;
  return names;
}

async function openSchema(name) {
  say(null);
  clearAnswer();
  saved = name ? await (await send(`v1/schemas/${encodeURIComponent(name)}`)).json() : null;
  override = null;
  schemaEditor.text = saved?.xml ?? SAMPLE;
  const question = `<prompt schema="${encoded(saved?.id ?? "")}">\n  <user>Write your question here.</user>\n</prompt>`;
  promptEditor.text = exampleOf(schemaEditor.text) ?? question;
  if (saved) describe(saved);
  await checkAll();
}

async function start() {
  const { data } = await (await send("v1/models")).json();
  $("model").textContent = `Model ${data[0].id}`;
  const [first] = await listSchemas();
  await openSchema(first);
  if (!first) say(NO_SCHEMA);
}

// ---- the page ----

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  if (theme) localStorage.setItem("theme", theme);
  else localStorage.removeItem("theme");
}

$("theme").value = localStorage.getItem("theme") ?? "";
setTheme($("theme").value);
$("theme").onchange = () => setTheme($("theme").value);
$("schemas").onchange = guarded(() => openSchema($("schemas").value));
$("run").onclick = run;
$("compare").onclick = compare;
$("stop").onclick = () => running?.abort();
$("save").onclick = guarded(() => save());
$("key").onsubmit = guarded(async (event) => {
  event.preventDefault();
  const value = $("key-value").value;
  $("key-value").value = "";
  $("key").hidden = true;
  await setKey(value);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !event.defaultPrevented) run();
});
schemaEditor.completeWith(schemaSource());
retryWithKey(() => (described ? checkAll() : start()));
guarded(start)();
