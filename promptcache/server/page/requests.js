// Requests to the server, with the key of its API.
import { $, say } from "./dom.js";

let key = null; // in memory only
let afterKey = null; // called once there is a key
let retry = null; // called once there is a key, after a request was refused for lack of one

class Refused extends Error {
  constructor(status, error) {
    super(error.message);
    this.status = status;
  }
}

/** Send a request and return the response; a refusal is an exception with the message of the server. */
export async function send(path, { json, signal, method, body, type } = {}) {
  const headers = {}, used = key;
  if (key) headers.authorization = `Bearer ${key}`;
  if (json) headers["content-type"] = "application/json";
  if (type) headers["content-type"] = type;
  let response;
  try {
    response = await fetch(path, { method: method ?? (json ? "POST" : "GET"), headers, body: json ? JSON.stringify(json) : body, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is promptcache serve still running?");
  }
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({ error: { message: `The server answered ${response.status}.` } }));
  if (response.status === 401 && used === key) { // a late answer to an older key says nothing about this one
    askForKey(key ? "The server does not know this key." : "This server needs an API key.", retry);
  }
  throw new Refused(response.status, error);
}

/** Show the field for a key; `then` is called once there is one. */
export function askForKey(reason, then) {
  afterKey = then;
  $("key-reason").textContent = reason;
  $("key").hidden = false;
  $("key-value").focus();
}

/** Set what is tried again once there is a key, after a request was refused for lack of one. */
export function retryWithKey(work) {
  retry = work;
}

/** Use a key from now on, and do what waited for it. */
export async function setKey(value) {
  key = value;
  await afterKey();
}

/** Show what a handler throws. */
export function guarded(work) {
  return async (...args) => {
    try {
      await work(...args);
    } catch (error) {
      if (error.name !== "AbortError" && error.status !== 401) say(error.message);
    }
  };
}

/** Yield the data of server-sent events. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      const data = line.slice("data: ".length);
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}
