// Talking to the server. An error is an Error whose message is the sentence the server gave.

let skew = 0;

/** The server's time, whatever this machine's clock says. */
export const now = () => Date.now() + skew;

/** JSON whose numbers are as they were written: what JavaScript would round, such as an id of nineteen digits, is kept as its text. */
export const parse = (text) => JSON.parse(text, (_, value, context) => (isRounded(value, context) ? JSON.rawJSON(context.source) : value));

const isRounded = (value, context) => Number.isInteger(value) && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source ?? "") && "rawJSON" in JSON;

export async function request(method, path, body) {
  let response;
  try {
    response = await fetch(`/api${path}`, {
      method,
      headers: body === undefined ? {} : { "content-type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw Object.assign(new Error("The server does not answer."), { isOffline: true });
  }
  noteTime(response);
  if (response.status === 401) location.assign("/sign-in");
  if (response.status === 204) return null;
  const answer = await response.text().then(parse).catch(() => ({}));
  if (!response.ok) throw Object.assign(new Error(answer.detail ?? `The server answered ${response.status}.`), { status: response.status });
  return answer;
}

function noteTime(response) {
  const difference = Date.parse(response.headers.get("date")) - Date.now();
  if (Number.isFinite(difference)) skew = Math.abs(difference) > 3000 ? difference : 0;
}

export const get = (path) => request("GET", path);
export const post = (path, body) => request("POST", path, body);

const part = encodeURIComponent;
export const queuePath = (queue) => `/queues/${part(queue)}`;
export const jobPath = (queue, id) => `${queuePath(queue)}/jobs/${part(id)}`;
export const letterPath = (queue, id) => `${queuePath(queue)}/dlq/${part(id)}`;
export const query = (values) => {
  const kept = Object.entries(values).filter(([, value]) => value !== "" && value !== undefined && value !== null);
  return kept.length ? `?${new URLSearchParams(kept)}` : "";
};

/** Addresses of the board's own pages. */
export const to = {
  queue: (queue, values = {}) => `#/queues/${part(queue)}${query(values)}`,
  job: (queue, id) => `#/queues/${part(queue)}/jobs/${part(id)}`,
  letters: (queue, values = {}) => `#/queues/${part(queue)}/dlq${query(values)}`,
};
