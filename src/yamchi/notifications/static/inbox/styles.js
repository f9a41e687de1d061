// How the inbox looks. Everything a product may want to change is a --yamchi-… property; light or dark is the system's, or `theme`.

export const styles = new CSSStyleSheet();

styles.replaceSync(`
:host {
  --accent: var(--yamchi-accent, light-dark(#a84609, #f59042));
  --background: var(--yamchi-background, light-dark(#ffffff, #1e1c1a));
  --hover: var(--yamchi-hover, light-dark(#f6f5f2, #292623));
  --text: var(--yamchi-text, light-dark(#1f1d1a, #ece8e1));
  --muted: var(--yamchi-muted, light-dark(#6b655e, #a8a198));
  --line: var(--yamchi-line, light-dark(#e5e2dc, #38342f));
  --badge: var(--yamchi-badge, light-dark(#b81a1a, #d4373d));
  --radius: var(--yamchi-radius, 12px);
  color-scheme: light dark;
  display: inline-block;
  position: relative;
  font: var(--yamchi-font, 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif);
  color: var(--text);
  text-align: start;
}
:host([theme="light"]) { color-scheme: light; }
:host([theme="dark"]) { color-scheme: dark; }
:host([hidden]), [hidden] { display: none !important; }
*, *::before { box-sizing: border-box; }
button, a { font: inherit; color: inherit; }
button { background: none; border: 0; padding: 0; margin: 0; cursor: pointer; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
svg { width: 100%; height: 100%; fill: none; stroke: currentColor; stroke-width: 1.7; stroke-linecap: round; stroke-linejoin: round; display: block; }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }

.bell { position: relative; display: grid; place-items: center; width: var(--yamchi-size, 40px); height: var(--yamchi-size, 40px); border-radius: 50%; }
.bell:hover, .bell[aria-expanded="true"] { background: var(--hover); }
.bell svg { width: 58%; height: 58%; }
.badge {
  position: absolute; inset-block-start: 0; inset-inline-end: -3px; min-width: 18px; height: 18px; padding: 0 5px; border-radius: 9px;
  background: var(--badge); color: #fff; font-size: 11px; font-weight: 650; line-height: 18px; text-align: center;
  font-variant-numeric: tabular-nums; box-shadow: 0 0 0 2px var(--background);
}

.panel {
  position: absolute; z-index: 1000; inset-block-start: calc(100% + 8px); inset-inline-end: 0;
  width: min(var(--yamchi-width, 384px), calc(100vw - 16px)); max-height: min(560px, calc(100vh - 96px));
  display: flex; flex-direction: column; overflow: hidden;
  background: var(--background); border: 1px solid var(--line); border-radius: var(--radius);
  box-shadow: 0 2px 6px rgb(0 0 0 / 8%), 0 12px 36px rgb(0 0 0 / 16%);
}
.panel.from-start { inset-inline: 0 auto; }
header { display: flex; align-items: center; justify-content: space-between; gap: 12px; padding: 12px 16px; border-block-end: 1px solid var(--line); }
h2 { margin: 0; font-size: 1.05em; font-weight: 650; line-height: 1.3; }
.quiet { color: var(--accent); font-size: 0.9em; border-radius: 6px; }
.quiet:hover { text-decoration: underline; }
.quiet:disabled { color: var(--muted); cursor: default; text-decoration: none; }

.scroll { overflow-y: auto; overscroll-behavior: contain; }
ul { list-style: none; margin: 0; padding: 0; }
li { position: relative; border-block-end: 1px solid var(--line); }
li:last-child { border-block-end: 0; }
li:hover, li:focus-within { background: var(--hover); }
.open { display: block; width: 100%; padding: 12px 44px 12px 28px; text-align: start; text-decoration: none; }
.open:focus-visible { outline-offset: -2px; border-radius: 4px; }
li.is-unread .open::before {
  content: ""; position: absolute; inset-block-start: 19px; inset-inline-start: 12px; width: 8px; height: 8px; border-radius: 50%; background: var(--accent);
}
.name { display: block; overflow-wrap: anywhere; }
li.is-unread .name { font-weight: 650; }
.text { display: block; color: var(--muted); overflow-wrap: anywhere; white-space: pre-line; }
li.is-unread .text { color: var(--text); }
time { display: block; margin-block-start: 2px; color: var(--muted); font-size: 0.85em; }
.links { display: flex; flex-wrap: wrap; gap: 8px; padding: 0 44px 12px 28px; margin-block-start: -4px; }
.links a { padding: 4px 12px; border: 1px solid var(--line); border-radius: 999px; font-size: 0.9em; text-decoration: none; background: var(--background); }
.links a:hover { border-color: var(--accent); color: var(--accent); }
.archive { position: absolute; inset-block-start: 8px; inset-inline-end: 8px; width: 32px; height: 32px; padding: 7px; border-radius: 8px; color: var(--muted); opacity: 0; }
li:hover .archive, li:focus-within .archive, .archive:focus-visible { opacity: 1; }
.archive:hover { color: var(--text); background: var(--line); }
@media (hover: none) { .archive { opacity: 1; } }

.note { margin: 0; padding: 14px 16px; color: var(--muted); text-align: center; }
.note.is-empty { padding: 44px 24px; }
.more { display: block; width: 100%; padding: 12px; color: var(--accent); border-block-start: 1px solid var(--line); }
.more:hover { background: var(--hover); }
.more:focus-visible { outline-offset: -2px; }

.toasts { position: fixed; z-index: 1001; inset-block-end: 16px; inset-inline-end: 16px; width: min(360px, calc(100vw - 32px)); display: grid; gap: 8px; }
.toast { position: relative; padding: 12px 44px 12px 16px; background: var(--background); border: 1px solid var(--line); border-inline-start: 3px solid var(--accent); border-radius: var(--radius); box-shadow: 0 8px 28px rgb(0 0 0 / 18%); }
.toast a { text-decoration: none; display: block; }
.toast .name { font-weight: 650; }
.toast .archive { opacity: 1; }

@media (max-width: 480px) {
  .panel, .panel.from-start { position: fixed; inset-inline: 8px; inset-block-start: var(--top, 64px); width: auto; max-height: calc(100dvh - var(--top, 64px) - 8px); }
}
@media (prefers-reduced-motion: no-preference) {
  .panel, .toast { animation: appear 120ms ease-out; }
  .archive { transition: opacity 100ms; }
}
@keyframes appear { from { opacity: 0; translate: 0 -4px; } }
`);
