// Calls language models with the official clients, and prints what they say, as JSON.
//
//	node calls.js calls URL   calls everything once, as JSON and as a stream
//	node calls.js retry URL   calls twice at once with each client, which repeats what is refused
//	node calls.js refuse URL  calls twice with each client, which repeats nothing
//	node calls.js cut URL     reads a stream with each client, to its end or its error
//
// URL is that of the gateway: /openai and /anthropic are below it.
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const [what, url] = process.argv.slice(2);
const messages = [{ role: "user", content: "How many geese?" }];

// clients returns a client of each kind, and the statuses that both get.
function clients(maxRetries) {
  const statuses = { openai: [], anthropic: [] };
  const options = (name, path) => ({
    baseURL: url + path,
    apiKey: "sk-" + name,
    maxRetries,
    defaultHeaders: { "X-User-ID": name, "X-Tenant-ID": "geese" },
    fetch: async (...request) => {
      const response = await fetch(...request);
      statuses[name].push(response.status);
      return response;
    },
  });
  return {
    openai: new OpenAI(options("openai", "/openai/v1")),
    anthropic: new Anthropic(options("anthropic", "/anthropic")),
    statuses,
  };
}

// id has a call known by a name.
const id = (name) => ({ headers: { "X-Request-Id": name } });

const chat = (client, name, more) =>
  client.chat.completions.create({ model: "gpt-test", messages, max_tokens: 100, ...more }, id(name));
const message = (client, name, more) =>
  client.messages.create({ model: "claude-test", messages, max_tokens: 100, ...more }, id(name));

// read reads a stream of chat completions.
async function read(stream) {
  let text = "";
  let usage = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  return { text, usage };
}

// said is what a client says of an error.
const said = (e) => ({ class: e.constructor.name, status: e.status, code: e.code, type: e.type, message: e.message });

const steps = {
  async calls() {
    const { openai, anthropic } = clients(0);
    const out = {};
    const limits = (response) => Object.fromEntries([...response.headers].filter(([name]) => name.includes("ratelimit")));

    const { data, response } = await chat(openai, "chat").withResponse();
    out.chat = { text: data.choices[0].message.content, usage: data.usage };
    out["chat-stream"] = await read(await chat(openai, "chat-stream", { stream: true }));
    out["chat-stream-usage"] = await read(
      await chat(openai, "chat-stream-usage", { stream: true, stream_options: { include_usage: true } }),
    );

    const answer = await openai.responses.create({ model: "gpt-test", input: "How many?", max_output_tokens: 100 }, id("responses"));
    out.responses = { text: answer.output_text, usage: answer.usage };
    const events = await openai.responses.create(
      { model: "gpt-test", input: "How many?", max_output_tokens: 100, stream: true },
      id("responses-stream"),
    );
    out["responses-stream"] = { text: "" };
    for await (const event of events) {
      if (event.type === "response.output_text.delta") out["responses-stream"].text += event.delta;
      if (event.type === "response.completed") out["responses-stream"].usage = event.response.usage;
    }

    const vectors = await openai.embeddings.create({ model: "embed-test", input: "geese", encoding_format: "float" }, id("embeddings"));
    out.embeddings = { text: String(vectors.data[0].embedding.length), usage: vectors.usage };

    const whole = await message(anthropic, "messages").withResponse();
    out.messages = { text: whole.data.content[0].text, usage: whole.data.usage };
    const stream = anthropic.messages.stream({ model: "claude-test", messages, max_tokens: 100 }, id("messages-stream"));
    const last = await stream.finalMessage();
    out["messages-stream"] = { text: last.content[0].text, usage: last.usage };
    return { calls: out, openai: limits(response), anthropic: limits(whole.response) };
  },

  async retry() {
    const { openai, anthropic, statuses } = clients(3);
    const twice = (call, client) => Promise.all([call(client, "first"), call(client, "second")]);
    await Promise.all([twice(chat, openai), twice(message, anthropic)]);
    return statuses;
  },

  async refuse() {
    const { openai, anthropic } = clients(0);
    const error = async (call, client) => {
      await call(client, "passed");
      try {
        await call(client, "refused");
        return null;
      } catch (e) {
        return said(e);
      }
    };
    return { openai: await error(chat, openai), anthropic: await error(message, anthropic) };
  },

  async cut() {
    const { openai, anthropic } = clients(0);
    const out = { openai: { text: "" }, anthropic: { text: "" } };
    try {
      for await (const chunk of await chat(openai, "cut", { stream: true, max_tokens: undefined })) {
        out.openai.text += chunk.choices[0]?.delta?.content ?? "";
      }
    } catch (e) {
      Object.assign(out.openai, said(e));
    }
    try {
      for await (const event of await message(anthropic, "cut", { stream: true, max_tokens: 1 })) {
        if (event.type === "content_block_delta") out.anthropic.text += event.delta.text;
      }
    } catch (e) {
      Object.assign(out.anthropic, said(e));
    }
    return out;
  },
};

console.log(JSON.stringify(await steps[what](), null, 1));
