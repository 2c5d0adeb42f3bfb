// The usage and the times of an answer.
import { $, element } from "./dom.js";

const STEPS = ["plan", "fetch", "prefill", "decode"];
const SOURCES = {
  hit: "memory", load: "slower store", miss: "encoded for this request", history: "history of earlier requests",
};

/** Remove the answer and its usage. */
export function clearResults() {
  $("answer").textContent = "";
  $("finish").textContent = "";
  $("results").hidden = true;
}

/** Return the steps of an answer in milliseconds. Waiting, encoding and linking count as fetching. */
function steps({ timing }) {
  const { plan_s, wait_s, refine_s, fetch_s, encode_s, link_s, prefill_s, decode_s } = timing;
  const fetch = wait_s + fetch_s + encode_s + link_s;
  const seconds = { plan: plan_s + refine_s, fetch, prefill: prefill_s, decode: decode_s };
  return Object.fromEntries(STEPS.map((each) => [each, 1000 * seconds[each]]));
}

function milliseconds(value) {
  return value.toFixed(value < 99.95 ? 1 : 0);
}

/** Show the usage and times of an answer, beside those of ordinary prefill if there are any. */
export function showResults(ours, plain) {
  $("finish").textContent = ours.finish === "length" ? "The answer reached the limit of tokens." : "";
  const rows = [["With reuse", ours], ...(plain ? [["Ordinary prefill", plain]] : [])]
    .map(([name, { cache }]) => ({ name, ttft: 1000 * cache.timing.ttft_s, ...steps(cache) }));
  const total = (row) => STEPS.reduce((sum, each) => sum + row[each], 0);
  const longest = Math.max(...rows.map(total));
  $("bars").replaceChildren(...rows.map((row) => {
    const parts = STEPS.map((step) => {
      const part = element("i", { className: step, title: `${step} ${milliseconds(row[step])} ms` });
      part.style.width = `${(100 * row[step]) / longest}%`;
      return part;
    });
    const track = element("span", { className: "track" }, ...parts);
    track.setAttribute("aria-hidden", "true");
    return element("div", { className: "bar" }, element("span", {}, row.name), track,
      element("span", {}, `first token ${milliseconds(row.ttft)} ms`));
  }));
  const head = ["step", ...rows.map((row) => `${row.name}, ms`)];
  const step = (name) => [element("span", {}, element("i", { className: `swatch ${name}` }), name),
    ...rows.map((row) => milliseconds(row[name]))];
  fill("times", head, [...STEPS.map(step), ["to the first token", ...rows.map((row) => milliseconds(row.ttft))]]);
  const isSame = plain && plain.text === ours.text;
  $("same").textContent = !plain
    ? "Compare with ordinary prefill to see the same prompt computed without any reuse."
    : `Ordinary prefill: the same tokens at the same positions, nothing reused. ${isSame ? "The answer is the same." : `Its answer: ${plain.text}`} `
      + "Each was measured once, after the answer above; press again for other measurements.";
  showReuse(ours);
  $("results").hidden = false;
}

function showReuse({ usage, cache }) {
  const cached = usage.prompt_tokens_details.cached_tokens;
  const share = Math.round((100 * cached) / usage.prompt_tokens);
  const count = (source) => cache.modules.reduce((sum, each) => sum + (each.source === source ? each.num_tokens : 0), 0);
  const [history, encoded] = [count("history"), count("miss")];
  const origins = [
    [cached - history, "of modules"],
    [history, "of an earlier request"],
    [encoded, "of modules encoded for this request"],
    [usage.prompt_tokens - cached - encoded, "new"],
  ].filter(([number]) => number).map(([number, words]) => `${number} ${words}`);
  $("cached").textContent = `${cached} of ${usage.prompt_tokens} prompt tokens were cached (${share} %): `
    + `${origins.join(", ")}. ${usage.completion_tokens} were generated.`;
  const name = ({ module, source }) => (source === "history" ? "(text of the prompt)" : module || "(outside modules)");
  fill("reused", ["module", "KV from", "tokens"], cache.modules.map((each) => [name(each), SOURCES[each.source], each.num_tokens]));
}

function fill(id, head, rows) {
  const cell = (kind, value, index) => {
    const isNumber = index > 0 && (kind === "th" || !Number.isNaN(Number(value)));
    const made = element(kind, { className: isNumber && head[index] !== "KV from" ? "number" : "" }, value instanceof Node ? value : `${value}`);
    if (kind === "th") made.scope = "col";
    return made;
  };
  const line = (kind, values) => element("tr", {}, ...values.map((value, index) => cell(kind, value, index)));
  $(id).replaceChildren(element("thead", {}, line("th", head)), element("tbody", {}, ...rows.map((row) => line("td", row))));
}
