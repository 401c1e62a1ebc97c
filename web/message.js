// One message of the thread as elements. Knows nothing of the server.
import { copy_text, el, icon, icons, percent, short_number } from "./dom.js";
import { Markdown } from "./markdown.js";

const seconds = (ms) => (ms < 950 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 9950 ? 1 : 0)} s`);

function action(label, path, onclick) {
  return el("button.icon-button", { type: "button", "aria-label": label, title: label, onclick }, icon(path));
}

/// "2 of 3" with a way to the others; nothing where there is one.
function branches(place, on_turn) {
  if (place.count < 2) return null;
  const step = (label, path, by) => {
    const button = action(label, path, () => on_turn(by));
    button.disabled = place.index + by < 0 || place.index + by >= place.count;
    return button;
  };
  return el("span.branches", { role: "group", "aria-label": "Versions" },
    step("Version before", icons.left, -1),
    el("span.count", {}, `${place.index + 1}/${place.count}`),
    step("Next version", icons.right, 1));
}

/// What an answer cost, in one line.
export function usage_text(node) {
  const { usage, timing } = node;
  if (!usage) return node.stopped ? "stopped" : "";
  const parts = [];
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  parts.push(`${short_number(usage.prompt_tokens)} tokens in`);
  if (cached > 0) parts.push(`${short_number(cached)} cached (${percent(cached / usage.prompt_tokens)})`);
  parts.push(`${short_number(usage.completion_tokens)} out`);
  const decode = timing ? timing.end - timing.first : 0;
  if (decode > 0 && usage.completion_tokens > 1) {
    parts.push(`${short_number(((usage.completion_tokens - 1) * 1000) / decode)}/s`);
  }
  if (timing?.first) parts.push(`first after ${seconds(timing.first - timing.begin)}`);
  if (node.stopped) parts.push("stopped");
  else if (node.finish === "length") parts.push("cut at the longest answer");
  return parts.join(" · ");
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

function call_card(call, answer) {
  const card = el("div.call", {},
    el("div.call-head", {}, el("span.call-label", {}, "calls"), el("code", {}, call.name || "…")),
    el("pre", { tabIndex: 0 }, el("code", {}, pretty(call.arguments))));
  if (answer) {
    const input = el("textarea", { rows: 2, "aria-label": `Result of ${call.name}`, placeholder: "Result, as the tool would give it" });
    const form = el("form.call-result", {
      onsubmit: (event) => {
        event.preventDefault();
        answer(call, input.value);
      },
    }, input, el("button.button", { type: "submit" }, "Give result"));
    card.append(form);
  }
  return card;
}

/// A question, or a tool's result. `on`: {edit(text), turn(step)}.
export function question(node, place, on) {
  const body = el(node.role === "tool" ? "pre.bubble.tool" : "div.bubble", {}, node.content);
  const article = el("article.message.user", { "aria-label": node.role === "tool" ? "Tool result" : "You", dataset: { id: node.id } });
  const edit = () => {
    const input = el("textarea.edit", { value: node.content, "aria-label": "Edit the question" });
    const send = () => on.edit(input.value);
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      } else if (event.key === "Escape") {
        event.stopPropagation();
        show();
      }
    });
    article.replaceChildren(
      el("div.editor", {}, input,
        el("div.row", {},
          el("button.quiet", { type: "button", onclick: show }, "Cancel"),
          el("button.button.primary", { type: "button", onclick: send }, "Send as a new branch"))));
    input.style.height = `${input.scrollHeight + 2}px`;
    input.focus();
  };
  const show = () => {
    article.replaceChildren(body,
      el("footer", {}, branches(place, on.turn),
        el("span.actions", {}, action("Copy", icons.copy, () => copy_text(node.content)),
          node.role === "user" ? action("Edit", icons.edit, edit) : null)));
  };
  show();
  article.edit = edit;
  return article;
}

/// An answer, which may still grow. `on`: {turn(step), again(), look(), answer(call, text)}.
export class Answer {
  constructor(node, place, on) {
    this.node = node;
    this.on = on;
    this.reasoning = el("div.reasoning-text");
    this.summary = el("summary", {}, "");
    this.fold = el("details.reasoning", { hidden: true }, this.summary, this.reasoning);
    this.body = el("div.prose");
    this.calls = el("div.calls");
    this.problem = el("p.problem", { role: "alert", hidden: true });
    this.usage = el("span.usage");
    this.footer = el("footer");
    this.element = el("article.message.assistant", { "aria-label": "Answer", dataset: { id: node.id } },
      this.fold, this.body, this.calls, this.problem, this.footer);
    this.place = place;
    this.markdown = new Markdown(this.body);
    if (node.reasoning) this.think(node.reasoning);
    if (node.content) this.markdown.append(node.content);
  }

  /// Shows that it is being written.
  begin() {
    this.element.setAttribute("aria-busy", "true");
    this.element.classList.add("busy");
    this.footer.replaceChildren(el("span.waiting", {}, el("i"), el("i"), el("i")));
  }

  think(text) {
    this.fold.hidden = false;
    this.summary.textContent = "Thinking";
    this.reasoning.append(text);
  }

  say(text) {
    this.markdown.append(text);
  }

  show_calls(last) {
    const calls = this.node.calls ?? [];
    this.calls.replaceChildren(...calls.map((call) => call_card(call, last ? this.on.answer : null)));
  }

  /// All has come. `last`: nothing follows it, so that tools' results can be given.
  end(last) {
    const { node } = this;
    this.element.removeAttribute("aria-busy");
    this.element.classList.remove("busy");
    this.markdown.finish();
    if (node.reasoning) {
      const ms = node.timing?.thought - node.timing?.first;
      const took = ms > 100 ? ` for ${seconds(ms)}` : "";
      this.summary.textContent = `Thought${took}`;
    }
    this.show_calls(last);
    this.problem.hidden = !node.problem;
    this.problem.textContent = node.problem ?? "";
    this.usage.textContent = usage_text(node);
    this.footer.replaceChildren(...[
      branches(this.place, this.on.turn),
      el("span.actions", {},
        action("Copy", icons.copy, () => copy_text(node.content)),
        action("Another answer", icons.again, this.on.again),
        node.content ? action("The three axes of this answer", icons.axes, this.on.look) : null),
      this.usage].filter(Boolean));
  }
}
