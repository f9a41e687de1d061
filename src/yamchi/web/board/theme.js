// Light, dark, or as the system says; remembered by the browser.

const NEXT = { auto: "light", light: "dark", dark: "auto" };
const LABELS = { auto: "◐ Auto", light: "☀ Light", dark: "☾ Dark" };

export function installTheme(button) {
  const apply = (theme) => {
    if (theme === "auto") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.dataset.theme = theme;
    if (!button) return;
    button.textContent = LABELS[theme];
    button.onclick = () => {
      localStorage.setItem("yamchi-theme", NEXT[theme]);
      apply(NEXT[theme]);
    };
  };
  const kept = localStorage.getItem("yamchi-theme");
  apply(kept in NEXT ? kept : "auto");
}
