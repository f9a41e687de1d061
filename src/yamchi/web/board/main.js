// The board: picks the view by the address, asks it for data every other second, and shows what it makes of it.
// A view is {title, load(params), render(data, context), pause?}: load asks the API, render makes elements.

import { get } from "/board/api.js";
import { h, patch, setReadOnly } from "/board/dom.js";
import { job } from "/board/job.js";
import { letters } from "/board/letters.js";
import { overview } from "/board/overview.js";
import { queue } from "/board/queue.js";
import { installTheme } from "/board/theme.js";
import { workers } from "/board/workers.js";

const PAUSE = 1_500;
const ROUTES = [
  [/^\/$/, overview, "queues"],
  [/^\/workers$/, workers, "workers"],
  [/^\/queues\/([^/]+)$/, queue, "queues"],
  [/^\/queues\/([^/]+)\/dlq$/, letters, "queues"],
  [/^\/queues\/([^/]+)\/jobs\/([^/]+)$/, job, "queues"],
];
const PLACES = [["queues", "#/", "Queues"], ["workers", "#/workers", "Workers"], ["docs", "/docs", "API"]];

const root = document.getElementById("view");
const live = document.getElementById("live");
let visit = 0;
let timer = 0;
let again = () => {};

// Pages of features: a module's `view` is shown within the board, below its path; without a module it is a link.
async function addPages() {
  const pages = await get("/board/pages").catch(() => []);
  for (const { title, path, module } of pages) {
    const page = module && (await import(module).catch((error) => console.error(error)));
    if (module && !page) continue;
    if (page) ROUTES.push([new RegExp(`^${path}(?:/(.+))?$`), page.view, path]);
    PLACES.splice(-1, 0, [path, page ? `#${path}` : path, title]);
  }
}

// Whoever may only look is told so, and whoever signed in can sign out.
async function introduce() {
  const me = await get("/v1/me").catch(() => null);
  if (!me) return;
  setReadOnly(!me.may_change);
  document.getElementById("who").append(...[
    !me.may_change && h("span", { class: "badge plain", title: `${me.name} may look, and change nothing` }, "read only"),
    me.is_session && h("form", { method: "post", action: "/sign-out" }, h("button", { class: "quiet", type: "submit", title: `Signed in as ${me.name}` }, "Sign out")),
  ].filter(Boolean));
}

function route() {
  const [path, search] = (location.hash.slice(1) || "/").split("?");
  for (const [pattern, view, place] of ROUTES) {
    const match = pattern.exec(path);
    if (match) return { view, place, names: match.slice(1).filter((part) => part !== undefined).map(decodeURIComponent), query: new URLSearchParams(search) };
  }
  return { view: overview, place: "queues", names: [], query: new URLSearchParams() };
}

function open() {
  const mine = ++visit;
  const { view, place, names, query } = route();
  const params = { names, query };
  document.title = `${view.title(params)} · Yamchi`;
  patch(document.getElementById("nav"), PLACES.map(([name, href, label]) => h("a", { href, "aria-current": name === place && "page" }, label)));
  let data = null;
  const isMine = () => mine === visit;
  const show = () => { if (isMine() && data) patch(root, view.render(data, { ...params, refresh, show })); };
  const refresh = async () => {
    clearTimeout(timer);
    if (!isMine()) return;
    try {
      const loaded = await view.load(params);
      if (!isMine()) return;
      data = loaded;
      show();
      say("on", "live");
    } catch (error) {
      if (!isMine()) return;
      say("off", "offline");
      if (!data || error.status) patch(root, [h("div", { class: "card banner", key: "problem" }, error.message), h("p", { class: "row" }, h("a", { href: "#/" }, "All queues"))]);
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
  live.title = kind === "on" ? "Refreshed every other second" : "The server does not answer; trying again";
}

addEventListener("hashchange", () => { scrollTo(0, 0); open(); });
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : again()));
installTheme(document.getElementById("theme"));
await Promise.all([introduce(), addPages()]);
open();
