// One job: what it was given, what became of it, and what can be done about it.

import { get, jobPath, post, request, to } from "/board/api.js";
import { editJob } from "/board/actions.js";
import { ask, attempt } from "/board/dialogs.js";
import { h } from "/board/dom.js";
import { between, exact, span } from "/board/format.js";
import { acts, badge, facts, timeline } from "/board/listing.js";
import { progress } from "/board/queue.js";
import { section } from "/board/viewer.js";

const FINISHED = ["completed", "failed", "cancelled", "expired"];
const isFinished = (job) => FINISHED.includes(job.state);

export const job = {
  title: ({ names: [, id] }) => id,
  load: ({ names: [queue, id] }) => get(jobPath(queue, id)),
  pause: (job) => (job && isFinished(job) ? 5_000 : undefined),
  render: (job, context) => [
    h("div", { class: "crumbs", key: "crumbs" }, h("a", { href: to.queue(job.queue) }, job.queue), " / ", job.name),
    h("div", { class: "row head", key: "head" }, h("h1", { class: "mono" }, job.id), badge(job.state, job.state), progress(job), h("span", { class: "grow" }), actions(job, context)),
    h("div", { class: "columns", key: "columns" },
      h("div", { class: "stack" },
        job.failed_reason && h("div", { class: "card banner", key: "reason" }, job.failed_reason),
        section("Data", job.data, `data ${job.id}`, context.show),
        job.result !== null && section("Result", job.result, `result ${job.id}`, context.show),
        job.stacktrace && section("Stack", job.stacktrace, `stack ${job.id}`, context.show),
        job.logs.length > 0 && section("Log", job.logs.join("\n"), `log ${job.id}`, context.show)),
      h("div", { class: "stack" }, timeline("Timeline", steps(job)), facts("Options", options(job)))),
  ],
};

function actions(job, context) {
  const path = jobPath(job.queue, job.id);
  const edit = () => h("button", { acts: true, type: "button", key: "edit", onclick: () => editJob(job, isFinished(job)).then(context.refresh) }, isFinished(job) ? "Edit and retry" : "Edit data");
  return [
    isFinished(job) && acts("Retry", () => post(`${path}/retry`), "Put back.", context, "primary"),
    job.state === "delayed" && acts("Run now", () => post(`${path}/promote`), "Promoted.", context, "primary"),
    job.state !== "active" && edit(),
    !isFinished(job) && acts("Cancel", () => post(`${path}/cancel`), (now) => (now.state === "active" ? "Asked to stop." : "Cancelled."), context, ""),
    job.state !== "active" && h("button", { acts: true, class: "danger", type: "button", key: "remove", onclick: () => remove(job, path) }, "Remove"),
  ];
}

async function remove(job, path) {
  if (!(await ask("Remove this job?", `${job.name} ${job.id} can't be brought back.`, "Remove"))) return;
  if (await attempt(() => request("DELETE", path), "Removed.")) location.hash = to.queue(job.queue);
}

function steps(job) {
  const isLater = Date.parse(job.run_at) > Date.parse(job.created_at);
  return [
    ["waiting", "Added", job.created_at],
    isLater && [job.state === "delayed" ? "delayed" : "waiting", job.attempts_made && !job.finished_at ? "Next try" : "Due", job.run_at],
    job.started_at && ["active", `Started${job.attempts_made > 1 ? `, try ${job.attempts_made}` : ""}`, job.started_at, waited(job)],
    job.finished_at && [job.state, job.state[0].toUpperCase() + job.state.slice(1), job.finished_at, job.started_at && `ran ${between(job.started_at, job.finished_at)}`],
  ].filter(Boolean).sort((one, other) => Date.parse(one[2]) - Date.parse(other[2]));
}

function waited(job) {
  const due = Math.max(Date.parse(job.run_at), Date.parse(job.created_at));
  const length = Date.parse(job.started_at) - due;
  return length >= 0 ? `waited ${span(length)}` : null;
}

function options(job) {
  return [
    ["Attempts", `${job.attempts_made} of ${job.attempts}`],
    ["Backoff", backoff(job.backoff)],
    ["Priority", job.priority || null],
    ["Timeout", job.timeout ? span(job.timeout) : null],
    ["Expires", job.expires_at && exact(job.expires_at)],
    ["Progress", job.progress === null ? null : typeof job.progress === "number" ? `${job.progress} %` : JSON.stringify(job.progress).slice(0, 200)],
    ["Worker", job.worker],
    ["Keeps", `${job.keep_completed} completed, ${job.keep_failed} failed`],
  ];
}

function backoff({ kind, delay, steps, jitter }) {
  const waits = kind === "steps" ? steps.map(span).join(", ") : `${kind}, ${span(delay)}`;
  return jitter ? `${waits} ± ${Math.round(jitter * 100)} %` : waits;
}
