// What people do to queues and jobs, with the questions that belong to it.

import { post, queuePath, request, jobPath } from "/board/api.js";
import { field, form, note, readJson } from "/board/dialogs.js";
import { h } from "/board/dom.js";
import { count } from "/board/format.js";

const CLEANABLE = ["completed", "failed", "cancelled", "expired", "delayed", "waiting"];

export async function addJob(info, initial = {}) {
  const names = info.jobs.length ? h("label", {}, "Job", h("select", { name: "name" }, info.jobs.map((name) => h("option", {}, name)))) : field("Job", "name", { placeholder: info.name });
  const added = await form({
    title: `Add a job to ${info.name}`,
    yes: "Add job",
    body: () => [
      h("label", {}, "Data (JSON)", h("textarea", { name: "data", spellcheck: "false", value: initial.data ?? "{}" })),
      h("div", { class: "fields" }, names, field("Delay", "delay", { placeholder: "0s, 30s, 5m" }), field("Priority", "priority", { type: "number", min: 0, max: 10, placeholder: "1–10" }), field("Id", "id", { placeholder: "made for you" })),
    ],
    read: (elements) => ({
      data: readJson(elements.data.value),
      name: elements.name.value || undefined,
      delay: elements.delay.value.trim() || undefined,
      priority: elements.priority.value ? Number(elements.priority.value) : undefined,
      id: elements.id.value.trim() || undefined,
    }),
    act: (job) => post(`${queuePath(info.name)}/jobs`, job),
  });
  if (added) note(`${added.name} ${added.id} added.`);
}

export async function cleanQueue(info) {
  const done = await form({
    title: `Clean ${info.name}`,
    yes: "Remove jobs",
    isDanger: true,
    body: () => [
      h("div", { class: "fields" },
        h("label", {}, "Jobs that are", h("select", { name: "state" }, CLEANABLE.map((state) => h("option", { value: state }, `${state} (${count(info.counts[state])})`)))),
        field("For at least", "older_than", { placeholder: "0s, 1h, 7d" })),
    ],
    read: (elements) => ({ state: elements.state.value, older_than: elements.older_than.value.trim() || 0 }),
    act: (what) => post(`${queuePath(info.name)}/clean`, what),
  });
  if (done) note(`${count(done.count)} jobs removed.`);
}

/** New data for a job that is not running; a finished one is also put back. */
export async function editJob(job, isFinished) {
  const edited = await form({
    title: isFinished ? "Edit and retry" : "Edit data",
    yes: isFinished ? "Save and retry" : "Save",
    body: () => [h("label", {}, "Data (JSON)", h("textarea", { name: "data", rows: 14, spellcheck: "false", value: JSON.stringify(job.data, null, 2) }))],
    read: (elements) => ({ data: readJson(elements.data.value), retry: isFinished }),
    act: (edit) => request("PATCH", jobPath(job.queue, job.id), edit),
  });
  if (edited) note(isFinished ? "Saved and put back." : "Saved.");
}
