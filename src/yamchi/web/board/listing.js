// A page that lists things: filters above, a row for each, one page after the other, and a page for one of them.

import { query } from "/board/api.js";
import { attempt } from "/board/dialogs.js";
import { asText, h } from "/board/dom.js";
import { ago, exact } from "/board/format.js";

/**
 * listing({path, title, filters, ask, columns, row, empty, above?, one?}) is a view of the board.
 * `ask(values)` answers {items, next}: `next` are the values of the page after this one, or null.
 * `row(item, context)` are the cells; `href` of a row's first link opens `one`: {load(id), render(item, context)}.
 */
export function listing({ path, title, filters = [], ask, columns, row, empty, above = () => null, one }) {
  return {
    title: ({ names }) => (one && names[0]) || title,
    load: ({ names, query: given }) => (one && names[0] ? one.load(names[0]) : ask(Object.fromEntries(given))),
    render: (data, context) => (one && context.names[0] ? one.render(data, context) : [
      h("div", { class: "row", key: "head" }, h("h1", {}, title), h("span", { class: "grow" }), above(data, context)),
      h("div", { class: "card", key: "list" },
        filters.length > 0 && h("div", { class: "row tools" }, filters.map((filter) => chooser(path, filter, context.query))),
        data.items.length ? table(columns, data.items, row, context) : h("p", { class: "empty" }, filters.some(({ name }) => context.query.get(name)) ? "Nothing matches." : empty),
        turner(path, data.next, context.query)),
    ]),
  };
}

const PLACES = ["page", "cursor", "before"];
const withoutPlace = (given) => Object.fromEntries([...given].filter(([key]) => !PLACES.includes(key)));
const goTo = (path, values) => { location.hash = `${path}${query(values)}`; };

function chooser(path, { name, label, options }, given) {
  const choose = (value) => goTo(path, { ...withoutPlace(given), [name]: value });
  const key = `filter ${path} ${name}`;
  if (options) {
    return h("label", { class: "filter", key }, h("span", { class: "muted" }, label),
      h("select", { "aria-label": label, given: given.get(name) ?? "", onchange: ({ target }) => { target.given = target.value; choose(target.value); } },
        h("option", { value: "" }, "all"), options.map((one) => h("option", { value: one, selected: given.get(name) === one }, one))));
  }
  return typed(key, given.get(name) ?? "", choose, { placeholder: label, "aria-label": label });
}

/** A box that searches while somebody types. */
export function typed(key, value, search, props) {
  const ask = (box) => { box.given = box.value.trim(); search(box.given); };
  return h("input", { type: "search", key, value, given: value, ...props, oninput: ({ target }) => { clearTimeout(target.waiting); target.waiting = setTimeout(() => ask(target), 350); } });
}

function table(columns, items, row, context) {
  return h("div", { class: "scroll" }, h("table", { class: "cards" },
    h("thead", {}, h("tr", {}, columns.map(([label, kind]) => h("th", { class: kind }, label)))),
    h("tbody", {}, items.map((item) => row(item, context)))));
}

function turner(path, next, given) {
  const isFirst = !PLACES.some((key) => given.has(key));
  if (isFirst && !next) return null;
  return h("div", { class: "row foot" },
    h("button", { class: "small", type: "button", disabled: isFirst, onclick: () => goTo(path, withoutPlace(given)) }, "Newest"),
    h("button", { class: "small", type: "button", disabled: !next, onclick: () => goTo(path, next) }, "Older →"));
}

/** A page of numbered pages: there is another one when this one is full. */
export const numbered = (values, items, size) => (items.length === size ? { ...values, page: Number(values.page ?? 1) + 1 } : null);

export const badge = (kind, text) => h("span", { class: `badge ${kind}` }, text);

export const when = (moment) => h("td", { class: "num muted end", title: exact(moment) }, ago(moment));

/** A row that opens an address wherever it is clicked. */
export const link = (key, href) => ({ class: "link", key, onclick: (event) => { if (!event.target.closest("a, button, input")) location.hash = href; } });

/** A button that does something and says how it went. */
export function acts(label, act, done, { refresh }, kind = "small") {
  return h("button", { acts: true, class: kind, type: "button", key: label, onclick: async () => { await attempt(act, done); refresh(); } }, label);
}

/** Names with values, those that have one. */
export function facts(title, rows) {
  return h("section", { class: "card section", key: `facts ${title}` }, h("h2", {}, title),
    h("div", { class: "body" }, h("dl", {}, rows.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false)
      .map(([name, value]) => [h("dt", {}, name), h("dd", {}, value instanceof Node ? value : asText(value))]))));
}

/** What happened, oldest first: [kind, label, moment, more]. */
export function timeline(title, steps) {
  return h("section", { class: "card section", key: `timeline ${title}` }, h("h2", {}, title),
    h("div", { class: "body" }, steps.length ? h("ul", { class: "timeline" }, steps.map(([kind, label, moment, more]) =>
      h("li", { class: kind }, h("b", {}, label), h("small", { title: exact(moment) }, `${exact(moment)} · ${ago(moment)}`), more && h("small", {}, h("br"), more))))
      : h("p", { class: "empty" }, "Nothing yet.")));
}
