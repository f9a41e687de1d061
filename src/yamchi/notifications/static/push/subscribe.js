/* Web Push in a page: ask the browser, and tell Yamchi.

    import { subscribe } from "https://yamchi.example.com/push/subscribe.js";

    button.onclick = () => subscribe({
      userId: "f3aa4a0e-97d4-4e21-a2b4-9fb7c8d9f001",
      token: () => fetch("/my-backend/yamchi-token").then((answer) => answer.text()),
    });

Call it on a click, since browsers ask people only then; and once on every later visit (`state()` says "subscribed"), so
that a subscription the browser has renewed is known. `worker` is the address of the service worker, which must be of
the page's own origin: a file of one line, importScripts("https://yamchi.example.com/push/worker.js"). */

const SERVER = new URL(import.meta.url).origin;

/** "unsupported", "denied", "subscribed" or "unsubscribed". */
export async function state({ worker = "/push/worker.js" } = {}) {
  if (!("serviceWorker" in navigator && "PushManager" in window)) return "unsupported";
  if (Notification.permission === "denied") return "denied";
  const registration = await navigator.serviceWorker.getRegistration(worker);
  return (await registration?.pushManager.getSubscription()) ? "subscribed" : "unsubscribed";
}

/** Ask for messages; what Yamchi knows of this browser afterwards. */
export async function subscribe({ userId, token, worker = "/push/worker.js", device, server = SERVER }) {
  if ((await Notification.requestPermission()) !== "granted") {
    throw new Error("The person does not want notifications here.");
  }
  const { public_key: key } = await ask(`${server}/push/key`);
  const registration = await registered(worker);
  const subscription = await subscribed(registration.pushManager, bytes(key));
  const body = JSON.stringify({ ...subscription.toJSON(), device });
  return await ask(address(server, userId), { method: "POST", body, token });
}

/** No more messages to this browser. */
export async function unsubscribe({ userId, token, worker = "/push/worker.js", server = SERVER }) {
  const registration = await navigator.serviceWorker.getRegistration(worker);
  const subscription = await registration?.pushManager.getSubscription();
  if (!subscription) return;
  await subscription.unsubscribe();
  const place = `${address(server, userId)}/${await idOf(subscription.endpoint)}`;
  await ask(place, { method: "DELETE", token, missing: true });
}

function address(server, userId) {
  return `${server}/api/v1/users/${encodeURIComponent(userId)}/push`;
}

async function registered(worker) {
  await navigator.serviceWorker.register(worker);
  const registration = await navigator.serviceWorker.getRegistration(worker);
  await active(registration);
  return registration;
}

/** A worker can be subscribed when it runs, and `ready` only knows the one of this page. */
function active(registration) {
  const worker = registration.active ?? registration.waiting ?? registration.installing;
  if (worker.state === "activated") return Promise.resolve();
  return new Promise((resolve) => {
    worker.addEventListener("statechange", () => worker.state === "activated" && resolve());
  });
}

/** A subscription made with an older key takes no messages of the new one. */
async function subscribed(manager, key) {
  const known = await manager.getSubscription();
  if (known && !same(new Uint8Array(known.options.applicationServerKey), key)) await known.unsubscribe();
  return await manager.subscribe({ userVisibleOnly: true, applicationServerKey: key });
}

async function ask(url, { method = "GET", body, token, missing = false } = {}) {
  const headers = body ? { "Content-Type": "application/json" } : {};
  if (token) headers.Authorization = `Bearer ${typeof token === "function" ? await token() : token}`;
  const answer = await fetch(url, { method, body, headers });
  if (answer.status === 204 || (missing && answer.status === 404)) return null;
  const said = await answer.json();
  if (!answer.ok) throw new Error(said.detail ?? `Yamchi answered ${answer.status}`);
  return said;
}

function bytes(base64url) {
  const text = atob(base64url.replaceAll("-", "+").replaceAll("_", "/"));
  return Uint8Array.from(text, (letter) => letter.charCodeAt(0));
}

function same(one, other) {
  return one.length === other.length && one.every((byte, place) => byte === other[place]);
}

async function idOf(endpoint) {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(endpoint));
  return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
