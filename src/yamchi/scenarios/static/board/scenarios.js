// The page of scenarios: which there are, their runs, and the timeline of the chosen one as a picture.

import { get, post } from "/board/api.js";
import { told } from "/board/dialogs.js";
import { h } from "/board/dom.js";

const at = (id) => document.querySelector(`#${id}`);
let scenario = "";
let run = "";
let problems = [];

const tell = (act) => told(async () => await act() ?? problems.join(" "));

function button(label, act, detail) {
  return h("button", { type: "button", onclick: () => tell(act) }, label, detail && h("small", {}, detail));
}

function picture(path, label) {
  at("picture").replaceChildren(h("img", { src: `/api/v1${path}`, alt: label }));
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
  if (isRunning) at("picture").append(h("div", { class: "acts" }, button("Stop this run", () => stop(id))));
  mark();
}

async function stop(id) {
  const done = await post(`/v1/runs/${encodeURIComponent(id)}/stop`, {});
  await runs();
  await show(id, false);
  return done.on_its_way ? `The message of ${done.on_its_way} was on its way already.` : undefined;
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
  if (!scenario && found.scenarios.length) await choose(found.scenarios[0].scenario);
}

function row(one) {
  const due = one.due_at && new Date(one.due_at).toLocaleString();
  return h("tr", { "data-id": one.run_id },
    h("td", {}, button(one.key, () => show(one.run_id, one.status === "running"))),
    [one.status, one.step, due, one.reason].map((text) => h("td", {}, text)));
}

async function runs() {
  const wanted = new URLSearchParams({ scenario, limit: "100" });
  for (const name of ["key", "status"]) if (at(name).value) wanted.set(name, at(name).value);
  const found = await get(`/v1/runs?${wanted}`);
  at("runs").replaceChildren(...found.runs.map(row));
  mark();
}

at("search").addEventListener("submit", (event) => { event.preventDefault(); tell(runs); });
await tell(names);
setInterval(() => document.hidden || tell(runs), 5000);
