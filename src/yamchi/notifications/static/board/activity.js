// What became of each message: deliveries with their status, and the whole way of one of them.

import { get, post, query, request, to } from "/board/api.js";
import { chart, pace } from "/board/charts.js";
import { h } from "/board/dom.js";
import { count, exact } from "/board/format.js";
import { acts, badge, facts, link, listing, numbered, timeline, when } from "/board/listing.js";
import { section } from "/board/viewer.js";

const SIZE = 50;
const KINDS = { SENT: "completed", FAILED: "failed", RETRYING: "waiting", QUEUED: "delayed", EXPIRED: "expired", CANCELLED: "cancelled", SUPPRESSED: "cancelled", UNKNOWN: "waiting" };
const STEPS = { sent: "completed", failed: "failed", retrying: "waiting", queued: "delayed", unknown: "waiting" };
const path = (id) => `/v1/notifications/${encodeURIComponent(id)}`;
const page = (id) => `#/activity/${encodeURIComponent(id)}`;
const status = (one) => badge(KINDS[one.status] ?? "plain", one.status);

const list = listing({
  path: "#/activity",
  title: "Notifications",
  filters: [{ name: "status", label: "Status", options: Object.keys(KINDS) }, { name: "user_id", label: "User id" }, { name: "campaign_id", label: "Campaign" }, { name: "event_id", label: "Event id" }],
  ask: async (values) => {
    const [items, queue] = await Promise.all([get(`/v1/notifications${query({ ...values, size: SIZE })}`), get("/queues/notifications")]);
    return { items, queue, next: numbered(values, items, SIZE) };
  },
  columns: [["Status"], ["Channel"], ["Message"], ["For"], ["Because of"], ["Tries", "num"], ["When", "num"]],
  row: (one) => h("tr", link(one.job_id, page(one.job_id)),
    h("td", {}, status(one)),
    h("td", {}, one.channel),
    h("td", { class: "wide" }, h("a", { class: "name", href: page(one.job_id) }, one.template_code), one.last_error && h("div", { class: "error" }, one.last_error)),
    h("td", { class: "id mono", title: one.user_id }, one.user_id),
    h("td", { class: "id mono", title: one.campaign_id ?? one.event_id }, one.campaign_id ?? one.event_id),
    h("td", { class: "num optional" }, count(one.attempts)),
    when(one.updated_at)),
  empty: "No message yet. One goes out when an event meets a rule: POST /api/v1/events.",
  one: { load: (id) => get(path(id)), render: whole },
});

export const view = {
  ...list,
  render: (data, context) => {
    const shown = list.render(data, context);
    if (!data.queue) return shown;
    const { history } = data.queue;
    const graph = h("div", { class: "card chart-card", key: "chart" },
      h("div", { class: "row" }, h("b", {}, `${count(pace(history))} per minute`), h("span", { class: "muted" }, "last 60 minutes")), chart(history));
    return [shown[0], graph, ...shown.slice(1)];
  },
};

function whole(one, context) {
  return [
    h("div", { class: "crumbs", key: "crumbs" }, h("a", { href: "#/activity" }, "Notifications"), " / ", one.channel),
    h("div", { class: "row", key: "head" }, h("h1", {}, one.template_code), status(one), h("span", { class: "grow" }), actions(one, context)),
    h("div", { class: "columns", key: "columns" },
      h("div", { class: "stack" },
        one.last_error && h("div", { class: "card banner", key: "error" }, one.last_error),
        one.job && section("Message", one.job, `message ${one.job_id}`, context.show)),
      h("div", { class: "stack" },
        timeline("Timeline", one.timeline.map((step) => [STEPS[step.what] ?? "delayed", told(step), step.at, step.error ?? step.answer])),
        facts("Delivery", [["For", one.user_id], ["Event", one.event_id], ["Campaign", one.campaign_id], ["Variant", one.variant], ["Due", one.due_at && exact(one.due_at)],
          ["Provider's id", one.provider_message_id], ["Job", h("a", { href: to.job("notifications", one.job_id) }, one.job_id)]]))),
  ];
}

const told = (step) => step.what[0].toUpperCase() + step.what.slice(1) + (step.attempt > 1 ? `, try ${step.attempt}` : "");

function actions(one, context) {
  if (one.status === "UNKNOWN") {
    return [acts("It arrived", () => post(`${path(one.job_id)}/confirm`), "Noted as sent.", context, ""), acts("Send again", () => post(`${path(one.job_id)}/resend`), "On its way again.", context, "")];
  }
  return ["QUEUED", "RETRYING"].includes(one.status) && acts("Cancel", () => request("DELETE", path(one.job_id)), "Cancelled.", context, "danger");
}
