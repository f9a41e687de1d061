// Making and updating elements. Data from outside only ever becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "rect", "path", "title", "g"]);

let isReadOnly = false;

/** Whoever may only look sees nothing that `acts`. The server refuses it all the same. */
export function setReadOnly(value) {
  isReadOnly = value;
  document.documentElement.toggleAttribute("data-read-only", value);
}

/** h("a", {class: "name", href: "#/", onclick: f, key: "a", acts: true, given: ""}, "text", node, [nodes], null) */
export function h(tag, props = {}, ...children) {
  if (isReadOnly && props?.acts) return null;
  const isSvg = SVG_TAGS.has(tag);
  const node = isSvg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false || name === "acts") continue;
    if (name === "key") node.key = String(value);
    else if (name.startsWith("on") || name === "given") node[name] = value;
    else if (name === "checked" || name === "value" || name === "disabled") node[name] = value;
    else node.setAttribute(name, value === true ? "" : asText(value));
  }
  node.append(...flat(children));
  return node;
}

function flat(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(asText(child))));
}

/** A value as a page shows it; a number that was kept as its text has no other. */
export const asText = (value) => (JSON.isRawJSON?.(value) ? value.rawJSON : String(value));

/** Makes the children of `parent` look like `nodes`, changing as little as possible: focus, scroll and text survive. */
export function patch(parent, nodes) {
  const wanted = flat([nodes]);
  const keyed = new Map([...parent.childNodes].filter((node) => node.key).map((node) => [node.key, node]));
  wanted.forEach((next, index) => {
    const here = parent.childNodes[index];
    const old = next.key ? keyed.get(next.key) : here && !here.key ? here : undefined;
    if (old && isSameKind(old, next)) {
      if (old !== here) parent.insertBefore(old, here ?? null);
      morph(old, next);
    } else {
      parent.insertBefore(next, here ?? null);
    }
  });
  while (parent.childNodes.length > wanted.length) parent.lastChild.remove();
}

function isSameKind(old, next) {
  return old.nodeType === next.nodeType && old.nodeName === next.nodeName && old.key === next.key;
}

function morph(old, next) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== next.data) old.data = next.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!next.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of next.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const handler of ["onclick", "oninput", "onchange", "onsubmit", "onkeydown"]) {
    if (old[handler] !== next[handler]) old[handler] = next[handler];
  }
  if ("disabled" in old && old.disabled !== next.disabled) old.disabled = next.disabled;
  if (old.type === "checkbox") old.checked = next.checked;
  if (old.nodeName === "TEXTAREA" || old.nodeName === "INPUT" || old.nodeName === "SELECT") return morphField(old, next);
  patch(old, [...next.childNodes]);
}

/** A field keeps what somebody types, until what the address has `given` it is something else than what the field itself asked for. */
function morphField(old, next) {
  if (old.given === next.given) return;
  old.given = next.given;
  old.value = next.value;
}
