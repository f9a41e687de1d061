// One queue: its pace, its jobs by state with search and paging, and what can be done to them.

import { get, post, query, queuePath, to } from "/board/api.js";
import { addJob, cleanQueue } from "/board/actions.js";
import { chart, pace } from "/board/charts.js";
import { ask, attempt } from "/board/dialogs.js";
import { h } from "/board/dom.js";
import { ago, between, count, exact } from "/board/format.js";
import { badge, link, typed } from "/board/listing.js";
import { toggle } from "/board/overview.js";

const STATES = ["waiting", "active", "delayed", "completed", "failed", "cancelled", "expired"];
const BULK = { failed: ["retry", "remove"], completed: ["retry", "remove"], cancelled: ["retry", "remove"], expired: ["retry", "remove"], delayed: ["promote", "remove"], waiting: ["remove"] };
const DONE = { retry: "put back", remove: "removed", promote: "promoted" };

const chosen = new Set();
let chosenIn = "";

const options = ({ query }) => ({ state: query.get("state") ?? "", q: query.get("q") ?? "", page: Number(query.get("page") ?? 1) });

export const queue = {
  title: ({ names }) => names[0],
  load: async ({ names: [name], query: given }) => {
    const { state, q, page } = options({ query: given });
    const [info, jobs] = await Promise.all([get(queuePath(name)), get(`${queuePath(name)}/jobs${query({ state, q, page })}`)]);
    return { info, jobs };
  },
  render: ({ info, jobs }, context) => {
    forgetOthers(info.name, context);
    return [
      head(info, context.refresh),
      info.error && h("div", { class: "card banner", key: "error" }, info.error),
      h("div", { class: "card chart-card", key: "chart" },
        h("div", { class: "row" }, h("b", {}, `${count(pace(info.history))} per minute`), h("span", { class: "muted" }, "last 60 minutes"), h("span", { class: "grow" }), h("small", {}, about(info))),
        chart(info.history)),
      h("div", { class: "card", key: "jobs" }, tabs(info, options(context).state, false), tools(info, jobs, context), list(info, jobs, context), foot(info, jobs, context)),
    ];
  },
};

function about(info) {
  const handled = info.jobs.length ? `jobs: ${info.jobs.join(", ")}` : "no handlers in this application";
  return `${handled} · ${info.concurrency} at once per worker`;
}

export function head(info, refresh) {
  return h("div", { class: "row head", key: "head" },
    h("h1", {}, info.name), h("span", { class: "badge plain" }, info.type), info.paused && h("span", { class: "badge paused" }, "paused"),
    info.warning && h("span", { class: "badge paused", title: info.warning }, "no worker"),
    h("span", { class: "grow" }),
    h("button", { acts: true, class: "primary", type: "button", onclick: () => addJob(info).then(refresh) }, "Add job"),
    toggle(info, refresh),
    h("button", { acts: true, type: "button", onclick: () => cleanQueue(info).then(refresh) }, "Clean"));
}

export function tabs(info, state, isLetters) {
  const tab = (label, value, number, href, isHere) => h("a", { href, "aria-current": isHere && "page", key: `tab-${label}` }, label, number > 0 && h("i", { class: value }, count(number)));
  const all = STATES.reduce((sum, name) => sum + info.counts[name], 0);
  return h("div", { class: "tabs", role: "navigation" },
    tab("all", "", all, to.queue(info.name), !state && !isLetters),
    STATES.map((name) => tab(name, name, info.counts[name], to.queue(info.name, { state: name }), state === name)),
    tab("dead letters", "failed", info.dead_letters, to.letters(info.name), isLetters));
}

function tools(info, jobs, context) {
  const { state, q } = options(context);
  const bulk = (BULK[state] ?? []).map((act) => h("button", { acts: true, class: `small${act === "remove" ? " danger" : ""}`, type: "button", disabled: chosen.size === 0, onclick: () => actOnChosen(info, act, context) }, label(act)));
  return h("div", { class: "row tools" },
    searchBox(`${info.name} ${state}`, q, (value) => { location.hash = to.queue(info.name, { state, q: value }); }),
    h("span", { class: "grow" }),
    bulk.length > 0 && chosen.size > 0 && h("span", { class: "muted" }, `${chosen.size} chosen`),
    bulk,
    state === "failed" && h("button", { acts: true, class: "small", type: "button", disabled: info.counts.failed === 0, onclick: () => retryAll(info, context) }, "Retry all"));
}

/** `place` tells one box from another: going elsewhere empties it, typing does not. */
export const searchBox = (place, value, search) => typed(`search ${place}`, value, search, { placeholder: "Search id, name or data", "aria-label": "Search" });

const label = (act) => act[0].toUpperCase() + act.slice(1);

async function actOnChosen(info, act, { refresh }) {
  const ids = [...chosen];
  if (act === "remove" && !(await ask(`Remove ${ids.length} jobs?`, "They can't be brought back.", "Remove"))) return;
  await attempt(() => post(`${queuePath(info.name)}/${act}`, { ids }), (done) => `${done.count} ${DONE[act]}.`);
  chosen.clear();
  refresh();
}

async function retryAll(info, { refresh }) {
  if (!(await ask(`Retry ${count(info.counts.failed)} failed jobs?`, "Each gets all its attempts again; their dead letters go away.", "Retry all", false))) return;
  await attempt(() => post(`${queuePath(info.name)}/retry-all`), (done) => `${count(done.count)} jobs put back.`);
  refresh();
}

function forgetOthers(name, context) {
  const here = `${name} ${context.query}`;
  if (here !== chosenIn) chosen.clear();
  chosenIn = here;
}

function list(info, { jobs }, context) {
  const { state, q } = options(context);
  if (!jobs.length) return h("p", { class: "empty" }, q ? `No job contains “${q}”.` : state ? `No ${state} jobs.` : "No jobs yet.");
  const hasBulk = state in BULK;
  const all = jobs.every((job) => chosen.has(job.id));
  const chooseAll = () => { jobs.forEach((job) => (all ? chosen.delete(job.id) : chosen.add(job.id))); context.show(); };
  return h("div", { class: "scroll" }, h("table", { class: "cards" },
    h("thead", {}, h("tr", {},
      hasBulk && h("th", { acts: true, class: "check" }, h("input", { type: "checkbox", checked: all, "aria-label": "Choose all", onchange: chooseAll })),
      h("th", {}, "Id"), h("th", {}, "Job"), h("th", {}, "State"), h("th", { class: "num" }, "Tries"), h("th", {}, "Data"), h("th", { class: "num" }, "When"))),
    h("tbody", {}, jobs.map((job) => row(info, job, hasBulk, context)))));
}

function row(info, job, hasBulk, context) {
  const choose = () => { chosen.has(job.id) ? chosen.delete(job.id) : chosen.add(job.id); context.show(); };
  return h("tr", link(job.id, to.job(info.name, job.id)),
    hasBulk && h("td", { acts: true, class: "check" }, h("input", { type: "checkbox", checked: chosen.has(job.id), "aria-label": `Choose ${job.id}`, onchange: choose })),
    h("td", { class: "id mono" }, h("a", { href: to.job(info.name, job.id), title: job.id }, job.id)),
    h("td", {}, job.name),
    h("td", {}, badge(job.state, job.state), progress(job)),
    h("td", { class: "num optional" }, `${job.attempts_made}/${job.attempts}`),
    h("td", { class: "clip mono wide" }, job.failed_reason ? h("span", { class: "failed" }, job.failed_reason) : job.preview),
    h("td", { class: "num muted end", title: exact(job.finished_at ?? job.started_at ?? job.created_at) }, when(job)));
}

export function progress(job) {
  if (typeof job.progress !== "number" || job.state !== "active") return null;
  const bar = h("i");
  bar.style.width = `${Math.min(100, Math.max(0, job.progress))}%`;
  return h("div", { class: "bar", title: `${job.progress} %` }, bar);
}

function when(job) {
  if (job.state === "delayed") return ago(job.run_at);
  if (job.state === "active") return `since ${between(job.started_at, new Date().toISOString())}`;
  return ago(job.finished_at ?? job.created_at);
}

function foot(info, { page, pages, total }, context) {
  const { state, q } = options(context);
  return pager((number) => to.queue(info.name, { state, q, page: number }), page, pages, total);
}

/** `place(number)` is the address of a page. */
export function pager(place, page, pages, total) {
  if (pages <= 1) return null;
  const turn = (number, text, isOff) => h("button", { class: "small", type: "button", disabled: isOff, onclick: () => { location.hash = place(number); } }, text);
  return h("div", { class: "row foot" }, turn(page - 1, "← Newer", page <= 1), h("span", { class: "muted" }, `${count(page)} of ${count(pages)} · ${count(total)} in all`), turn(page + 1, "Older →", page >= pages));
}
