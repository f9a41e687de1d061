// The page of scenarios: which there are, their runs, and the timeline of the chosen one as a picture.

import { get, post } from "/board/api.js";
import { attempt, told } from "/board/dialogs.js";
import { h } from "/board/dom.js";
import { exact } from "/board/format.js";
import { badge } from "/board/listing.js";

const KINDS = { running: "active", finished: "completed", stopped: "cancelled", failed: "failed" };
const at = (id) => document.querySelector(`#${id}`);
let scenario = "";
let run = "";
let offered = "";
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
  if (isRunning) at("picture").append(h("button", { acts: true, type: "button", onclick: () => attempt(() => stop(id), (said) => said) }, "Stop this run") ?? "");
  mark();
}

async function stop(id) {
  const done = await post(`/v1/runs/${encodeURIComponent(id)}/stop`, {});
  await runs();
  await show(id, false);
  return done.on_its_way ? `Stopped. The message of ${done.on_its_way} was on its way already.` : "Stopped.";
}

function mark() {
  for (const row of at("runs").querySelectorAll("tr")) row.setAttribute("aria-current", String(row.dataset.id === run));
}

function offer(scenarios) {
  at("names").replaceChildren(...scenarios.map((one) => {
    const made = button(one.title || one.scenario, () => choose(one.scenario), `${one.scenario} · ${one.steps.length} steps`);
    made.setAttribute("aria-current", String(one.scenario === scenario));
    return made;
  }));
}

// The files may be edited while this page is open. Buttons that say the same stay, and with them the focus.
async function names() {
  const found = await get("/v1/scenarios");
  problems = found.problems;
  const listed = JSON.stringify([scenario, found.scenarios]);
  if (listed !== offered) offer(found.scenarios);
  offered = listed;
  if (!scenario && found.scenarios.length) await choose(found.scenarios[0].scenario);
}

function row(one) {
  return h("tr", { "data-id": one.run_id },
    h("td", {}, button(one.key, () => show(one.run_id, one.status === "running"))),
    h("td", {}, badge(KINDS[one.status], one.status)),
    [one.step, exact(one.due_at), one.reason].map((text) => h("td", {}, text)));
}

async function runs() {
  const wanted = new URLSearchParams({ scenario, limit: "100" });
  for (const name of ["key", "status"]) if (at(name).value) wanted.set(name, at(name).value);
  const found = await get(`/v1/runs?${wanted}`);
  at("runs").replaceChildren(...found.runs.map(row));
  at("none").hidden = found.runs.length > 0;
  at("none").textContent = at("key").value || at("status").value ? "No run matches." : "No runs yet.";
  mark();
}

at("search").addEventListener("submit", (event) => { event.preventDefault(); tell(runs); });
await tell(names);
setInterval(() => document.hidden || tell(async () => { await names(); await runs(); }), 5000);
