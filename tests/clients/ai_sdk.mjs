// Calls of the AI SDK, each against the server of the first argument, and those with tools against that of the second.
// Prints a line of JSON with their results.

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, jsonSchema, streamText, tool } from "ai";

const [baseURL, toolsURL] = process.argv.slice(2);
const options = { prompt: "What is the best dish of Miami?", temperature: 0, maxOutputTokens: 12, maxRetries: 0 };
const server = { name: "promptcache", apiKey: "alice", includeUsage: true, supportsStructuredOutputs: true };
const compatible = createOpenAICompatible({ ...server, baseURL });
const withTools = createOpenAICompatible({ ...server, baseURL: toolsURL });
const openai = createOpenAI({ baseURL, apiKey: "alice" });
const schema = jsonSchema({ type: "object", properties: { dish: { enum: ["stone crab"] } }, required: ["dish"], additionalProperties: false });
const longer = { ...options, maxOutputTokens: 128 };
const tools = { look_up: tool({ inputSchema: schema, execute: async () => "sunny" }) };

async function streamed(model, text) {
  const stream = streamText({ ...options, ...text, model, onError: () => {} });
  let found = "";
  let pieces = 0;
  for await (const part of stream.fullStream) {
    if (part.type === "error") throw part.error;
    if (part.type === "text-delta") {
      found += part.text;
      pieces += 1;
    }
  }
  if (pieces < 2 || (await stream.usage).outputTokens < 1) throw new Error("a stream has pieces and usage");
  return found;
}

const text = { prompt: "The best dish of Miami is" };
const calls = {
  generateText: async () => (await generateText({ ...options, model: compatible("demo") })).text,
  streamText: () => streamed(compatible("demo")),
  "generateText with messages": async () => {
    const { prompt, ...others } = options;
    const messages = [{ role: "user", content: [{ type: "text", text: prompt }] }];
    return (await generateText({ ...others, messages, model: compatible("demo") })).text;
  },
  "generateText of a completionModel": async () =>
    (await generateText({ ...options, ...text, model: compatible.completionModel("demo") })).text,
  "streamText of a completionModel": () => streamed(compatible.completionModel("demo"), text),
  "generateText of openai.chat": async () => (await generateText({ ...options, model: openai.chat("demo") })).text,
  "generateText of openai (responses)": async () => (await generateText({ ...options, model: openai("demo") })).text,
  "generateText with tools": async () =>
    (await generateText({ ...longer, tools, toolChoice: "required", model: withTools("demo") })).toolCalls[0].toolName,
  generateObject: async () =>
    (await generateObject({ ...longer, schema, model: compatible("demo") })).object.dish,
};

const results = {};
for (const [name, call] of Object.entries(calls)) {
  try {
    results[name] = { text: await call() };
  } catch (error) {
    results[name] = { error: error.message };
  }
}
console.log(JSON.stringify(results));
