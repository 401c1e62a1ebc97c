// Building elements without markup: text is always text.

/// el("button.quiet", {type: "button", onclick: f, "aria-label": "…"}, "text", child, …)
export function el(what, attributes = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const node = document.createElement(tag || "div");
  if (classes.length > 0) node.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "dataset") Object.assign(node.dataset, value);
    else if (key in node && !key.includes("-") && key !== "list") node[key] = value;
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const SVG = "http://www.w3.org/2000/svg";

/// An icon of strokes in a box of 20 by 20.
export function icon(path) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 20 20");
  svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS(SVG, "path");
  line.setAttribute("d", path);
  svg.append(line);
  return svg;
}

export const icons = {
  copy: "M7 7V4h9v9h-3M4 7h9v9H4z",
  edit: "M4 16l.8-3.2L13 4.6l2.4 2.4-8.2 8.2z",
  again: "M15.5 10a5.5 5.5 0 1 1-1.7-4M15.5 3.5V7H12",
  left: "M12 5l-5 5 5 5",
  right: "M8 5l5 5-5 5",
  axes: "M10 11V3M10 11l-7 5M10 11l7 5",
  trash: "M4 6h12M8 6V4h4v2M6 6l.6 10h6.8L14 6",
};

export const $ = (id) => document.getElementById(id);

export function announce(text) {
  $("announce").textContent = text;
}

/// Random, also where the page is not a secure context.
export function fresh_id() {
  return [...crypto.getRandomValues(new Uint8Array(12))].map((b) => b.toString(16).padStart(2, "0")).join("");
}

export async function copy_text(text) {
  if (navigator.clipboard !== undefined) return navigator.clipboard.writeText(text);
  const area = el("textarea.visually-hidden", { value: text });
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/// Hands text over as a file.
export function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

const binary = ["B", "KiB", "MiB", "GiB", "TiB"];
export function bytes_text(bytes) {
  let unit = 0;
  while (bytes >= 1024 && unit < binary.length - 1) {
    bytes /= 1024;
    ++unit;
  }
  return `${bytes >= 100 || unit === 0 ? Math.round(bytes) : bytes.toFixed(1)} ${binary[unit]}`;
}

/// Three digits at most; thousands as k, millions as M.
export function short_number(x) {
  if (!Number.isFinite(x)) return "∞";
  const size = Math.abs(x);
  const scaled = (by) => Number((x / by).toFixed(size >= 100 * by ? 0 : 1));
  if (size >= 1e6) return `${scaled(1e6)}M`;
  if (size >= 1e4) return `${scaled(1e3)}k`;
  if (size >= 100 || Number.isInteger(x)) return Math.round(x).toLocaleString("en");
  return x.toFixed(size >= 10 ? 1 : 2);
}

export const percent = (share) => (Number.isFinite(share) ? `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)}%` : "–");
