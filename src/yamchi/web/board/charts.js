// What a queue got done, minute by minute.

import { now } from "/board/api.js";
import { h } from "/board/dom.js";
import { count } from "/board/format.js";

const MINUTE = 60_000;

/** Every minute of the span, empty ones too, oldest first. */
export function minutes(history, length) {
  const done = new Map(history.map((minute) => [Math.floor(Date.parse(minute.moment) / MINUTE), minute]));
  const latest = Math.floor(now() / MINUTE);
  return Array.from({ length }, (_, index) => {
    const number = latest - length + 1 + index;
    return { moment: number * MINUTE, completed: 0, failed: 0, ...pick(done.get(number)) };
  });
}

const pick = (minute) => (minute ? { completed: minute.completed, failed: minute.failed } : {});

/** Jobs per minute: the last full minute, or this one if it already has more. */
export function pace(history) {
  const [last, current] = minutes(history, 2).map((minute) => minute.completed + minute.failed);
  return Math.max(last, current);
}

export const sparkline = (history) => bars(minutes(history, 30), "spark", 130, 28, false);
export const chart = (history) => bars(minutes(history, 60), "chart", 1180, 110, true);

function bars(data, kind, width, height, hasTitles) {
  const most = Math.max(1, ...data.map((minute) => minute.completed + minute.failed));
  const step = width / data.length;
  const thick = Math.max(step - (kind === "chart" ? 4 : 1.4), 1);
  const total = data.reduce((sum, minute) => sum + minute.completed + minute.failed, 0);
  return h("svg", { class: kind, viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": `${count(total)} jobs in ${data.length} minutes` },
    data.map((minute, index) => {
      const done = (minute.completed / most) * (height - 2);
      const bad = (minute.failed / most) * (height - 2);
      const x = index * step;
      return h("g", {},
        hasTitles && h("title", {}, `${clock(minute.moment)}: ${count(minute.completed)} completed, ${count(minute.failed)} failed`),
        h("rect", { class: "base", x, y: height - 2, width: thick, height: 2, rx: 1 }),
        done > 0 && h("rect", { class: "done", x, y: height - Math.max(done, 2), width: thick, height: Math.max(done, 2), rx: 1.5 }),
        bad > 0 && h("rect", { class: "bad", x, y: height - done - Math.max(bad, 2), width: thick, height: Math.max(bad, 2), rx: 1.5 }));
    }));
}

const clock = (moment) => new Date(moment).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" });
