// Dead letters of a queue: look, mend, replay, purge.

import { get, letterPath, post, query, queuePath, request, to } from "/board/api.js";
import { ask, attempt, form, note, readJson } from "/board/dialogs.js";
import { h } from "/board/dom.js";
import { ago, count, exact } from "/board/format.js";
import { head, pager, searchBox, tabs } from "/board/queue.js";

const options = ({ query }) => ({ q: query.get("q") ?? "", page: Number(query.get("page") ?? 1) });

export const letters = {
  title: ({ names }) => `Dead letters of ${names[0]}`,
  load: async ({ names: [name], query: given }) => {
    const [info, found] = await Promise.all([get(queuePath(name)), get(`${queuePath(name)}/dlq${query(options({ query: given }))}`)]);
    return { info, found };
  },
  render: ({ info, found }, context) => [
    head(info, context.refresh),
    h("div", { class: "card", key: "letters" }, tabs(info, "", true), tools(info, found, context), list(info, found, context), foot(info, found, context)),
  ],
};

function tools(info, found, context) {
  const { q } = options(context);
  const isEmpty = found.total === 0;
  return h("div", { class: "row tools" },
    searchBox(`letters ${info.name}`, q, (value) => { location.hash = to.letters(info.name, { q: value }); }),
    h("span", { class: "grow" }),
    h("button", { acts: true, class: "small", type: "button", disabled: isEmpty, onclick: () => replayAll(info, found, q, context) }, "Replay all"),
    h("button", { acts: true, class: "small danger", type: "button", disabled: info.dead_letters === 0, onclick: () => purgeAll(info, context) }, "Purge all"));
}

async function replayAll(info, found, q, { refresh }) {
  if (!(await ask(`Replay ${count(found.total)} letters?`, "Each job goes back to its queue with all its attempts. What never was a job stays.", "Replay all", false))) return;
  await attempt(() => post(`${queuePath(info.name)}/dlq/replay-all${query({ q })}`), (done) => `${count(done.count)} replayed.`);
  refresh();
}

async function purgeAll(info, { refresh }) {
  if (!(await ask(`Purge ${count(info.dead_letters)} letters?`, "They can't be brought back.", "Purge all"))) return;
  await attempt(() => post(`${queuePath(info.name)}/dlq/purge-all`), (done) => `${count(done.count)} purged.`);
  refresh();
}

function list(info, found, context) {
  if (!found.letters.length) return h("p", { class: "empty" }, options(context).q ? "No letter contains that." : "No dead letters. Jobs whose attempts are used up come here.");
  return h("div", { class: "scroll" }, h("table", { class: "cards" },
    h("thead", {}, h("tr", {}, h("th", {}, "Id"), h("th", {}, "Job"), h("th", {}, "Error"), h("th", { class: "num" }, "Failed"), h("th"))),
    h("tbody", {}, found.letters.map((letter) => row(info, letter, context)))));
}

function row(info, letter, { refresh }) {
  const path = letterPath(info.name, letter.id);
  const replay = async () => { await attempt(() => post(`${path}/replay`), "Replayed."); refresh(); };
  const purge = async () => {
    if (!(await ask("Purge this letter?", `${letter.id} can't be brought back.`, "Purge"))) return;
    await attempt(() => request("DELETE", path), "Purged.");
    refresh();
  };
  return h("tr", { key: letter.id },
    h("td", { class: "id mono", title: letter.id }, h("a", { href: to.job(info.name, letter.id) }, letter.id)),
    h("td", {}, letter.name ?? "–"),
    h("td", { class: "clip wide", title: letter.preview }, h("span", { class: "failed" }, letter.error)),
    h("td", { class: "num muted", title: exact(letter.failed_at) }, ago(letter.failed_at)),
    h("td", { class: "num end" }, h("div", { class: "row tight" },
      h("button", { acts: true, class: "small", type: "button", onclick: replay }, "Replay"),
      h("button", { acts: true, class: "small", type: "button", onclick: () => mend(letter, path).then(refresh) }, "Edit"),
      h("button", { acts: true, class: "small danger", type: "button", onclick: purge }, "Purge"))));
}

async function mend(letter, path) {
  let whole;
  try {
    whole = await get(path);
  } catch (error) {
    note(error.message, true);
    return;
  }
  const before = "job" in whole.body ? JSON.stringify(whole.body.job, null, 2) : whole.body.raw_value;
  const done = await form({
    title: "Edit and replay",
    yes: "Replay",
    body: () => [h("p", { class: "error" }, whole.error), h("label", {}, "Data (JSON)", h("textarea", { name: "data", rows: 14, spellcheck: "false", value: before }))],
    read: (elements) => ({ data: readJson(elements.data.value) }),
    act: (mended) => post(`${path}/replay`, mended),
  });
  if (done) note(`${letter.id} replayed.`);
}

function foot(info, { page, pages, total }, context) {
  const { q } = options(context);
  return pager((number) => to.letters(info.name, { q, page: number }), page, pages, total);
}
