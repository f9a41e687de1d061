// Reports: what was made, its file, and asking for another.

import { get, post, query, request } from "/board/api.js";
import { ask, attempt, form, note, readJson } from "/board/dialogs.js";
import { h } from "/board/dom.js";
import { size } from "/board/format.js";
import { badge, listing, when } from "/board/listing.js";

const KINDS = { queued: "delayed", ready: "completed", failed: "failed" };
const path = (id) => `/v1/reports/${encodeURIComponent(id)}`;

export const view = listing({
  path: "#/reports",
  title: "Reports",
  ask: async (values) => {
    const [found, kinds] = await Promise.all([get(`/v1/reports${query(values)}`), get("/v1/reports/kinds")]);
    return { items: found.items, kinds, next: found.next_before && { ...values, before: found.next_before } };
  },
  above: ({ kinds }, context) => h("button", { acts: true, class: "primary", type: "button", onclick: () => create(kinds).then(context.refresh) }, "New report"),
  columns: [["Report"], ["State"], ["Format"], ["Size", "num"], ["Asked for", "num"], [""]],
  row: (one, context) => h("tr", { key: one.id },
    h("td", { class: "wide" }, h("span", { class: "name" }, one.title ?? one.kind), h("br"), h("small", {}, one.kind), one.error && h("div", { class: "error" }, one.error)),
    h("td", {}, badge(KINDS[one.status] ?? "plain", one.status)),
    h("td", {}, one.format),
    h("td", { class: "num muted" }, one.size ? size(one.size).replace("characters", "bytes") : "–"),
    when(one.created_at),
    h("td", { class: "end" }, h("div", { class: "row tight" },
      one.status === "ready" && h("a", { href: `/api${path(one.id)}/file` }, "Open"),
      h("button", { acts: true, class: "small danger", type: "button", onclick: () => remove(one, context) }, "Delete")))),
  empty: "No report yet.",
});

async function create(kinds) {
  const made = await form({
    title: "A new report",
    yes: "Make it",
    body: () => [
      h("div", { class: "fields" },
        h("label", {}, "Kind", h("select", { name: "kind" }, kinds.map((kind) => h("option", { value: kind.name, title: kind.summary }, kind.name)))),
        h("label", {}, "Format", h("select", { name: "as" }, ["pdf", "xlsx", "csv"].map((one) => h("option", {}, one))))),
      h("label", {}, "Params (JSON)", h("textarea", { name: "params", spellcheck: "false", value: "{}" })),
    ],
    read: (elements) => ({ kind: elements.kind.value, format: elements.as.value, params: readJson(elements.params.value) }),
    act: (wanted) => post("/v1/reports", wanted),
  });
  if (made) note("Asked for; it appears here when it is ready.");
}

async function remove(one, { refresh }) {
  if (!(await ask("Delete this report?", "Its file and its link go too.", "Delete"))) return;
  await attempt(() => request("DELETE", path(one.id)), "Deleted.");
  refresh();
}
