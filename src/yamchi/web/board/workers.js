// Who works: every worker process seen alive of late, and what it runs.

import { get } from "/board/api.js";
import { h } from "/board/dom.js";
import { ago, count, exact } from "/board/format.js";

const SHOWN = 6;

export const workers = {
  title: () => "Workers",
  load: () => get("/workers"),
  render: (list) => [
    h("h1", { key: "head" }, "Workers"),
    h("div", { class: "card scroll", key: "workers" }, list.length ? table(list) : h("p", { class: "empty" }, "No worker is running. Start one with ", h("code", {}, "yamchi worker"), ".")),
  ],
};

function table(list) {
  return h("table", { class: "cards" },
    h("thead", {}, h("tr", {}, h("th", {}, "Worker"), h("th", {}, "Queues"), h("th", {}, "Running"), h("th", { class: "num" }, "Started"), h("th", { class: "num" }, "Seen"))),
    h("tbody", {}, list.map(row)));
}

function row(worker) {
  const more = worker.running.length - SHOWN;
  return h("tr", { key: worker.id },
    h("td", { class: "wide" }, h("span", { class: "name" }, worker.host), h("br"), h("small", { class: "mono" }, worker.id)),
    h("td", { class: "wide" }, h("div", { class: "row tight" }, worker.queues.map((name) => h("a", { class: "badge plain", href: `#/queues/${encodeURIComponent(name)}` }, name)))),
    h("td", { class: "mono wide" }, worker.running.length ? worker.running.slice(0, SHOWN).map((id) => h("div", {}, id)) : h("span", { class: "muted" }, "idle"), more > 0 && h("div", { class: "muted" }, `and ${count(more)} more`)),
    h("td", { class: "num muted", title: exact(worker.started_at), "data-label": "started" }, ago(worker.started_at)),
    h("td", { class: "num muted", title: exact(worker.seen_at), "data-label": "seen" }, ago(worker.seen_at)));
}
