// Payments: what was asked for, what became of it, and asking the provider again.

import { get, post, query } from "/board/api.js";
import { ask, attempt } from "/board/dialogs.js";
import { h } from "/board/dom.js";
import { exact } from "/board/format.js";
import { acts, badge, facts, link, listing, when } from "/board/listing.js";
import { section } from "/board/viewer.js";

const KINDS = { new: "waiting", pending: "waiting", waiting_for_capture: "active", succeeded: "completed", canceled: "cancelled", refused: "failed" };
const path = (id) => `/v1/payments/${encodeURIComponent(id)}`;
const page = (id) => `#/payments/${encodeURIComponent(id)}`;
const money = (one) => `${one.amount} ${one.currency}`;
const status = (one) => badge(KINDS[one.status] ?? "plain", one.status);

export const view = listing({
  path: "#/payments",
  title: "Payments",
  filters: [{ name: "status", label: "Status", options: Object.keys(KINDS) }, { name: "order_id", label: "Order id" }],
  ask: async (values) => {
    const found = await get(`/v1/payments${query(values)}`);
    return { items: found.items, next: found.next_before && { ...values, before: found.next_before } };
  },
  columns: [["Payment"], ["Status"], ["Amount", "num"], ["Provider"], ["Order"], ["Asked for", "num"]],
  row: (one) => h("tr", link(one.id, page(one.id)),
    h("td", { class: "wide" }, h("a", { class: "name mono", href: page(one.id) }, one.id), one.description && h("div", { class: "muted" }, one.description)),
    h("td", {}, status(one)),
    h("td", { class: "num" }, money(one)),
    h("td", {}, one.provider),
    h("td", { class: "id mono" }, one.order_id ?? "–"),
    when(one.created_at)),
  empty: "No payments yet: POST /api/v1/payments asks for one.",
  one: {
    load: (id) => get(path(id)),
    render: (one, context) => [
      h("div", { class: "crumbs", key: "crumbs" }, h("a", { href: "#/payments" }, "Payments"), " / ", one.provider),
      h("div", { class: "row", key: "head" }, h("h1", {}, money(one)), status(one), h("span", { class: "grow" }), actions(one, context)),
      h("div", { class: "columns", key: "columns" },
        h("div", { class: "stack" },
          one.reason && h("div", { class: "card banner", key: "reason" }, one.reason),
          section("Events", one.events, `events ${one.id}`, context.show),
          one.refunds.length > 0 && section("Refunds", one.refunds, `refunds ${one.id}`, context.show)),
        h("div", { class: "stack" }, facts("Payment", [["Id", one.id], ["Provider's id", one.provider_id], ["Order", one.order_id], ["For", one.user_id], ["Captured", one.captured], ["Refunded", one.refunded],
          ["Asked for", exact(one.created_at)], ["Final", one.final_at && exact(one.final_at)], ["Description", one.description]]))),
    ],
  },
});

const units = (amount) => BigInt(amount.replace(".", ""));

/** What can still be given back: captured, and neither given back nor on its way. */
function left(one) {
  const going = one.refunds.filter((refund) => ["new", "pending", "succeeded"].includes(refund.status));
  const asked = going.reduce((sum, refund) => sum + units(refund.amount), 0n);
  const rest = units(one.captured) - (asked > units(one.refunded) ? asked : units(one.refunded));
  if (rest <= 0n) return null;
  const digits = (one.captured.split(".")[1] ?? "").length;
  const text = String(rest).padStart(digits + 1, "0");
  return digits ? `${text.slice(0, -digits)}.${text.slice(-digits)}` : text;
}

function actions(one, context) {
  const amount = left(one);
  const refund = async () => {
    if (!(await ask(`Give back ${amount} ${one.currency}?`, "The provider pays it back to the customer.", "Refund"))) return;
    await attempt(() => post(`${path(one.id)}/refund`, { amount }), "Asked for.");
    context.refresh();
  };
  return [
    !one.final_at && acts("Ask the provider", () => post(`${path(one.id)}/check`), "Asked.", context, ""),
    one.status === "waiting_for_capture" && acts("Capture", () => post(`${path(one.id)}/capture`, {}), "Captured.", context, "primary"),
    one.status === "succeeded" && amount && h("button", { acts: true, class: "danger", type: "button", key: "refund", onclick: refund }, "Refund"),
  ];
}
