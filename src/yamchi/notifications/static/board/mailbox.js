// The mailbox page: letters on the left, the chosen one framed on the right, where it can run nothing.

import { get } from "/board/api.js";

const list = document.querySelector("#letters");
const view = document.querySelector("#letter");
const trouble = document.querySelector("#trouble");
let shown = "";
let known = "";

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  made.textContent = text ?? "";
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

async function told(act) {
  try {
    await act();
    trouble.textContent = "";
  } catch (error) {
    trouble.textContent = error.message;
  }
}

async function show(id) {
  const letter = await get(`/v1/mailbox/${encodeURIComponent(id)}`);
  const wanted = new Set(["From", "To", "Subject", "Date"]);
  const headers = document.createElement("dl");
  for (const [name, value] of letter.headers.filter(([name]) => wanted.has(name))) {
    headers.append(element("dt", name), element("dd", value));
  }
  for (const name of letter.attachments) headers.append(element("dt", "Attached"), element("dd", name));
  const frame = element("iframe", "", { sandbox: "", title: "The letter", src: `/api/v1/mailbox/${encodeURIComponent(id)}/html` });
  view.replaceChildren(headers, frame);
  shown = id;
  mark();
}

function mark() {
  for (const button of list.querySelectorAll("button")) button.setAttribute("aria-current", String(button.dataset.id === shown));
}

function row(letter) {
  const button = element("button", "", { type: "button" });
  button.dataset.id = letter.message_id;
  button.append(element("b", letter.subject || "(no subject)"), element("small", letter.recipients.join(", ")),
    element("small", new Date(letter.received_at).toLocaleString()));
  button.addEventListener("click", () => told(() => show(letter.message_id)));
  const item = document.createElement("li");
  item.append(button);
  return item;
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
