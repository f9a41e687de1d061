// Light, dark, or as the system says; remembered by the browser.

import { h } from "/board/dom.js";

const NEXT = { auto: "light", light: "dark", dark: "auto" };
const LABELS = { auto: ["◐", "Auto"], light: ["☀", "Light"], dark: ["☾", "Dark"] };

export function installTheme(button) {
  const apply = (theme) => {
    if (theme === "auto") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.dataset.theme = theme;
    if (!button) return;
    const [sign, word] = LABELS[theme];
    button.replaceChildren(sign, h("span", { class: "word" }, ` ${word}`));
    button.onclick = () => {
      localStorage.setItem("yamchi-theme", NEXT[theme]);
      apply(NEXT[theme]);
    };
  };
  const kept = localStorage.getItem("yamchi-theme");
  apply(kept in NEXT ? kept : "auto");
}
