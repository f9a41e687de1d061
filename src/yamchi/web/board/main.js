// The board: picks the view by the address, asks it for data every other second, and shows what it makes of it.
// A view is {title, load(params), render(data, context), pause?}: load asks the API, render makes elements.

import { access } from "/board/access.js";
import { h, patch } from "/board/dom.js";
import { job } from "/board/job.js";
import { letters } from "/board/letters.js";
import { findPages, introduce, showCurrent, showPlaces } from "/board/nav.js";
import { overview } from "/board/overview.js";
import { queue } from "/board/queue.js";
import { workers } from "/board/workers.js";

const PAUSE = 1_500;
const ROUTES = [
  [/^\/$/, overview, "queues"],
  [/^\/workers$/, workers, "workers"],
  [/^\/access$/, access, "access"],
  [/^\/queues\/([^/]+)$/, queue, "queues"],
  [/^\/queues\/([^/]+)\/dlq$/, letters, "queues"],
  [/^\/queues\/([^/]+)\/jobs\/([^/]+)$/, job, "queues"],
];
const root = document.getElementById("view");
const live = document.getElementById("live");
let visit = 0;
let timer = 0;
let again = () => {};

// Pages of features that are shown within the board: a module's `view`, below its path.
async function addPages() {
  for (const { path, module } of await findPages()) {
    const page = module && (await import(module).catch((error) => console.error(error)));
    if (page) ROUTES.push([new RegExp(`^${path}(?:/(.+))?$`), page.view, path]);
  }
}

function route() {
  const [path, search] = (location.hash.slice(1) || "/").split("?");
  for (const [pattern, view, place] of ROUTES) {
    const match = pattern.exec(path);
    if (match) return { view, place, names: match.slice(1).filter((part) => part !== undefined).map(decoded), query: new URLSearchParams(search) };
  }
  return { view: overview, place: "queues", names: [], query: new URLSearchParams() };
}

/** A name in an address; one that somebody cut or mistyped is taken as it is, and not found. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function open() {
  const mine = ++visit;
  const { view, place, names, query } = route();
  const params = { names, query };
  document.title = `${view.title(params)} · Yamchi`;
  showPlaces(place);
  let data = null;
  const isMine = () => mine === visit;
  const show = () => { if (isMine() && data) patch(root, view.render(data, { ...params, refresh, show })); };
  const refresh = async () => {
    clearTimeout(timer);
    if (!isMine()) return;
    try {
      const loaded = await view.load(params);
      if (!isMine()) return;
      const isFirst = !data;
      data = loaded;
      show();
      if (isFirst) showCurrent(root.querySelector(".tabs"));
      say("on", "live");
    } catch (error) {
      if (!isMine()) return;
      if (!error.status && !error.isOffline) console.error(error);
      say("off", error.isOffline ? "offline" : "error");
      if (!data || !error.isOffline) patch(root, [h("h1", { key: "title" }, view.title(params)), h("div", { class: "card banner", key: "problem", role: "alert" }, error.message), h("p", { class: "row" }, h("a", { href: "#/" }, "All queues"))]);
    }
    clearTimeout(timer);
    if (isMine() && !document.hidden) timer = setTimeout(refresh, view.pause?.(data) ?? PAUSE);
  };
  again = refresh;
  refresh();
}

function say(kind, text) {
  live.className = `live ${kind}`;
  live.textContent = text;
  live.title = { live: "Refreshed every other second", error: "This could not be shown", offline: "The server does not answer; trying again" }[text];
}

addEventListener("hashchange", () => { scrollTo(0, 0); open(); });
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : again()));
await Promise.all([introduce(), addPages()]);
open();
