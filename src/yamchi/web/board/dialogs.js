// Asking and telling: questions, forms, short notes.

import { parse } from "/board/api.js";
import { h } from "/board/dom.js";

const NOTE_TIME = 5_000;

export function note(text, isBad = false) {
  const toast = h("div", { class: `card toast${isBad ? " bad" : ""}` }, text);
  document.getElementById("toasts").append(toast);
  setTimeout(() => toast.remove(), isBad ? 2 * NOTE_TIME : NOTE_TIME);
}

/** Does something and says how it went; false if it failed. */
export async function attempt(act, done) {
  try {
    const answer = await act();
    note(typeof done === "function" ? done(answer) : done);
    return true;
  } catch (error) {
    note(error.message, true);
    return false;
  }
}

/** The same for a page of its own: what the act returns, or what went wrong, stands in #trouble until the next one has ended. */
export async function told(act) {
  const trouble = document.getElementById("trouble");
  const said = await act().catch((error) => error.message) ?? "";
  if (trouble.textContent !== said) trouble.textContent = said; // what is the same is not read aloud again
}

/** A yes-or-no question; resolves to whether it was yes. */
export const ask = (title, text, yes, isDanger = true) =>
  form({ title, yes, isDanger, body: () => [h("p", {}, text)], read: () => true });

/** A dialog with fields. `read(elements)` gives the value or throws; resolves to it, or null when dismissed. */
export function form({ title, yes, isDanger = false, body, read, act }) {
  return new Promise((resolve) => {
    const problem = h("p", { class: "error", role: "alert" });
    const submit = h("button", { class: `primary${isDanger ? " danger" : ""}`, type: "submit" }, yes);
    const fields = h("form", { method: "dialog" },
      h("h2", {}, title), body(), problem,
      h("div", { class: "row" }, h("button", { type: "button", onclick: () => dialog.close() }, "Not now"), submit));
    const dialog = h("dialog", {}, fields);
    let value = null;
    fields.onsubmit = async (event) => {
      event.preventDefault();
      submit.disabled = true;
      try {
        const given = read(fields.elements);
        value = act ? (await act(given)) ?? true : given;
        dialog.close();
      } catch (error) {
        problem.textContent = error.message;
      } finally {
        submit.disabled = false;
      }
    };
    dialog.addEventListener("close", () => { dialog.remove(); resolve(value); });
    document.body.append(dialog);
    dialog.showModal();
  });
}

export const field = (label, name, props = {}) => h("label", {}, label, h("input", { name, autocomplete: "off", ...props }));

export function readJson(text) {
  try {
    return parse(text.trim() === "" ? "null" : text);
  } catch (error) {
    throw new Error(`The data is not JSON: ${error.message}.`);
  }
}
