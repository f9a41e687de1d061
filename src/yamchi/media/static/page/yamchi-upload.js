// Uploads a picture from a page of your product and follows it until it is ready.
//
//   const picture = await uploadPicture(file, { userId, token, entityType: "user_avatar", onProgress });
//
// `token` is the person's token, or a function that gives a promise of one. `onProgress` hears { stage: "upload", percent }, then
// { stage: "processing", percent, placeholder }, where `placeholder` is the address of a blurred picture as soon as there is one.
// The promise gives the picture as the API shows it, its addresses whole; it fails with one sentence if the file can't be used.

import { placeholderURL } from "./thumbhash.js";

export { placeholderURL };

const SERVER = new URL("/", import.meta.url);
const ASK_EVERY = 2000;

export async function uploadPicture(file, { userId, token, entityType = "default", metadata, server = SERVER, onProgress = () => {} }) {
  const getToken = typeof token === "function" ? token : async () => token;
  const address = new URL(`api/v1/users/${encodeURIComponent(userId)}/media`, server);
  const news = new News(server, await getToken());
  try {
    await news.opened;
    const form = new FormData();
    form.append("entityType", entityType);
    if (metadata) form.append("metadata", JSON.stringify(metadata));
    form.append("file", file);
    const { mediaId } = await send(address, await getToken(), form, (percent) => onProgress({ stage: "upload", percent }));
    const ask = async () => get(new URL(`${address.pathname}/${mediaId}`, server), await getToken());
    return whole(await follow(news, mediaId, ask, onProgress), server);
  } finally {
    news.close();
  }
}

/** Sent by XMLHttpRequest, since fetch does not tell how far an upload is. */
function send(address, token, form, onPercent) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", address);
    request.setRequestHeader("authorization", `Bearer ${token}`);
    request.responseType = "json";
    request.upload.onprogress = (event) => event.lengthComputable && onPercent(Math.round((100 * event.loaded) / event.total));
    request.onload = () => (request.status === 202 ? resolve(request.response) : reject(new Error(request.response?.detail ?? `The server answered ${request.status}.`)));
    request.onerror = () => reject(new Error("The server can't be reached."));
    request.send(form);
  });
}

async function get(address, token) {
  const answer = await fetch(address, { headers: { authorization: `Bearer ${token}` } });
  if (!answer.ok) throw new Error((await answer.json()).detail);
  return answer.json();
}

/** Until the picture is ready or has failed: by what comes over the socket, and by asking if the socket breaks. */
async function follow(news, mediaId, ask, onProgress) {
  let placeholder = null;
  for (;;) {
    const picture = (await news.next(mediaId)) ?? (await ask());
    if (picture.status === "ready") return picture;
    if (picture.status !== "processing") throw new Error(picture.error ?? "The picture was deleted.");
    if (picture.placeholder) placeholder = placeholderURL(picture.placeholder);
    if (picture.progress !== undefined) onProgress({ stage: "processing", percent: picture.progress, placeholder });
  }
}

/** Addresses with the server in them, for a page that is elsewhere. */
function whole(picture, server) {
  const at = (path) => new URL(path, server).href;
  const variants = Object.entries(picture.variants).map(([name, one]) => [name, { ...one, url: at(one.url) }]);
  const srcset = picture.srcset.split(", ").filter(Boolean).map((part) => part.replace(/^\S+/, at)).join(", ");
  return { ...picture, variants: Object.fromEntries(variants), srcset };
}

/** What the server says of this person's pictures. */
class News {
  #heard = [];
  #wake = () => {};
  #isOpen = true;

  constructor(server, token) {
    const address = new URL("ws", server);
    address.protocol = address.protocol.replace("http", "ws");
    this.socket = new WebSocket(address);
    this.opened = new Promise((resolve) => {
      this.socket.onopen = () => this.socket.send(JSON.stringify({ type: "hello", token }));
      this.socket.onmessage = ({ data }) => {
        const frame = JSON.parse(data);
        if (frame.type === "welcome") resolve();
        if (frame.type === "message" && frame.message?.type === "media") this.#heard.push(frame.message.media);
        this.#wake();
      };
      this.socket.onclose = () => {
        this.#isOpen = false;
        resolve();
        this.#wake();
      };
    });
  }

  /** The next word about a picture; null after a while without a socket. */
  async next(mediaId) {
    for (;;) {
      const place = this.#heard.findIndex((one) => one.id === mediaId);
      if (place >= 0) return this.#heard.splice(0, place + 1).at(-1);
      await new Promise((resolve) => {
        this.#wake = resolve;
        if (!this.#isOpen) setTimeout(resolve, ASK_EVERY);
      });
      if (!this.#isOpen && !this.#heard.some((one) => one.id === mediaId)) return null;
    }
  }

  close() {
    this.socket.onclose = null;
    this.socket.close();
  }
}
