// Leads: who left a form, how far they are, and what was done for one of them.

import { get, query } from "/board/api.js";
import { h } from "/board/dom.js";
import { exact } from "/board/format.js";
import { badge, facts, link, listing, timeline, when } from "/board/listing.js";

const KINDS = { NEW: "delayed", CALL_NEEDED: "failed", BOT_STARTED: "active", LESSON_BOOKED: "active", CONFIRMED: "completed", CANCELLED: "cancelled" };
const path = (id) => `/v1/leads/${encodeURIComponent(id)}`;
const page = (id) => `#/leads/${encodeURIComponent(id)}`;
const steps = (lead) => [["bot_activated", "bot"], ["email_1_sent", "letter 1"], ["email_2_sent", "letter 2"], ["confirmed", "confirmed"]].filter(([name]) => lead[name]).map(([, word]) => badge("plain", word));
const label = (name) => name[0].toUpperCase() + name.slice(1).replaceAll("_", " ");
const shown = (name, value) => (value === true ? "yes" : /(_at|_datetime)$/.test(name) ? exact(value) : value);
const status = (lead) => badge(KINDS[lead.status] ?? "plain", lead.status);

export const view = listing({
  path: "#/leads",
  title: "Leads",
  filters: [{ name: "search", label: "Name, e-mail, phone or id" }, { name: "status", label: "Status, such as NEW" }],
  ask: async (values) => {
    const found = await get(`/v1/leads${query(values)}`);
    return { items: found.items, next: found.next_cursor && { ...values, cursor: found.next_cursor } };
  },
  above: () => h("a", { class: "button", href: "/api/v1/leads/export.csv", download: "leads.csv" }, "CSV"),
  columns: [["Lead"], ["Status"], ["Contacts"], ["Done"], ["Lesson"], ["Since", "num"]],
  row: (lead) => h("tr", link(lead.id, page(lead.id)),
    h("td", { class: "wide" }, h("a", { class: "name", href: page(lead.id) }, lead.name ?? lead.id), h("br"), h("small", {}, lead.source)),
    h("td", {}, status(lead)),
    h("td", { class: "wide" }, [lead.email, lead.phone, lead.tg_id && `Telegram ${lead.tg_id}`].filter(Boolean).join(" · ")),
    h("td", {}, h("div", { class: "row tight" }, steps(lead))),
    h("td", { class: "muted" }, lead.lesson_datetime ? exact(lead.lesson_datetime) : "–"),
    when(lead.created_at)),
  empty: "No leads yet. They come from a form on the site: docs/leads.md.",
  one: {
    load: (id) => get(path(id)),
    render: (lead) => [
      h("div", { class: "crumbs", key: "crumbs" }, h("a", { href: "#/leads" }, "Leads"), " / ", lead.source),
      h("div", { class: "row", key: "head" }, h("h1", {}, lead.name ?? lead.id), status(lead)),
      h("div", { class: "columns", key: "columns" },
        h("div", { class: "stack" }, facts("Lead", Object.entries(lead).filter(([, value]) => typeof value !== "object").map(([name, value]) => [label(name), shown(name, value)]))),
        h("div", { class: "stack" }, timeline("Log", lead.log.map((line) => ["delayed", line.text, line.at, Object.keys(line.data).length > 0 && JSON.stringify(line.data)])))),
    ],
  },
});
