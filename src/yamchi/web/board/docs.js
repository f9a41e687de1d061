// The API page: reads /openapi.json and shows every call, with a form to try it. Needs nothing from the internet.

import { parse } from "/board/api.js";
import { h, patch } from "/board/dom.js";
import { findPages, showPlaces } from "/board/nav.js";
import { installTheme } from "/board/theme.js";

const METHODS = ["get", "post", "patch", "put", "delete"];
let spec;

async function start() {
  installTheme(document.getElementById("theme"));
  findPages().then(() => showPlaces("docs"));
  spec = await (await fetch("/openapi.json")).json();
  const groups = new Map();
  for (const [path, calls] of Object.entries(spec.paths)) {
    for (const method of METHODS.filter((name) => name in calls)) {
      const tag = calls[method].tags?.[0] ?? "other";
      groups.set(tag, [...(groups.get(tag) ?? []), { path, method: method.toUpperCase(), call: calls[method] }]);
    }
  }
  patch(document.getElementById("view"), [
    h("div", { class: "row" }, h("h1", {}, `${spec.info.title} API`), h("small", {}, spec.info.version), h("span", { class: "grow" }), h("a", { href: "/openapi.json" }, "openapi.json")),
    h("p", { class: "about" }, words(spec.info.description.replace(/(\S)\n(\S)/g, "$1 $2"))),
    ...[...groups].map(([tag, calls]) => h("section", { class: "card section" }, h("h2", {}, tag), calls.map(operation))),
  ]);
}

function operation({ path, method, call }) {
  return h("details", { class: "op" },
    h("summary", {}, h("span", { class: `method ${method}` }, method), h("code", {}, path), h("span", { class: "muted" }, call.summary)),
    h("div", { class: "body" }, call.description && h("p", { class: "about" }, words(call.description.replace(/(\S)\n(\S)/g, "$1 $2"))), parameters(call), body(call), answers(call), trial(path, method, call)));
}

/** A sentence whose `names` are set as code. */
const words = (text = "") => text.split("`").map((part, index) => (index % 2 ? h("code", {}, part) : part));

function parameters(call) {
  const rows = call.parameters ?? [];
  if (!rows.length) return null;
  return h("div", {}, h("h3", {}, "Parameters"), h("table", {}, h("tbody", {}, rows.map((row) =>
    h("tr", {}, h("td", {}, h("code", {}, row.name)), h("td", { class: "muted" }, row.in), h("td", {}, kind(row.schema)), h("td", { class: "muted" }, words(row.description)))))));
}

function body(call) {
  const schema = bodySchema(call);
  return schema && h("div", {}, h("h3", {}, "Body"), properties(schema));
}

const bodySchema = (call) => resolve(call.requestBody?.content?.["application/json"]?.schema);

function properties(schema) {
  const rows = Object.entries(schema.properties ?? {});
  return h("table", {}, h("tbody", {}, rows.map(([name, one]) =>
    h("tr", {}, h("td", {}, h("code", {}, name)), h("td", {}, kind(one)), h("td", { class: "muted" }, words(one.description ?? (schema.required?.includes(name) ? "required" : "")))))));
}

function answers(call) {
  return h("div", {}, h("h3", {}, "Answers"), h("table", {}, h("tbody", {}, Object.entries(call.responses).map(([status, answer]) => {
    const schema = Object.values(answer.content ?? {})[0]?.schema;
    return h("tr", {}, h("td", {}, h("code", {}, status)), h("td", {}, words(answer.description)), h("td", { class: "muted" }, schema ? kind(schema) : ""));
  }))));
}

function resolve(schema) {
  if (!schema) return null;
  if (schema.$ref) return resolve(spec.components.schemas[schema.$ref.split("/").at(-1)]);
  return schema.anyOf ? resolve(schema.anyOf.find((one) => one.type !== "null")) : schema;
}

function kind(schema = {}) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.anyOf) return schema.anyOf.filter((one) => one.type !== "null").map(kind).join(" or ");
  if (schema.enum) return schema.enum.join(" | ");
  if (schema.type === "array") return `list of ${kind(schema.items)}`;
  return schema.format ?? schema.type ?? "anything";
}

function trial(path, method, call) {
  const inputs = (call.parameters ?? []).map((row) => [row, h("input", { name: row.name, autocomplete: "off", placeholder: row.schema?.default ?? (row.required ? "required" : "") })]);
  const schema = bodySchema(call);
  const example = schema && (schema.examples?.[0] ?? {});
  const text = schema && h("textarea", { name: "body", spellcheck: "false", value: JSON.stringify(example, null, 2) });
  const output = h("pre", { hidden: true });
  const run = async (event) => {
    event.preventDefault();
    const { url, query } = address(path, inputs);
    const answer = await fetch(url + query, { method, headers: text ? { "content-type": "application/json" } : {}, body: text?.value });
    const words = await answer.text();
    output.hidden = false;
    output.textContent = `${answer.status} ${answer.statusText}\n\n${pretty(words).slice(0, 20_000)}`;
  };
  return h("form", { class: "try", onsubmit: run },
    h("h3", {}, "Try it"),
    inputs.length > 0 && h("div", { class: "fields" }, inputs.map(([row, input]) => h("label", {}, row.name, input))),
    text && h("label", {}, "Body", text),
    h("div", { class: "row" }, h("button", { class: "primary", type: "submit" }, "Send"), h("code", { class: "muted" }, `curl -X ${method} ${location.origin}${path}`)),
    output);
}

function address(path, inputs) {
  let url = path;
  const query = new URLSearchParams();
  for (const [row, input] of inputs) {
    if (row.in === "path") url = url.replace(`{${row.name}}`, encodeURIComponent(input.value));
    else if (input.value !== "") query.set(row.name, input.value);
  }
  return { url, query: query.size ? `?${query}` : "" };
}

function pretty(text) {
  try {
    return JSON.stringify(parse(text), null, 2);
  } catch {
    return text;
  }
}

start();
