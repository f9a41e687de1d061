// The live line to Yamchi: says hello with the token, goes on from the last number seen, and comes back after every break.

const SHORTEST = 500;
const LONGEST = 30_000;
const SILENCE = 70_000; // the server pings every 25 s; after this long without a word the line is dead
const BAD_TOKEN = 4401;
const FINAL = new Set([4400, 4403]); // our fault or the page's: trying again changes nothing

export class Connection {
  #socket = null;
  #since = null;
  #tries = 0;
  #timers = {};
  #isWanted = false;
  #hasSaidHello = false;

  /** `hooks`: token(isRefused) → Promise of a token, frame(frame), state("live" | "offline" | "refused", reason). */
  constructor(address, hooks) {
    this.address = address;
    this.hooks = hooks;
  }

  start() {
    if (this.#isWanted) return;
    this.#isWanted = true;
    addEventListener("online", this.#hurry);
    document.addEventListener("visibilitychange", this.#hurry);
    this.#open(false);
  }

  stop() {
    this.#isWanted = false;
    removeEventListener("online", this.#hurry);
    document.removeEventListener("visibilitychange", this.#hurry);
    this.#drop();
  }

  /** Bring a newer token, so that the line outlives the old one. */
  renew(token) {
    if (this.#hasSaidHello) this.#say({ type: "token", token });
    else if (this.#isWanted && !this.#socket) this.#open(false); // it was waiting for a better one
  }

  async #open(isRefused) {
    this.#drop();
    const socket = new WebSocket(this.address);
    this.#socket = socket;
    socket.onmessage = (event) => this.#hear(JSON.parse(event.data));
    socket.onclose = (event) => this.#socket === socket && this.#closed(event);
    try {
      const [token] = await Promise.all([this.hooks.token(isRefused), opened(socket)]);
      if (this.#socket === socket && socket.readyState === WebSocket.OPEN) {
        this.#say({ type: "hello", token, since: this.#since });
        this.#hasSaidHello = true;
        this.#expectLife();
      }
    } catch (error) {
      if (this.#socket === socket) this.#closed({ code: 0, reason: error.message });
    }
  }

  #hear(frame) {
    this.#expectLife();
    if (frame.type === "welcome") {
      this.#tries = 0;
      this.hooks.state("live");
    }
    if (frame.seq !== undefined) this.#since = frame.seq;
    if (frame.type !== "ping") this.hooks.frame(frame);
  }

  #closed({ code, reason }) {
    this.#drop();
    if (!this.#isWanted) return;
    const isOver = FINAL.has(code);
    const isRefused = isOver || (code === BAD_TOKEN && this.#tries > 1); // the first time it may just have expired
    this.hooks.state(isRefused ? "refused" : "offline", reason);
    if (isOver) return;
    const longest = Math.min(LONGEST, SHORTEST * 2 ** this.#tries++);
    // Spread out: when a server restarts, all of its pages come back.
    this.#timers.again = setTimeout(() => this.#open(code === BAD_TOKEN), longest * (0.5 + Math.random() / 2));
  }

  #hurry = () => {
    if (document.visibilityState === "visible" && this.#timers.again && !this.#socket) this.#open(false);
  };

  #say(message) {
    this.#socket.send(JSON.stringify(message));
  }

  #expectLife() {
    clearTimeout(this.#timers.silence);
    this.#timers.silence = setTimeout(() => this.#closed({ code: 0, reason: "silence" }), SILENCE);
  }

  #drop() {
    Object.values(this.#timers).forEach(clearTimeout);
    this.#timers = {};
    const socket = this.#socket;
    this.#socket = null;
    this.#hasSaidHello = false;
    socket?.close();
  }
}

function opened(socket) {
  return new Promise((resolve, reject) => {
    socket.onopen = resolve;
    socket.onerror = () => reject(new Error("no connection"));
  });
}
