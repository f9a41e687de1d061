// The person's inbox over HTTP. A token that has expired is replaced once, without a word.

export class InboxApi {
  /** `token(isRefused)` gives a Promise of a token. */
  constructor(server, token) {
    this.server = server;
    this.token = token;
  }

  page(cursor) {
    return this.#ask("GET", cursor ? `?cursor=${encodeURIComponent(cursor)}` : "");
  }

  readAll() {
    return this.#ask("POST", "/read-all");
  }

  change(id, action) {
    return this.#ask("POST", `/${encodeURIComponent(id)}/${action}`);
  }

  async #ask(method, path, isRefused = false) {
    const token = await this.token(isRefused);
    const url = new URL(`api/v1/users/${encodeURIComponent(personOf(token))}/inbox${path}`, this.server);
    const headers = { authorization: `Bearer ${token}` };
    const answer = await fetch(url, { method, headers, keepalive: method === "POST" }); // outlives a click that leaves
    if (answer.status === 401 && !isRefused) return this.#ask(method, path, true);
    if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).detail ?? `answered ${answer.status}`);
    return answer.json();
  }
}

/** person.<expiry>.<user id>.… */
const personOf = (token) => token.split(".")[2] ?? "";
export const expiryOf = (token) => Number(token.split(".")[1]) || 0;
