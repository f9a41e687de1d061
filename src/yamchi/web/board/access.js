// Who may do what, and who did what: named keys, and the audit of changes.

import { get, post, query, request } from "/board/api.js";
import { ask, attempt, field, form } from "/board/dialogs.js";
import { h } from "/board/dom.js";
import { ago, exact } from "/board/format.js";
import { badge, listing, when } from "/board/listing.js";

const SCOPES = ["send", "read", "admin", "people:token"];
const STATES = { "in use": "completed", revoked: "cancelled", expired: "expired" };

const changes = listing({
  path: "#/access",
  title: "Access",
  filters: [{ name: "who", label: "Who, such as key shop" }, { name: "action", label: "Action" }, { name: "target", label: "Target" }],
  ask: async (values) => {
    const found = await get(`/v1/audit${query(values)}`);
    return { items: found.items, next: found.next_cursor && { ...values, cursor: found.next_cursor } };
  },
  columns: [["Who"], ["What"], ["Target"], ["Before → after"], ["Outcome"], ["When", "num"]],
  row: (one) => h("tr", { key: one.id },
    h("td", { class: "id", title: one.address }, h("b", {}, one.who)),
    h("td", { class: "id mono", title: one.action }, one.action),
    h("td", { class: "id mono", title: one.target }, one.target),
    h("td", { class: "clip wide" }, [one.before, one.after].filter(Boolean).join(" → ")),
    h("td", {}, badge(/^[45]/.test(one.outcome) ? "failed" : "plain", one.outcome ?? "not known")),
    when(one.moment)),
  empty: "Nobody has changed anything yet.",
});

export const access = {
  title: () => "Access",
  pause: () => 5_000,
  load: async (params) => {
    const [keys, audit] = await Promise.all([get("/v1/keys?size=100"), changes.load(params)]);
    return { keys, audit };
  },
  render: ({ keys, audit }, context) => {
    const [head, list] = changes.render(audit, context);
    head.append(h("button", { acts: true, class: "primary", type: "button", onclick: () => create(context) }, "New key") ?? "");
    return [head, h("div", { class: "card", key: "keys" }, h("div", { class: "row tools" }, h("b", {}, "Keys")), keys.length ? keyTable(keys, context) : h("p", { class: "empty" }, "No keys. A key lets a program in, with only what its scopes say.")),
      h("h2", { key: "changes" }, "Changes"), list];
  },
};

function keyTable(keys, context) {
  return h("div", { class: "scroll" }, h("table", { class: "cards" },
    h("thead", {}, h("tr", {}, ["Name", "Scopes", "State", "Used", "Made", ""].map((label) => h("th", {}, label)))),
    h("tbody", {}, keys.map((key) => h("tr", { key: key.id },
      h("td", { class: "wide" }, h("span", { class: "name" }, key.name), " ", key.test && badge("plain", "test")),
      h("td", { class: "mono" }, key.scopes.join(", ")),
      h("td", { title: key.expires_at ? `until ${exact(key.expires_at)}` : "" }, badge(STATES[key.state] ?? "plain", key.state)),
      h("td", { class: "muted" }, key.last_used_at ? ago(key.last_used_at) : "never"),
      h("td", { class: "muted", title: exact(key.created_at) }, `${ago(key.created_at)} by ${key.created_by}`),
      h("td", { class: "num end" }, key.revoked_at ? null : h("div", { class: "row tight" },
        h("button", { acts: true, class: "small", type: "button", onclick: () => rotate(key, context) }, "Rotate"),
        h("button", { acts: true, class: "small danger", type: "button", onclick: () => revoke(key, context) }, "Revoke"))))))));
}

async function create({ refresh }) {
  const made = await form({
    title: "A new key",
    yes: "Make it",
    body: () => [
      h("div", { class: "fields" }, field("Name", "name", { placeholder: "shop", required: true }), field("Good for", "expires", { placeholder: "ever, or 90d" })),
      h("div", { class: "fields" }, SCOPES.map((scope) => h("label", {}, h("input", { type: "checkbox", name: "scope", value: scope, checked: scope === "send" }), ` ${scope}`))),
      field("One queue only", "queue", { placeholder: "notifications, for send:notifications" }),
      h("label", {}, h("input", { type: "checkbox", name: "test" }), " A test key: what it sends stays in the mailbox"),
    ],
    read: (elements) => {
      const queue = elements.queue.value.trim();
      const scopes = [...elements.scope].filter((box) => box.checked && !(queue && box.value === "send")).map((box) => box.value);
      return { name: elements.name.value.trim(), scopes: queue ? [...scopes, `send:${queue}`] : scopes, test: elements.test.checked, expires_in: elements.expires.value.trim() || undefined };
    },
    act: (key) => post("/v1/keys", key),
  });
  if (made) await show(made);
  refresh();
}

async function rotate(key, { refresh }) {
  if (!(await ask(`Make a new text for the key ${key.name}?`, "The old one works for another hour.", "Rotate", false))) return;
  await attempt(() => post(`/v1/keys/${encodeURIComponent(key.name)}/rotate`, { grace: "1h" }), (made) => { show(made); return "Rotated."; });
  refresh();
}

async function revoke(key, { refresh }) {
  if (!(await ask(`Revoke ${key.name}?`, "Whoever uses it is refused from now on.", "Revoke"))) return;
  await attempt(() => request("DELETE", `/v1/keys/${encodeURIComponent(key.name)}`), "Revoked.");
  refresh();
}

const show = (made) => form({
  title: `The key ${made.name}`, yes: "I have it",
  body: () => [h("p", {}, "It is shown now and never again."), h("input", { readonly: true, value: made.key, class: "mono", "aria-label": "Key", onclick: (event) => event.target.select() })],
  read: () => true,
});
