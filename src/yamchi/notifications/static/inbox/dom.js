// Making elements. What comes from outside only ever becomes text, and an address only if it is a web address.

const SVG = "http://www.w3.org/2000/svg";

/** h("a", {class: "name", href: "/", onclick: f}, "text", node, null) */
export function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) node[name] = value;
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** A drawing of our own, by the path of its lines. */
export function icon(path) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS(SVG, "path");
  line.setAttribute("d", path);
  svg.append(line);
  return svg;
}

/** The address, if a link may lead there; null for javascript: and everything else that is no web page. */
export function webAddress(text) {
  if (!text || !URL.canParse(text, document.baseURI)) return null;
  const url = new URL(text, document.baseURI);
  return url.protocol === "https:" || url.protocol === "http:" ? url : null;
}

/** What a link needs to lead to this address; a page of another site opens beside ours. */
export function linkTo(url) {
  const beside = { target: "_blank", rel: "noopener noreferrer" };
  return { href: url.href, ...(url.origin === location.origin ? {} : beside) };
}
