// Campaigns: how far each is, and pausing, resuming and cancelling it.

import { get, post, query } from "/board/api.js";
import { ask, attempt } from "/board/dialogs.js";
import { h } from "/board/dom.js";
import { count } from "/board/format.js";
import { acts, badge, listing, numbered, when } from "/board/listing.js";

const SIZE = 50;
const KINDS = { draft: "plain", running: "active", paused: "waiting", finished: "completed", cancelled: "cancelled", failed: "failed", planned: "delayed", scheduled: "delayed" };
const ENDED = ["finished", "cancelled", "failed"];
const COUNTED = ["sent", "waiting", "failed", "suppressed", "expired", "cancelled", "unknown"];

export const view = listing({
  path: "#/campaigns",
  title: "Campaigns",
  ask: async (values) => {
    const items = await get(`/v1/campaigns${query({ ...values, size: SIZE })}`);
    return { items, next: numbered(values, items, SIZE) };
  },
  columns: [["Campaign"], ["State"], ["Progress"], ["People"], ["Begun", "num"], [""]],
  row: (one, context) => h("tr", { key: one.campaign_id },
    h("td", { class: "wide" }, h("a", { class: "name", href: `#/activity?campaign_id=${encodeURIComponent(one.campaign_id)}` }, one.campaign_id), h("br"), h("small", {}, `${one.template_code} · ${one.channel}`), one.failure && h("div", { class: "error" }, one.failure)),
    h("td", {}, badge(KINDS[one.state] ?? "plain", one.state)),
    h("td", {}, bar(one.progress)),
    h("td", { class: "wide" }, COUNTED.filter((name) => one.progress[name] > 0).map((name) => `${count(one.progress[name])} ${name}`).join(", ") || "–"),
    when(one.created_at),
    h("td", { class: "end" }, !ENDED.includes(one.state) && h("div", { class: "row tight" }, buttons(one, context)))),
  empty: "No campaign yet: yamchi campaign create --help, or POST /api/v1/campaigns.",
});

function bar({ total, fanned_out: reached, waiting }) {
  if (total === null) return h("small", {}, "not begun: it needs its list, or was refused");
  const done = total ? Math.floor((100 * (reached - waiting)) / total) : 0;
  const filled = h("i");
  filled.style.width = `${Math.min(100, Math.max(0, done))}%`;
  return h("div", { title: `${count(reached - waiting)} of ${count(total)}` }, h("div", { class: "bar" }, filled), h("small", {}, `${done} % of ${count(total)}`));
}

function buttons(one, context) {
  const path = `/v1/campaigns/${encodeURIComponent(one.campaign_id)}`;
  const cancel = async () => {
    if (!(await ask(`Cancel ${one.campaign_id}?`, "Who has not been written to will not be; it can't be begun again.", "Cancel it"))) return;
    await attempt(() => post(`${path}/cancel`), "Cancelled.");
    context.refresh();
  };
  return [
    one.state !== "draft" && (one.state === "paused" ? acts("Resume", () => post(`${path}/resume`), "It goes on.", context) : acts("Pause", () => post(`${path}/pause`), "Paused.", context)),
    h("button", { acts: true, class: "small danger", type: "button", onclick: cancel }, "Cancel"),
  ];
}
