// Where the page's token comes from: the page gave one, or its backend is asked; asked again a while before it expires.

import { expiryOf } from "./api.js";

const EARLY = 0.2; // of its life is left when the next one is fetched
const LATEST = 2 ** 31 - 1; // the longest that a timer can wait

export class Tokens {
  #token = null;
  #asking = null;
  #timer = null;

  /** `ask()` gives a Promise of a new token; `fresh(token)` is told of each one. */
  constructor(ask, fresh) {
    this.ask = ask;
    this.fresh = fresh;
  }

  /** The token in use; another one where that was refused or has expired. */
  get = (isRefused = false) => {
    const isGood = this.#token && !isRefused && expiryOf(this.#token) > Date.now();
    return isGood ? Promise.resolve(this.#token) : this.#renew();
  };

  put(token) {
    this.#token = token;
    clearTimeout(this.#timer);
    const left = expiryOf(token) - Date.now();
    if (left > 0) this.#timer = setTimeout(this.#renewEarly, Math.min(left * (1 - EARLY), LATEST));
  }

  stop() {
    clearTimeout(this.#timer);
  }

  // Whoever needs the token next asks again, and then the failure shows.
  #renewEarly = () => this.#renew().catch((error) => console.debug("yamchi-inbox: no new token yet:", error.message));

  #renew() {
    this.#asking ??= this.ask()
      .then((token) => {
        if (typeof token !== "string" || !token) throw new Error("there is no token");
        this.put(token);
        this.fresh(token);
        return token;
      })
      .finally(() => (this.#asking = null));
    return this.#asking;
  }
}
