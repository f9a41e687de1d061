// <yamchi-inbox token-url="/me/inbox-token"></yamchi-inbox>: a bell with the number of unread messages, and the list behind it.
//
// Attributes: token-url (gives {"token": …}) or token; server (where Yamchi is, by default where this script came from);
// theme ("light" or "dark", by default the system's); lang ("en", "ru", "kk", by default the page's).
// Events, all of which bubble: yamchi-item (a message arrived), yamchi-open (one was opened; preventDefault keeps the page),
// yamchi-message (a message over `ws`; preventDefault hides the toast), yamchi-token (a new `token` is needed).

import { expiryOf, InboxApi } from "./api.js";
import { Connection } from "./connection.js";
import { h, icon } from "./dom.js";
import { MessageList } from "./list.js";
import { styles } from "./styles.js";
import { showToast } from "./toast.js";
import { Tokens } from "./tokens.js";
import { languageOf, textsIn } from "./texts.js";

const HOME = new URL("..", import.meta.url).href;
const BELL = "M6 16.5V11a6 6 0 0 1 12 0v5.5l1.5 2h-15zM10 21h4M12 5V3";
const TICK = 30_000;

export class YamchiInbox extends HTMLElement {
  static observedAttributes = ["token", "lang"];

  /** A page may give a function here instead of token-url: async () => token. */
  getToken = null;

  #unread = 0;
  #cursor = null;
  #state = "offline";
  #problem = "";
  #isLoaded = false;
  #meanwhile = null;
  #timer = null;
  #parts = {};
  #list = new MessageList({ open: (item, event) => this.#opened(item, event), archive: (item) => this.#archive(item) });
  #tokens = new Tokens(() => this.#askForToken(), (token) => this.#connection?.renew(token));
  #connection = null;
  #api = null;

  constructor() {
    super();
    this.attachShadow({ mode: "open" }).adoptedStyleSheets = [styles];
    this.#build();
  }

  connectedCallback() {
    const server = new URL(`${this.getAttribute("server") ?? HOME}/`.replace(/\/+$/, "/"), document.baseURI);
    const live = new URL("ws", server);
    live.protocol = live.protocol.replace("http", "ws");
    this.#api = new InboxApi(server, this.#tokens.get);
    this.#connection = new Connection(live, {
      token: this.#tokens.get,
      frame: (frame) => this.#hear(frame),
      state: (state, reason) => this.#changeState(state, reason),
    });
    this.#speak();
    addEventListener("pagehide", this.#leave);
    addEventListener("pageshow", this.#return);
    document.addEventListener("pointerdown", this.#clickedBeside);
    this.#connection.start();
  }

  disconnectedCallback() {
    this.#leave();
    removeEventListener("pagehide", this.#leave);
    removeEventListener("pageshow", this.#return);
    document.removeEventListener("pointerdown", this.#clickedBeside);
    this.#tokens.stop();
    this.#show(false);
  }

  attributeChangedCallback(name, before, value) {
    if (name === "lang") this.#speak();
    else if (value && value !== before) {
      this.#tokens.put(value);
      this.#connection?.renew(value);
    }
  }

  get unread() {
    return this.#unread;
  }

  // ── Looks ─────────────────────────────────────────────────────────────────────────────────────────────────────────

  #build() {
    const parts = this.#parts;
    parts.badge = h("span", { class: "badge", part: "badge", "aria-hidden": "true", hidden: true });
    parts.bell = h("button", {
      class: "bell", part: "bell", type: "button", "aria-haspopup": "dialog", "aria-expanded": "false",
      onclick: () => this.#show(parts.panel.hidden),
    }, icon(BELL), parts.badge);
    parts.title = h("h2", { id: "title" });
    parts.readAll = h("button", { class: "quiet", type: "button", onclick: () => this.#readAll() });
    parts.note = h("p", { class: "note", role: "status" });
    parts.more = h("button", { class: "more", type: "button", onclick: () => this.#load(this.#cursor) });
    parts.panel = h("div", { class: "panel", part: "panel", role: "dialog", "aria-labelledby": "title", tabindex: "-1", hidden: true },
      h("header", {}, parts.title, parts.readAll), h("div", { class: "scroll" }, this.#list.node, parts.more), parts.note);
    parts.toasts = h("div", { class: "toasts", role: "status" });
    parts.said = h("div", { class: "unseen", "aria-live": "polite" });
    this.shadowRoot.append(parts.bell, parts.panel, parts.toasts, parts.said);
    this.shadowRoot.addEventListener("keydown", (event) => this.#pressed(event));
  }

  get #language() {
    return languageOf(this.getAttribute("lang") || this.closest("[lang]")?.lang || navigator.language);
  }

  get #texts() {
    return textsIn(this.#language);
  }

  #speak() {
    this.#list.speak(this.#language);
    this.#parts.title.textContent = this.#texts.title;
    this.#parts.readAll.textContent = this.#texts.readAll;
    this.#parts.more.textContent = this.#texts.more;
    this.#refresh();
  }

  #refresh() {
    const { bell, badge, readAll, note, more } = this.#parts;
    const texts = this.#texts;
    badge.hidden = this.#unread === 0;
    badge.textContent = this.#unread > 99 ? "99+" : this.#unread;
    bell.setAttribute("aria-label", this.#unread ? `${texts.title}, ${texts.unread(this.#unread)}` : texts.title);
    readAll.disabled = this.#unread === 0;
    more.hidden = !this.#cursor;
    const isEmpty = this.#isLoaded && this.#list.size === 0;
    note.textContent = this.#problem || this.#noteOfState() || (isEmpty ? texts.empty : "");
    note.classList.toggle("is-empty", isEmpty);
    note.hidden = !note.textContent;
  }

  #noteOfState() {
    if (this.#state === "live") return this.#isLoaded ? "" : this.#texts.loading;
    return this.#state === "refused" ? this.#texts.refused : this.#texts.offline;
  }

  #show(isOpen) {
    const { panel, bell } = this.#parts;
    const hadFocus = panel.contains(this.shadowRoot.activeElement);
    panel.hidden = !isOpen;
    bell.setAttribute("aria-expanded", String(isOpen));
    clearInterval(this.#timer);
    if (isOpen) {
      this.#list.tick();
      this.#timer = setInterval(() => this.#list.tick(), TICK);
      this.#place();
      panel.focus();
    } else if (hadFocus) {
      bell.focus();
    }
  }

  /** The panel hangs from the bell's end, or from its start where it would leave the window. */
  #place() {
    const { panel, bell } = this.#parts;
    const place = bell.getBoundingClientRect();
    const isLeftToRight = getComputedStyle(this).direction === "ltr";
    const room = isLeftToRight ? place.right : innerWidth - place.left;
    panel.classList.toggle("from-start", room < panel.offsetWidth + 8);
    panel.style.setProperty("--top", `${Math.max(8, Math.round(place.bottom + 8))}px`);
  }

  #pressed(event) {
    const isInPanel = this.#parts.panel.contains(event.target);
    if (event.key === "Escape" && !this.#parts.panel.hidden) this.#show(false);
    else if (event.key === "ArrowDown" && isInPanel && !this.#list.node.contains(event.target)) {
      event.preventDefault();
      this.#list.node.querySelector(".open")?.focus();
    }
  }

  #clickedBeside = (event) => {
    if (!this.#parts.panel.hidden && !event.composedPath().includes(this)) this.#show(false);
  };

  #tell(type, detail) {
    return this.dispatchEvent(new CustomEvent(type, { detail, bubbles: true, composed: true, cancelable: true }));
  }

  // ── What happens ──────────────────────────────────────────────────────────────────────────────────────────────────

  #hear(frame) {
    this.#meanwhile?.push(frame);
    this.#apply(frame);
    if (frame.type === "welcome" && frame.reset) this.#load(null);
    // A message with a type of its own, such as `media`, is for a script of the page: there is nothing to show.
    if (frame.type === "message" && this.#tell("yamchi-message", frame.message) && !frame.message.type) {
      showToast(this.#parts.toasts, frame.message, this.#texts);
    }
    this.#refresh();
  }

  #apply(frame) {
    if (frame.unread !== undefined) this.#unread = frame.unread;
    if (frame.type === "read_all") this.#list.readAll();
    if (frame.type === "item") this.#arrived(frame.item);
  }

  #arrived(item) {
    const isNew = !this.#list.get(item.id);
    if (item.is_archived) this.#list.remove(item.id);
    else if (!isNew || !this.#cursor || this.#list.reachesBelow(item)) this.#list.put(item);
    if (isNew && !item.is_archived && !item.read_at && this.#isLoaded) {
      this.#parts.said.textContent = `${this.#texts.arrived}: ${item.title || item.text}`;
      this.#tell("yamchi-item", item);
    }
  }

  #changeState(state, reason) {
    if (state === "refused") console.warn(`yamchi-inbox: ${reason}`);
    this.#state = state;
    this.#refresh();
  }

  #leave = () => this.#connection?.stop();
  #return = (event) => event.persisted && this.#connection?.start();

  // ── What the person does ──────────────────────────────────────────────────────────────────────────────────────────

  async #load(cursor) {
    const meanwhile = (this.#meanwhile = []); // what is heard now may be newer than what we are about to get
    await this.#try(async () => {
      const page = await this.#api.page(cursor);
      if (meanwhile !== this.#meanwhile) return; // another load has begun since
      if (cursor === null) this.#list.clear();
      page.items.forEach((item) => this.#list.put(item));
      this.#cursor = page.next_cursor;
      this.#unread = page.unread;
      this.#isLoaded = true;
      meanwhile.forEach((frame) => this.#apply(frame));
      this.#meanwhile = null;
    });
  }

  #opened(item, event) {
    if (!item.read_at) this.#change(item, "read");
    if (!this.#tell("yamchi-open", item)) event.preventDefault();
  }

  #archive(item) {
    this.#list.remove(item.id);
    this.#change(item, "archive");
  }

  /** Shown at once; told to the others by the server; put back as it was if the server would not. */
  async #change(item, action) {
    if (action === "read") this.#list.put({ ...item, read_at: new Date().toISOString() });
    if (!item.read_at) this.#unread = Math.max(0, this.#unread - 1);
    await this.#try(() => this.#api.change(item.id, action), () => {
      this.#list.put(item);
      if (!item.read_at) this.#unread += 1;
    });
  }

  async #readAll() {
    await this.#try(() => this.#api.readAll());
  }

  async #try(work, undo = () => {}) {
    try {
      this.#problem = "";
      this.#refresh();
      await work();
    } catch (error) {
      console.warn(`yamchi-inbox: ${error.message}`);
      this.#problem = this.#texts.failed;
      undo();
    }
    this.#refresh();
  }

  // ── Tokens ────────────────────────────────────────────────────────────────────────────────────────────────────────

  async #askForToken() {
    if (this.getToken) return this.getToken();
    const url = this.getAttribute("token-url");
    if (url) {
      const answer = await fetch(new URL(url, document.baseURI), { cache: "no-store", headers: { accept: "application/json" } });
      if (!answer.ok) throw new Error(`${url} answered ${answer.status}`);
      return (await answer.json()).token;
    }
    const given = this.getAttribute("token");
    if (given && expiryOf(given) > Date.now()) return given;
    this.#tell("yamchi-token", null);
    throw new Error("a token is needed: give token-url, or set token");
  }
}

if (!customElements.get("yamchi-inbox")) customElements.define("yamchi-inbox", YamchiInbox);
