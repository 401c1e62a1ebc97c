// The chat view: one conversation at a time, streaming, branches, storage.
import { $, announce, el, icon, icons } from "./dom.js";
import { stream_chat } from "./api.js";
import { Answer, question } from "./message.js";
import { sampling, tools_of } from "./settings.js";
import * as store from "./store.js";
import * as tree from "./tree.js";

const near_end = 80; // pixels from the end that count as being there
const title_max = 48;

export class Chat {
  /// `on_look(body)`: shows the three axes of an answer; `model()`: {id, context} of the served model.
  constructor({ on_look, model }) {
    this.on_look = on_look;
    this.model = model;
    this.list = [];
    this.conversation = tree.new_conversation();
    this.running = null; // {controller, answer, node}
    this.thread = $("thread");
    this.scroller = $("scroller");
    this.draft = $("draft");
    this.follow = true;
    this.listen();
  }

  async start() {
    this.list = await store.all();
    const last = localStorage.getItem("triax.open");
    this.conversation = this.list.find((one) => one.id === last) ?? this.conversation;
    this.show();
    this.show_list();
    this.draft.focus({ preventScroll: true });
  }

  listen() {
    $("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.running) this.stop();
      else this.send();
    });
    this.draft.addEventListener("input", () => this.fit());
    this.draft.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        if (!this.running) this.send();
      } else if (event.key === "ArrowUp" && this.draft.value === "") {
        event.preventDefault();
        [...this.thread.querySelectorAll(".message.user")].at(-1)?.edit?.();
      }
    });
    this.scroller.addEventListener("scroll", () => this.see_scroll(), { passive: true });
    this.thread.addEventListener("grown", () => this.keep_end());
    $("to-end").addEventListener("click", () => {
      this.follow = true;
      this.keep_end();
    });
  }

  /// The composer grows with its text.
  fit() {
    this.draft.style.height = "auto";
    this.draft.style.height = `${Math.min(this.draft.scrollHeight, innerHeight * 0.4)}px`;
  }

  see_scroll() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    this.follow = scrollHeight - scrollTop - clientHeight < near_end;
    $("to-end").hidden = this.follow;
  }

  keep_end() {
    if (this.follow) this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  // What is shown.

  show() {
    const nodes = tree.path(this.conversation);
    this.thread.replaceChildren(...(nodes.length === 0 ? [this.welcome()] : nodes.map((node, i) => this.element(node, i === nodes.length - 1))));
    this.follow = true;
    this.keep_end();
    this.show_fine_print();
    localStorage.setItem("triax.open", this.conversation.id);
  }

  /// How much of the context the conversation takes; before that, what the keys do.
  show_fine_print() {
    const usage = tree.path(this.conversation).findLast((node) => node.usage)?.usage;
    const { context } = this.model();
    const tokens = usage ? usage.prompt_tokens + usage.completion_tokens : 0;
    const of = context > 0 ? ` of ${context.toLocaleString("en")}` : "";
    $("fine-print").textContent = tokens > 0 ? `${tokens.toLocaleString("en")}${of} tokens of context` : "Enter sends, Shift Enter breaks the line";
  }

  welcome() {
    const try_it = (text) => el("button.suggestion", { type: "button", onclick: () => this.send(text) }, text);
    return el("div.welcome", {},
      el("h1", {}, "What shall we look at?"),
      el("p", {}, "Everything runs on this server. Conversations stay in your browser."),
      el("div.suggestions", {}, ...["Who are you?", "What is Debian?", "What is a daemon in hacker slang?"].map(try_it)));
  }

  element(node, last) {
    const place = tree.place(this.conversation, node);
    const turn = (step) => this.turn(node, step);
    if (node.role !== "assistant") return question(node, place, { turn, edit: (text) => this.edit(node, text) });
    const answer = this.answer(node, place);
    answer.end(last);
    return answer.element;
  }

  answer(node, place) {
    return new Answer(node, place, {
      turn: (step) => this.turn(node, step),
      again: () => this.again(node),
      look: () => this.on_look(this.axes_request(node)),
      answer: (call, text) => this.give_result(node, call, text),
    });
  }

  show_list() {
    const rows = this.list.map((one) => {
      const open = one.id === this.conversation.id;
      return el("div.conversation", { dataset: { open } },
        el("button.title", { type: "button", "aria-current": open ? "true" : null, onclick: () => this.open(one.id) }, one.title || "Untitled"),
        el("button.icon-button", { type: "button", "aria-label": `Delete “${one.title}”`, onclick: () => this.forget(one) }, icon(icons.trash)));
    });
    $("conversations").replaceChildren(...rows);
  }

  // What can be done.

  open(id) {
    if (this.running) this.stop();
    this.conversation = this.list.find((one) => one.id === id) ?? tree.new_conversation();
    this.show();
    this.show_list();
    document.dispatchEvent(new Event("opened"));
    this.draft.focus({ preventScroll: true });
  }

  fresh() {
    this.open("");
  }

  async forget(one) {
    if (!confirm(`Delete “${one.title}”?`)) return;
    await store.forget(one.id);
    this.list = this.list.filter((other) => other.id !== one.id);
    if (one.id === this.conversation.id) this.fresh();
    else this.show_list();
  }

  async save() {
    if (Object.keys(this.conversation.nodes).length === 0) return;
    const { conversation } = this;
    this.list = [conversation, ...this.list.filter((other) => other.id !== conversation.id)];
    this.show_list();
    await store.save(conversation);
  }

  send(text = this.draft.value) {
    if (text.trim() === "" || this.running) return;
    this.draft.value = "";
    this.fit();
    const last = tree.path(this.conversation).at(-1);
    this.ask(last?.id, { role: "user", content: text });
  }

  edit(node, text) {
    if (text.trim() === "" || this.running) return;
    this.ask(node.parent, { role: "user", content: text });
  }

  give_result(node, call, text) {
    const pending = node.calls.filter((other) => other.id !== call.id && !this.has_result(node, other));
    const last = tree.path(this.conversation).at(-1);
    const parent = last.role === "tool" ? last.id : node.id;
    const added = { role: "tool", call: call.id, content: text };
    if (pending.length === 0) {
      this.ask(parent, added);
      return;
    }
    tree.add(this.conversation, parent, added);
    this.show();
    this.save();
  }

  has_result(node, call) {
    return tree.path(this.conversation).some((other) => other.role === "tool" && other.call === call.id);
  }

  ask(parent, node) {
    const asked = tree.add(this.conversation, parent, node);
    if (this.conversation.title === "" && node.role === "user") {
      const line = node.content.trim().split("\n")[0];
      this.conversation.title = line.length > title_max ? `${line.slice(0, title_max - 1)}…` : line;
    }
    this.run(asked);
  }

  again(node) {
    if (!this.running) this.run(this.conversation.nodes[node.parent]);
  }

  turn(node, step) {
    if (this.running) return;
    tree.turn(this.conversation, node, step);
    this.show();
    this.save();
  }

  stop() {
    this.running?.controller.abort();
  }

  /// The last answer that is shown, as a request for its three axes; null without one.
  last_axes_request() {
    const node = tree.path(this.conversation).findLast((one) => one.role === "assistant" && one.content);
    return node ? this.axes_request(node) : null;
  }

  axes_request(node) {
    return { ...this.request(node), max_tokens: undefined };
  }

  request(node) {
    const body = { model: this.model().id, messages: tree.messages(this.conversation, node), ...sampling() };
    const tools = tools_of(this.conversation.tools);
    if (tools !== undefined) body.tools = tools;
    return body;
  }

  // One answer.

  async run(asked) {
    const body = this.request(asked);
    const node = tree.add(this.conversation, asked.id, { role: "assistant", content: "", reasoning: "", calls: [] });
    const { conversation } = this;
    this.show();
    const answer = this.answer(node, tree.place(conversation, node));
    this.thread.lastElementChild.replaceWith(answer.element);
    answer.begin();
    const controller = new AbortController();
    this.running = { controller, answer, node };
    document.body.classList.add("busy");
    $("send").setAttribute("aria-label", "Stop");
    node.timing = { begin: performance.now() };
    this.keep_end();
    try {
      await stream_chat(body, controller.signal, (chunk) => this.take(chunk, node, answer));
    } catch (error) {
      if (error.name === "AbortError") node.stopped = true;
      else node.problem = error.message;
    }
    node.timing.end = performance.now();
    if (this.running?.node === node) {
      this.running = null;
      document.body.classList.remove("busy");
      $("send").setAttribute("aria-label", "Send");
    }
    answer.end(true);
    this.show_fine_print();
    this.keep_end();
    announce(node.problem ?? (node.stopped ? "Stopped" : "Answer complete"));
    conversation.updated = Date.now();
    if (conversation === this.conversation) await this.save();
    else await store.save(conversation);
  }

  take(chunk, node, answer) {
    if (chunk.usage) node.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (choice === undefined) return;
    const delta = choice.delta ?? {};
    if (delta.reasoning_content || delta.content || delta.tool_calls) node.timing.first ??= performance.now();
    if (delta.reasoning_content) {
      node.reasoning += delta.reasoning_content;
      answer.think(delta.reasoning_content);
      this.keep_end();
    }
    if (delta.content) {
      if (node.reasoning !== "") node.timing.thought ??= performance.now();
      node.content += delta.content;
      answer.say(delta.content);
    }
    for (const part of delta.tool_calls ?? []) {
      const call = (node.calls[part.index ?? 0] ??= { id: "", name: "", arguments: "" });
      if (part.id) call.id = part.id;
      if (part.function?.name) call.name += part.function.name;
      if (part.function?.arguments) call.arguments += part.function.arguments;
      answer.show_calls(false);
      this.keep_end();
    }
    if (choice.finish_reason) node.finish = choice.finish_reason;
  }

  // In and out.

  export_all() {
    return JSON.stringify({ triax: 1, conversations: this.list }, null, 1);
  }

  /// Returns how many came; those that are here already are replaced.
  async import_all(text) {
    const { conversations } = JSON.parse(text);
    const sound = conversations.filter((one) => typeof one.id === "string" && typeof one.nodes === "object" && typeof one.chosen === "object");
    for (const one of sound) await store.save({ ...tree.new_conversation(), ...one });
    this.list = await store.all();
    this.show_list();
    return sound.length;
  }
}
