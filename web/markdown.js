// Markdown that a model wrote, shown safely and while it grows. Three walls stand between its text
// and the page: raw HTML is escaped here, what marked makes is sanitised to a short list of tags
// and attributes, and the server's content-security policy runs no script but its own files.
import "./lib/marked.js";
import "./lib/purify.js";
import { copy_text, el } from "./dom.js";

const { marked, DOMPurify } = globalThis;

// Text beyond these is shown plainly: a parser in a browser must not be kept busy by an answer.
const block_max = 16384;   // characters of one block
const specials_max = 800;  // of markdown's own characters in it
const piece_max = 2000;    // of plain text in one box
const links_max = 150;     // whose search for an end is what costs most
const nesting_max = 24;    // quotes and lists in each other
const parse_ms_max = 300;  // after one that took longer the rest of its block is plain
const highlight_max = 20000;

const escaped = (text) => text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);

const maths = (tex, display, raw) =>
  `<span class="math" data-tex="${escaped(tex)}" data-display="${display ? 1 : ""}">${escaped(raw)}</span>`;

const math_block = {
  name: "math_block",
  level: "block",
  start: (src) => src.match(/^(?:\$\$|\\\[)/m)?.index,
  tokenizer(src) {
    const found = /^\$\$([\s\S]{1,4000}?)\$\$[ \t]*(?:\n|$)/.exec(src) ?? /^\\\[([\s\S]{1,4000}?)\\\][ \t]*(?:\n|$)/.exec(src);
    return found ? { type: "math_block", raw: found[0], tex: found[1].trim() } : undefined;
  },
  renderer: (token) => `<p>${maths(token.tex, true, token.raw)}</p>`,
};

const math_inline = {
  name: "math_inline",
  level: "inline",
  start: (src) => src.match(/\$|\\\(|\\\[/)?.index,
  tokenizer(src) {
    const display = /^\$\$([^$]{1,2000})\$\$/.exec(src) ?? /^\\\[([\s\S]{1,2000}?)\\\]/.exec(src);
    if (display) return { type: "math_inline", raw: display[0], tex: display[1].trim(), display: true };
    // A dollar before a space or after one, or before a digit at its end, is money.
    const inline = /^\$(?![\s$])([^$\n]{0,1000}?[^\s$\\])\$(?!\d)/.exec(src) ?? /^\\\(([\s\S]{1,1000}?)\\\)/.exec(src);
    return inline ? { type: "math_inline", raw: inline[0], tex: inline[1].trim(), display: false } : undefined;
  },
  renderer: (token) => maths(token.tex, token.display, token.raw),
};

marked.use({
  gfm: true,
  mangle: false,
  headerIds: false,
  extensions: [math_block, math_inline],
  renderer: {
    html: (html) => escaped(html),
    // The page loads nothing from elsewhere: an image is a link to it.
    image: (href, title, text) => `<a href="${escaped(href ?? "")}">image: ${escaped(text || title || href || "")}</a>`,
    code: (code, language) => `<pre data-language="${escaped((language ?? "").split(/\s/)[0])}"><code>${escaped(code)}</code></pre>`,
    checkbox: (checked) => (checked ? "☑ " : "☐ "),
  },
});

const clean = {
  ALLOWED_TAGS: ["p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "pre", "code",
    "em", "strong", "del", "a", "table", "thead", "tbody", "tr", "th", "td", "span", "sup", "sub"],
  ALLOWED_ATTR: ["href", "title", "class", "align", "start", "data-tex", "data-display", "data-language"],
  ADD_URI_SAFE_ATTR: ["align", "start", "data-tex", "data-display", "data-language"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:)/i,
  RETURN_DOM_FRAGMENT: true,
};

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A") return;
  if (!node.hasAttribute("href")) return;
  node.setAttribute("rel", "noopener noreferrer nofollow");
  node.setAttribute("target", "_blank");
});

/// Whether a parser may look at it.
export function is_harmless(text) {
  if (text.length > block_max) return false;
  if ((text.match(/[[\]*_>`~$\\<!]/g) ?? []).length > specials_max) return false;
  if (text.split("](").length > links_max) return false;
  return !text.split("\n").some((line) => (line.match(/^(?:[ \t]*(?:>|[-+*]|\d{1,9}[.)]))+/)?.[0].match(/[>\-+*.)]/g) ?? []).length > nesting_max);
}

const whole_fence = /^ {0,3}(`{3,}|~{3,})[ \t]*([^\n`]*)\n([\s\S]*?)(?:\n? {0,3}\1[`~]*[ \t]*\n*)?$/;

/// In pieces: a browser's time to break one very long line grows with its square.
function plain(text) {
  const fragment = new DocumentFragment();
  for (let at = 0; at < text.length; at += piece_max) fragment.append(el("div.plain", {}, text.slice(at, at + piece_max)));
  return fragment;
}

/// A fragment for one block of markdown.
function render(text) {
  const fence = whole_fence.exec(text);
  if (fence !== null) {
    const pre = el("pre", { "data-language": fence[2].trim().split(/\s/)[0] }, el("code", {}, fence[3]));
    const fragment = new DocumentFragment();
    fragment.append(pre);
    return fragment;
  }
  if (is_harmless(text)) {
    try {
      return DOMPurify.sanitize(marked.parse(text), clean);
    } catch {
      // A parser that gave up: the text itself is always right.
    }
  }
  return plain(text);
}

let highlighter;
let typesetter;
/// Libraries of some size come when an answer needs them.
const load_highlighter = () => (highlighter ??= import("./lib/highlight.js").then(() => globalThis.hljs));
const load_typesetter = () => (typesetter ??= import("./lib/katex.js").then(() => globalThis.katex));

async function highlight(pre) {
  const code = pre.querySelector("code");
  const language = pre.dataset.language;
  if (!language || code === null || code.textContent.length > highlight_max) return;
  const hljs = await load_highlighter();
  if (!hljs.getLanguage(language)) return;
  const marked_up = hljs.highlight(language, code.textContent, true).value;
  code.replaceChildren(DOMPurify.sanitize(marked_up, { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_DOM_FRAGMENT: true }));
}

async function typeset(span) {
  const { tex, display } = span.dataset;
  const katex = await load_typesetter();
  try {
    // HTML alone: KaTeX writes MathML's styles as attributes, which the policy forbids. What is
    // read aloud is the source.
    const box = el("span", { role: "math", "aria-label": tex });
    katex.render(tex, box, { displayMode: display === "1", output: "html", throwOnError: true, trust: false, strict: "ignore", maxSize: 20, maxExpand: 200 });
    span.replaceChildren(box);
  } catch {
    span.classList.add("failed"); // the source stays
  }
}

function frame_code(pre) {
  const language = pre.dataset.language;
  const button = el("button.quiet.copy-code", {
    type: "button",
    onclick: async () => {
      await copy_text(pre.querySelector("code").textContent);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    },
  }, "Copy");
  const frame = el("div.code-frame", {}, el("div.code-head", {}, el("span", {}, language || "text"), button));
  pre.replaceWith(frame);
  pre.tabIndex = 0;
  frame.append(pre);
}

function finish(block, last) {
  for (const table of block.querySelectorAll("table")) {
    const scroll = el("div.table-scroll", { tabIndex: 0 });
    table.replaceWith(scroll);
    scroll.append(table);
  }
  for (const pre of block.querySelectorAll("pre")) {
    frame_code(pre);
    if (last) highlight(pre);
  }
  for (const span of block.querySelectorAll("span.math")) typeset(span);
}

const fence_line = /^ {0,3}(`{3,}|~{3,})/;
const goes_on = /^(?:[ \t]|[-+*][ \t]|\d{1,9}[.)][ \t]|\||>|$)/;

/// Shows markdown in `host` while it comes. What lies before the last open block is rendered once.
export class Markdown {
  constructor(host) {
    this.host = host;
    this.text = "";     // of the open block
    this.scanned = 0;   // of it: up to a line's beginning
    this.fence = "";    // that is open
    this.blank = false; // the line before was empty
    this.heavy = false; // the open block keeps the parser busy
    this.tail = el("div.block");
    host.replaceChildren(this.tail);
    this.due = 0;
  }

  append(text) {
    this.text += text;
    this.scan();
    this.draw();
  }

  finish() {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.paint(true);
  }

  /// Closes blocks that no later line can change.
  scan() {
    for (let end; (end = this.text.indexOf("\n", this.scanned)) !== -1; ) {
      const line = this.text.slice(this.scanned, end);
      const mark = fence_line.exec(line)?.[1] ?? "";
      const opens = this.fence === "" && mark !== "";
      const closes = this.fence !== "" && mark.startsWith(this.fence) && line.trim() === mark;
      if (this.fence === "" && this.scanned > 0 && ((this.blank && !goes_on.test(line)) || opens || this.scanned > block_max)) {
        this.close(this.scanned);
        continue;
      }
      this.scanned = end + 1;
      this.blank = this.fence === "" && line.trim() === "";
      if (opens) this.fence = mark;
      else if (closes) {
        this.fence = "";
        this.close(this.scanned);
      }
    }
  }

  close(length) {
    const rest = this.text.slice(length);
    this.text = this.text.slice(0, length);
    this.paint(true);
    this.tail = el("div.block");
    this.host.append(this.tail);
    this.text = rest;
    this.scanned = 0;
    this.blank = false;
    this.heavy = false;
  }

  /// The longer a block, the less often it is drawn anew.
  draw() {
    if (this.timer !== undefined) return;
    const wait = Math.max(0, this.due - performance.now());
    this.timer = setTimeout(() => {
      this.timer = undefined;
      const began = performance.now();
      this.paint(false);
      this.due = performance.now() + 40 + 8 * (performance.now() - began);
      this.host.dispatchEvent(new Event("grown", { bubbles: true }));
    }, wait);
  }

  paint(last) {
    const began = performance.now();
    this.tail.replaceChildren(this.heavy ? plain(this.text) : render(this.text));
    this.heavy ||= performance.now() - began > parse_ms_max;
    finish(this.tail, last);
  }
}
