// Numbers, times and spans for people.

import { now } from "/board/api.js";

const UNITS = [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1_000]];

export const count = (number) => number.toLocaleString("en-US");

const compact = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 2 });

/** For where there is little room: from a million on, in millions. */
export const short = (number) => (number < 1_000_000 ? count(number) : compact.format(number));

export function span(millis) {
  const [unit, size] = UNITS.find(([, size]) => millis >= size) ?? ["ms", 1];
  const value = millis / size;
  return `${value < 10 && size > 1000 ? Number(value.toFixed(1)) : value < 10 ? Number(value.toFixed(2)) : Math.round(value)} ${unit}`;
}

/** Whole units: a page that refreshes should not flicker. */
export function ago(moment) {
  if (!moment) return "–";
  const passed = now() - Date.parse(moment);
  if (Math.abs(passed) < 1000) return "now";
  const [unit, size] = UNITS.find(([, size]) => Math.abs(passed) >= size);
  return passed < 0 ? `in ${Math.round(-passed / size)} ${unit}` : `${Math.floor(passed / size)} ${unit} ago`;
}

export const between = (start, end) => span(Math.max(0, Date.parse(end) - Date.parse(start)));

export function exact(moment) {
  return moment ? new Date(moment).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" }) : "";
}

export function size(characters) {
  return characters < 1024 ? `${characters} characters` : characters < 1_048_576 ? `${Math.round(characters / 1024)} KB` : `${(characters / 1_048_576).toFixed(1)} MB`;
}
