// The mailbox page: letters on the left, the chosen one framed on the right, where it can run nothing.

import { get } from "/board/api.js";
import { told } from "/board/dialogs.js";
import { h } from "/board/dom.js";
import { exact } from "/board/format.js";

const list = document.querySelector("#letters");
const view = document.querySelector("#letter");
const HEADERS = ["From", "To", "Subject", "Date"];
let shown = "";
let known = "";

async function show(id) {
  const path = `/v1/mailbox/${encodeURIComponent(id)}`;
  const letter = await get(path);
  const rows = [...letter.headers.filter(([name]) => HEADERS.includes(name)), ...letter.attachments.map((name) => ["Attached", name])];
  view.replaceChildren(
    h("dl", {}, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    h("iframe", { sandbox: "", title: "The letter", src: `/api${path}/html` }));
  shown = id;
  mark();
}

function mark() {
  for (const button of list.querySelectorAll("button")) button.setAttribute("aria-current", String(button.dataset.id === shown));
}

function row(letter) {
  return h("li", {}, h("button", { type: "button", "data-id": letter.message_id, onclick: () => told(() => show(letter.message_id)) },
    h("b", {}, letter.subject || "(no subject)"),
    h("small", {}, letter.recipients.join(", ")),
    h("small", {}, exact(letter.received_at))));
}

async function refresh() {
  const letters = await get("/v1/mailbox");
  const news = JSON.stringify(letters);
  if (news !== known) list.replaceChildren(...letters.map(row)); // a list that is the same is left alone, with the focus in it
  known = news;
  if (!shown && letters.length) await show(letters[0].message_id);
  mark();
}

await told(refresh);
setInterval(() => document.hidden || told(refresh), 3000);
