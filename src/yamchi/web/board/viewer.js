// Somebody's data on the page: colored when small, cut when large, never parsed as markup.

import { attempt } from "/board/dialogs.js";
import { h } from "/board/dom.js";
import { size } from "/board/format.js";

const SHORT = 6_000;
const COLORED = 20_000;
const LONGEST = 300_000;
const TOKENS = /("(?:[^"\\]|\\.)*")(\s*:)?|\b(true|false|null)\b|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)/g;

const opened = new Set();

/** A card with a title and the value below it. `name` remembers whether the whole was asked for. */
export function section(title, value, name, refresh) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2) ?? "null";
  const isWhole = text.length <= SHORT || opened.has(name);
  const shown = isWhole ? text.slice(0, LONGEST) : text.slice(0, SHORT);
  return h("section", { class: "card section", key: `section-${title}` },
    h("h2", {}, title, h("span", { class: "grow" }),
      h("button", { class: "quiet small", type: "button", onclick: () => copy(text) }, "Copy")),
    h("pre", { class: shown.length > COLORED && "long", tabindex: 0 }, typeof value !== "string" && shown.length <= COLORED ? colored(shown) : shown),
    !isWhole && h("div", { class: "foot" },
      h("button", { class: "small", type: "button", onclick: () => { opened.add(name); refresh(); } }, `Show all ${size(text.length)}`)),
    isWhole && text.length > LONGEST && h("p", { class: "foot muted" }, `Cut at ${size(LONGEST)} of ${size(text.length)}; the API has all of it.`));
}

/** Browsers give the clipboard only to pages that came by https or from this machine. */
function copy(text) {
  return attempt(async () => {
    if (!navigator.clipboard) throw new Error("The browser lets only pages that came by https copy: choose the text and copy it yourself.");
    await navigator.clipboard.writeText(text);
  }, "Copied.");
}

function colored(text) {
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(TOKENS)) {
    parts.push(text.slice(end, match.index));
    const [whole, string, colon] = match;
    if (string) parts.push(h("span", { class: colon ? "key" : "string" }, string), colon ?? "");
    else parts.push(h("span", { class: "literal" }, whole));
    end = match.index + whole.length;
  }
  parts.push(text.slice(end));
  return parts;
}
