// The page of media: pictures with their state, where their files are, and what can be done with them.

import { get, request } from "/board/api.js";
import { attempt, told } from "/board/dialogs.js";
import { h } from "/board/dom.js";
import { exact } from "/board/format.js";
import { placeholderURL } from "/media-page/thumbhash.js";

const at = (id) => document.querySelector(`#${id}`);
const SIZE = 24;
const THUMB = 240; // pixels a card shows
let page = 1;

function button(label, path, done, method = "POST") {
  const act = async () => {
    await request(method, `/admin/media${path}`);
    await list();
  };
  return h("button", { type: "button", onclick: () => attempt(act, done) }, label);
}

/** The smallest variant that fills a card, over its placeholder. */
function frame(one) {
  const variants = Object.values(one.variants).sort((a, b) => a.width - b.width);
  const shown = variants.find((variant) => variant.width >= THUMB) ?? variants.at(-1);
  const isGone = one.status === "soft_deleted";
  const made = h("a", { class: "frame", href: shown && !isGone ? shown.url : null });
  if (one.placeholder) made.style.backgroundImage = `url(${placeholderURL(one.placeholder)})`;
  if (shown && !isGone) made.append(h("img", { src: shown.url, alt: one.metadata.alt ?? one.originalFilename, loading: "lazy" }));
  return made;
}

function place(one) {
  const variants = Object.values(one.variants);
  const synced = variants.filter((variant) => variant.isSynced).length;
  if (!variants.length) return null;
  if (!synced) return "on this machine";
  return synced === variants.length ? "in the bucket" : `${synced} of ${variants.length} in the bucket`;
}

function facts(one) {
  const state = h("span", { class: `badge ${STATES[one.status]}` }, one.status === "soft_deleted" ? "deleted" : one.status);
  const rest = [one.entityType, one.width ? `${one.width} × ${one.height}` : null, bytes(one.size), place(one), one.watermark ? "watermark" : null];
  return h("div", { class: "facts" }, state, ...rest.filter(Boolean).map((text) => h("span", { class: "muted" }, text)));
}

const STATES = { processing: "active", ready: "completed", failed: "failed", soft_deleted: "delayed" };

function bytes(size) {
  if (!size) return null;
  return size < 1e6 ? `${Math.ceil(size / 1e3)} KB` : `${(size / 1e6).toFixed(1)} MB`;
}

function acts(one) {
  const id = encodeURIComponent(one.id);
  const name = one.originalFilename;
  const remove = () => button("Delete", `/${id}`, `${name} is deleted; it can be restored.`, "DELETE");
  const found = {
    soft_deleted: () => [button("Restore", `/${id}/restore`, `${name} is back.`)],
    ready: () => [button("Make anew", `/${id}/reprocess`, `${name} is made anew.`), remove()],
    failed: () => [remove()],
    processing: () => [],
  };
  return h("div", { class: "acts" }, ...found[one.status]());
}

function card(one) {
  const when = exact(one.createdAt);
  return h("li", { class: "card", "data-id": one.id },
    frame(one),
    h("b", { class: "name", title: one.id }, one.originalFilename),
    facts(one),
    one.error ? h("div", { class: "error" }, one.error) : null,
    h("small", { class: "muted" }, one.userId ? `${when} · ${one.userId}` : when),
    acts(one));
}

let shown = "";

async function list() {
  const wanted = new URLSearchParams({ page, size: SIZE });
  for (const name of ["status", "entityType", "userId"]) if (at(name).value) wanted.set(name, at(name).value);
  const found = await get(`/admin/media?${wanted}`);
  const news = JSON.stringify(found.items);
  if (news !== shown) at("pictures").replaceChildren(...found.items.map(card)); // a card that is the same is left alone
  shown = news;
  at("none").hidden = found.total > 0;
  at("none").textContent = ["status", "entityType", "userId"].some((name) => at(name).value) ? "No picture matches." : "No pictures yet.";
  at("place").textContent = found.pages > 1 ? `${page} of ${found.pages}` : "";
  at("back").hidden = page <= 1;
  at("on").hidden = page >= found.pages;
  const queues = await get("/admin/media/queue");
  at("queues").textContent = Object.entries(queues).map(([name, one]) => `${name}: ${one.waiting + one.active} to do, ${one.failed} failed`).join(" · ");
}

function turn(by) {
  page += by;
  told(list);
}

at("search").addEventListener("submit", (event) => {
  event.preventDefault();
  page = 1;
  told(list);
});
at("back").addEventListener("click", () => turn(-1));
at("on").addEventListener("click", () => turn(1));
await told(list);
setInterval(() => document.hidden || told(list), 5000);
