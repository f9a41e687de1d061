// The first page: all queues, live.

import { get, post, queuePath, to } from "/board/api.js";
import { pace, sparkline } from "/board/charts.js";
import { attempt } from "/board/dialogs.js";
import { h } from "/board/dom.js";
import { count, short } from "/board/format.js";
import { link } from "/board/listing.js";

const STATES = ["waiting", "active", "delayed", "completed", "failed"];

export const overview = {
  title: () => "Queues",
  load: async () => {
    const [queues, workers] = await Promise.all([get("/queues"), get("/workers")]);
    return { queues, workers };
  },
  render: ({ queues, workers }, { refresh }) => [
    h("h1", { class: "unseen", key: "title" }, "Queues"),
    h("div", { class: "tiles", key: "tiles" }, tiles(queues, workers)),
    ...problems(queues),
    h("div", { class: "card scroll", key: "queues" }, queues.length ? table(queues, refresh) : h("p", { class: "empty" }, "No queue is declared.")),
  ],
};

function tiles(queues, workers) {
  const sum = (state) => queues.reduce((total, queue) => total + queue.counts[state], 0);
  const perMinute = queues.reduce((total, queue) => total + pace(queue.history), 0);
  return [
    ...["waiting", "active", "delayed", "failed"].map((state) => tile(sum(state), state, state)),
    tile(perMinute, "per minute", "completed"),
    tile(workers.length, workers.length === 1 ? "worker" : "workers", ""),
  ];
}

const tile = (number, label, kind) =>
  h("div", { class: "card tile" }, h("b", { class: number ? kind : "zero", title: count(number) }, short(number)), h("span", {}, label));

/** One line for each engine in trouble, not one for each of its queues. */
function problems(queues) {
  const sentences = new Set(queues.map((queue) => queue.error).filter(Boolean));
  return [...sentences].map((sentence) => h("div", { class: "card banner", key: sentence }, sentence));
}

function table(queues, refresh) {
  return h("table", { class: "cards queues" },
    h("thead", {}, h("tr", {}, h("th", {}, "Queue"), ...STATES.map((state) => h("th", { class: "num" }, state)), h("th", {}, "last 30 min"), h("th"))),
    h("tbody", {}, queues.map((queue) => row(queue, refresh))));
}

function row(queue, refresh) {
  return h("tr", link(queue.name, to.queue(queue.name)),
    h("td", { class: "wide" }, h("div", { class: "row tight" },
      h("a", { class: "name", href: to.queue(queue.name) }, queue.name),
      h("span", { class: "badge plain" }, queue.type),
      queue.paused && h("span", { class: "badge paused" }, "paused"),
      queue.warning && h("span", { class: "badge paused", title: queue.warning }, "no worker"),
      queue.dead_letters > 0 && h("a", { class: "badge failed", href: to.letters(queue.name) }, `${count(queue.dead_letters)} dead ${queue.dead_letters === 1 ? "letter" : "letters"}`))),
    STATES.map((state) => h("td", { class: `num ${queue.counts[state] ? state : "zero"}`, "data-label": state }, count(queue.counts[state]))),
    h("td", { class: "trend" }, sparkline(queue.history)),
    h("td", { class: "num end" }, toggle(queue, refresh, "small")));
}

export function toggle(queue, refresh, kind = "") {
  const act = queue.paused ? "resume" : "pause";
  return h("button", {
    acts: true,
    class: kind, type: "button",
    onclick: async () => { await attempt(() => post(`${queuePath(queue.name)}/${act}`), `${queue.name} ${queue.paused ? "goes on" : "is paused"}.`); refresh(); },
  }, queue.paused ? "Resume" : "Pause");
}
