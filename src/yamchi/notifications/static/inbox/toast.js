// A message that is not kept: shown in a corner for a while, unless the page takes it for itself.

import { h, icon, linkTo, webAddress } from "./dom.js";

const CROSS = "M6 6l12 12M18 6L6 18";
const SHOWN = 10_000;
const MOST = 4;

export function showToast(region, message, texts) {
  const url = webAddress(message.url);
  const inside = [
    message.title ? h("span", { class: "name" }, message.title) : null,
    h("span", { class: "text" }, message.text),
  ];
  const toast = h("div", { class: "toast", part: "toast" }, url ? h("a", linkTo(url), ...inside) : h("div", {}, ...inside));
  const remove = () => toast.remove();
  toast.append(h("button", { class: "archive", type: "button", "aria-label": texts.close, onclick: remove }, icon(CROSS)));
  let timer = setTimeout(remove, SHOWN);
  toast.onpointerenter = () => clearTimeout(timer);
  toast.onpointerleave = () => (timer = setTimeout(remove, SHOWN));
  region.append(toast);
  while (region.children.length > MOST) region.firstChild.remove();
}
