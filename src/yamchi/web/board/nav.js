// The head of every page: where one can go, who one is, and how it looks.

import { get } from "/board/api.js";
import { h, patch, setReadOnly } from "/board/dom.js";
import { installTheme } from "/board/theme.js";

const BEFORE = [["queues", "/#/", "Queues"], ["workers", "/#/workers", "Workers"]];
const AFTER = [["access", "/#/access", "Access"], ["docs", "/docs", "API"]];
let features = [];

/** The pages of features: [path, title, address of the module that shows it within the board, if one does]. */
export async function findPages() {
  const pages = await fetch("/api/board/pages").then((answer) => (answer.ok ? answer.json() : [])).catch(() => []);
  features = pages.map(({ title, path, module }) => [path, module ? `/#${path}` : path, title]);
  return pages;
}

export function showPlaces(current) {
  const nav = document.getElementById("nav");
  patch(nav, [...BEFORE, ...features, ...AFTER].map(([name, href, label]) => h("a", { href, "aria-current": name === current && "page" }, label)));
  showCurrent(nav);
}

/** Scrolls a bar that is wider than the screen to where one is. */
export function showCurrent(bar) {
  const here = bar?.querySelector("[aria-current]");
  if (here) bar.scrollLeft = here.offsetLeft - (bar.clientWidth - here.offsetWidth) / 2;
}

/** Whoever may only look is told so, and whoever signed in can sign out. */
export async function introduce() {
  installTheme(document.getElementById("theme"));
  const me = await get("/v1/me").catch(() => null);
  if (!me) return;
  setReadOnly(!me.may_change);
  document.getElementById("who").append(...[
    !me.may_change && h("span", { class: "badge plain", title: `${me.name} may look, and change nothing` }, "read only"),
    me.is_session && h("form", { method: "post", action: "/sign-out" }, h("button", { class: "quiet", type: "submit", title: `Signed in as ${me.name}` }, "Sign out")),
  ].filter(Boolean));
}
