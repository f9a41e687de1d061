/* The service worker of Web Push: shows what arrives, and opens its page when it is clicked.

A message is {title, body, url, image, tag, urgent, lang, buttons: [{text, url}]}. A newer message with the same tag takes
the place of an older one. */

self.addEventListener("install", () => self.skipWaiting());

self.addEventListener("push", (event) => {
  event.waitUntil(show(read(event.data)));
});

self.addEventListener("notificationclick", (event) => {
  event.notification.close();
  const { url, buttons } = event.notification.data;
  const chosen = event.action === "" ? url : buttons[Number(event.action)].url;
  event.waitUntil(open(new URL(chosen, self.location.origin).href));
});

/** A push must always show something, or browsers take the permission away. */
function read(data) {
  try {
    return data.json();
  } catch {
    return { title: data ? data.text() : "" };
  }
}

function show({ title, body, url = "/", image, tag, urgent = false, lang, buttons = [] }) {
  return self.registration.showNotification(title || self.location.host, {
    body,
    image,
    tag,
    lang,
    renotify: Boolean(tag),
    requireInteraction: urgent,
    actions: buttons.map(({ text }, place) => ({ action: String(place), title: text })),
    data: { url, buttons },
  });
}

/** The page, in the tab that has it open already if there is one. */
async function open(url) {
  const windows = await self.clients.matchAll({ type: "window", includeUncontrolled: true });
  const there = windows.find((one) => one.url === url);
  return there ? there.focus() : self.clients.openWindow(url);
}
