// The page of scenarios: which there are, their runs, and the timeline of the chosen one as a picture.

import { get, post } from "/board/api.js";

const at = (id) => document.querySelector(`#${id}`);
let scenario = "";
let run = "";
let problems = [];

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  made.textContent = text ?? "";
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function button(label, act, detail = "") {
  const made = element("button", label, { type: "button" });
  if (detail) made.append(element("small", detail));
  made.addEventListener("click", () => told(act));
  return made;
}

async function told(act) {
  try {
    at("trouble").textContent = problems.join(" ");
    await act();
  } catch (error) {
    at("trouble").textContent = error.message;
  }
}

function picture(path, label) {
  at("picture").replaceChildren(element("img", "", { src: `/api/v1${path}`, alt: label }));
}

async function choose(name) {
  [scenario, run] = [name, ""];
  picture(`/scenarios/${encodeURIComponent(name)}/picture.svg`, `The scenario ${name}`);
  await names();
  await runs();
}

async function show(id, isRunning) {
  run = id;
  picture(`/runs/${encodeURIComponent(id)}/picture.svg?${Date.now()}`, "The timeline of the run");
  if (isRunning) {
    const acts = element("div", "", { class: "acts" });
    acts.append(button("Stop this run", () => stop(id)));
    at("picture").append(acts);
  }
  mark();
}

async function stop(id) {
  const done = await post(`/v1/runs/${encodeURIComponent(id)}/stop`, {});
  if (done.on_its_way) at("trouble").textContent = `The message of ${done.on_its_way} was on its way already.`;
  await runs();
  await show(id, false);
}

function mark() {
  for (const row of at("runs").querySelectorAll("tr")) row.setAttribute("aria-current", String(row.dataset.id === run));
}

async function names() {
  const found = await get("/v1/scenarios");
  at("names").replaceChildren(...found.scenarios.map((one) => {
    const made = button(one.title || one.scenario, () => choose(one.scenario), `${one.scenario} · ${one.steps.length} steps`);
    made.setAttribute("aria-current", String(one.scenario === scenario));
    return made;
  }));
  problems = found.problems;
  at("trouble").textContent = problems.join(" ");
  if (!scenario && found.scenarios.length) await choose(found.scenarios[0].scenario);
}

function row(one) {
  const made = element("tr", "");
  made.dataset.id = one.run_id;
  const key = element("td", "");
  key.append(button(one.key, () => show(one.run_id, one.status === "running")));
  const due = one.due_at ? new Date(one.due_at).toLocaleString() : "";
  made.append(key, ...[one.status, one.step, due, one.reason].map((text) => element("td", text)));
  return made;
}

async function runs() {
  const wanted = new URLSearchParams({ scenario, limit: "100" });
  for (const name of ["key", "status"]) if (at(name).value) wanted.set(name, at(name).value);
  const found = await get(`/v1/runs?${wanted}`);
  at("runs").replaceChildren(...found.runs.map(row));
  mark();
}

at("search").addEventListener("submit", (event) => { event.preventDefault(); told(runs); });
await told(names);
setInterval(() => document.hidden || told(runs), 5000);
