// The messages on the page: newest first, each with its own element, changed in place.

import { h, icon, linkTo, webAddress } from "./dom.js";
import { ago, inFull, textsIn } from "./texts.js";

const BOX = "M4 5h16v4H4zM6 9v10h12V9M10 13h4";

export class MessageList {
  #entries = new Map(); // id → {item, node}

  /** `hooks`: open(item, event), archive(item). */
  constructor(hooks) {
    this.hooks = hooks;
    this.language = "en";
    this.node = h("ul", { role: "list" });
    this.node.onkeydown = (event) => this.#move(event);
  }

  get size() {
    return this.#entries.size;
  }

  get(id) {
    return this.#entries.get(id)?.item;
  }

  clear() {
    this.#entries.clear();
    this.node.replaceChildren();
  }

  /** Put a message in its place, or change the one that is there. */
  put(item) {
    const node = this.#draw(item);
    const before = this.#entries.get(item.id);
    if (before) {
      const isFocused = before.node.contains(before.node.getRootNode().activeElement);
      before.node.replaceWith(node);
      if (isFocused) node.querySelector(".open").focus();
    } else {
      const next = [...this.#entries.values()].filter((entry) => isNewer(item, entry.item));
      const first = [...this.node.children].find((child) => next.some((entry) => entry.node === child));
      this.node.insertBefore(node, first ?? null);
    }
    this.#entries.set(item.id, { item, node });
  }

  remove(id) {
    const entry = this.#entries.get(id);
    if (!entry) return;
    const isFocused = entry.node.contains(entry.node.getRootNode().activeElement);
    const heir = entry.node.nextElementSibling ?? entry.node.previousElementSibling;
    entry.node.remove();
    this.#entries.delete(id);
    if (isFocused) heir?.querySelector(".open").focus();
  }

  readAll() {
    for (const { item } of [...this.#entries.values()]) {
      if (!item.read_at) this.put({ ...item, read_at: new Date().toISOString() });
    }
  }

  /** Whether there is a message older than this one here. */
  reachesBelow(item) {
    return [...this.#entries.values()].some((entry) => isNewer(item, entry.item));
  }

  speak(language) {
    this.language = language;
    for (const { item } of [...this.#entries.values()]) this.put(item);
  }

  /** Time goes on. */
  tick() {
    for (const { item, node } of this.#entries.values()) {
      node.querySelector("time").textContent = ago(Date.parse(item.created_at), this.language);
    }
  }

  #draw(item) {
    const texts = textsIn(this.language);
    const url = webAddress(item.url);
    const moment = Date.parse(item.created_at);
    const open = h(
      url ? "a" : "button",
      { class: "open", ...(url ? linkTo(url) : { type: "button" }), onclick: (event) => this.hooks.open(item, event) },
      item.read_at ? null : h("span", { class: "unseen" }, `${texts.isUnread}: `),
      h("span", { class: "name" }, item.title || item.text),
      item.title ? h("span", { class: "text" }, item.text) : null,
      h("time", { datetime: item.created_at, title: inFull(moment, this.language) }, ago(moment, this.language)),
    );
    const label = `${texts.archive}: ${item.title || item.text}`;
    const archive = h(
      "button",
      { class: "archive", type: "button", title: texts.archive, "aria-label": label, onclick: () => this.hooks.archive(item) },
      icon(BOX),
    );
    const kind = item.read_at ? "" : "is-unread";
    return h("li", { class: kind, part: "item", "data-id": item.id }, open, this.#links(item), archive);
  }

  #links(item) {
    const links = item.buttons.map((button) => [button.text, webAddress(button.url)]).filter(([, url]) => url);
    if (!links.length) return null;
    const leave = (event) => this.hooks.open(item, event);
    return h("div", { class: "links" }, ...links.map(([text, url]) => h("a", { ...linkTo(url), onclick: leave }, text)));
  }

  /** Arrows go from message to message, Delete puts one away. */
  #move(event) {
    const here = event.target.closest("li");
    const places = [...this.node.children];
    const index = places.indexOf(here);
    const goals = { ArrowDown: index + 1, ArrowUp: index - 1, Home: 0, End: places.length - 1 };
    if (event.key in goals) {
      event.preventDefault();
      places[goals[event.key]]?.querySelector(".open").focus();
    } else if (event.key === "Delete" && here) {
      this.hooks.archive(this.get(here.dataset.id));
    }
  }
}

const isNewer = (one, other) =>
  one.created_at === other.created_at ? one.id > other.id : Date.parse(one.created_at) > Date.parse(other.created_at);
