// The three axes of an answer: where each layer looks in depth, which experts it asks in width, how
// long its channels remember along the sequence.
import { el, percent, short_number } from "./dom.js";
import { post } from "./api.js";
import { draw, hover } from "./heatmap.js";

const source_text = (source) => (source === "embedding" ? "the embedding" : `the sum of ${source}`);
const patience = 10; // times that a busy server is asked again
const before_name = { attention: "attention", ffn: "experts", output: "output head" };

export class AxesView {
  constructor(host) {
    this.host = host;
    this.seen = null;   // what the server told
    this.token = -1;    // which one is looked at; -1: all
    this.shown = "";    // the request that this belongs to
    this.redraw = () => this.seen && !this.host.hidden && this.paint();
    document.addEventListener("theme", this.redraw);
    new ResizeObserver(this.redraw).observe(host);
  }

  /// The view is shown: looks at the answer of `request` (null: there is none) unless it has done so.
  opened(request) {
    if (request === null) {
      if (this.seen === null) this.say("Ask something first: this view shows what happened inside the model while it read its answer.");
    } else if (JSON.stringify(request.messages) !== this.shown) {
      this.look(request);
    } else {
      this.redraw();
    }
  }

  async look(request) {
    this.controller?.abort();
    this.controller = new AbortController();
    const { signal } = this.controller;
    this.shown = JSON.stringify(request.messages);
    this.say("Reading the answer once more …");
    try {
      const seen = await (await this.patient(request, signal)).json();
      this.seen = seen;
      this.token = -1;
      this.build();
    } catch (error) {
      if (error.name === "AbortError") return;
      this.shown = "";
      this.say(error.message, true);
    }
  }

  /// The server looks at one answer at a time.
  async patient(request, signal) {
    for (let turn = 0; ; ++turn) {
      try {
        return await post("/v1/triax/axes", request, signal);
      } catch (error) {
        if (error.status !== 429 || turn === patience) throw error;
        await new Promise((resolve) => setTimeout(resolve, 1000 * Math.max(1, error.retry_after)));
        signal.throwIfAborted();
      }
    }
  }

  say(text, problem = false) {
    this.seen = null;
    this.host.replaceChildren(el("div.panel-inner", {}, el("p.notice", { className: problem ? "notice problem" : "notice", role: "status" }, text)));
  }

  build() {
    const { seen } = this;
    this.canvases = {};
    this.host.replaceChildren(el("div.panel-inner", {},
      el("header.panel-head", {},
        el("h1", {}, "Three axes"),
        el("p", {}, `What moved along each axis of ${seen.model} while it read these ${seen.tokens.length} tokens${seen.cut ? " (the last of the answer)" : ""}. They ran through the model once more for this picture. Choose a token to see it alone.`)),
      this.tokens(),
      el("div.axes-grid", {}, this.depth(), el("div.stack", {}, this.width(), this.sequence()))));
    this.paint();
  }

  tokens() {
    const choose = (i) => {
      this.token = this.token === i ? -1 : i;
      for (const [j, chip] of chips.entries()) chip.setAttribute("aria-pressed", String(j === this.token));
      this.paint();
    };
    const text = (token) => token.text.replace(/\n/g, "↵").replace(/^ | $/g, "·") || "∅";
    const chips = this.seen.tokens.map((token, i) =>
      el("button.token", { type: "button", "aria-pressed": "false", className: token.control ? "token control" : "token", title: `token ${token.id}`, onclick: () => choose(i) }, text(token)));
    return el("div.tokens", { role: "group", "aria-label": "Tokens of the answer" }, ...chips);
  }

  card(name, title, explanation, canvas_label, ...more) {
    const canvas = el("canvas", { role: "img", "aria-label": canvas_label });
    const detail = el("p.detail", { "aria-live": "off" });
    this.canvases[name] = { canvas, detail };
    return el("section.card", { className: `card axis-${name}`, "aria-label": title },
      el("h2", {}, title), el("p.explain", {}, explanation), ...more, detail);
  }

  picture(name, rows, columns_head, columns_foot) {
    const { canvas } = this.canvases[name];
    return el("div.picture", {}, el("div.row-names", { "aria-hidden": "true" }, ...rows.map((row) => el("span", {}, row))),
      el("div.canvas-box", {}, columns_head, canvas, columns_foot));
  }

  // Depth.

  depth() {
    const { depth } = this.seen;
    if (depth === null) return this.absent("Depth", "This model adds each layer to one stream: there is no attention over depth to show.");
    const card = this.card("depth", "Depth",
      "Attention Residuals: before each sublayer a softmax over the embedding, the sums of earlier blocks and the running sum decides what it reads.",
      `Weights of ${depth.mixes.length} mixes over ${depth.sources.length} sources`);
    const name = (mix) => (mix.before === "output" ? "out" : mix.before === "attention" ? `${mix.layer + 1}` : "");
    const heads = el("div.column-names", { "aria-hidden": "true" }, ...depth.sources.map((source) => el("span", {}, source.replace(/^layers? /, ""))));
    card.insertBefore(this.picture("depth", depth.mixes.map(name), heads, null), this.canvases.depth.detail);
    card.append(this.depth_table());
    hover(this.canvases.depth.canvas, () => ({ rows: depth.mixes.length, columns: depth.sources.length }), (r, c) => {
      const mix = depth.mixes[r];
      const share = r === null ? null : this.depth_weight(mix, c);
      this.canvases.depth.detail.textContent = share === null
        ? this.depth_summary()
        : `${mix.before === "output" ? "The output head" : `Layer ${mix.layer + 1}, ${before_name[mix.before]}`} reads ${percent(share)} from ${source_text(depth.sources[c])}.`;
    });
    return card;
  }

  /// Of one token, or the mean of all; null where the mix has no such source.
  depth_weight(mix, source) {
    if (source >= mix.sources) return null;
    if (this.token >= 0) return mix.weights[this.token]?.[source] ?? null;
    return mix.weights.reduce((sum, row) => sum + row[source], 0) / mix.weights.length;
  }

  depth_summary() {
    const { depth } = this.seen;
    const far = depth.mixes.filter((mix) => mix.sources > 1);
    const back = far.reduce((sum, mix) => sum + 1 - (this.depth_weight(mix, mix.sources - 1) ?? 0), 0) / far.length;
    const embedding = far.reduce((sum, mix) => sum + (this.depth_weight(mix, 0) ?? 0), 0) / far.length;
    return `${percent(back)} of what sublayers read comes from before their latest sum, ${percent(embedding)} straight from the embedding.`;
  }

  depth_table() {
    const { depth } = this.seen;
    const body = el("tbody", {}, ...depth.mixes.map((mix) =>
      el("tr", {}, el("th", { scope: "row" }, mix.before === "output" ? "output" : `${mix.layer + 1} ${before_name[mix.before]}`),
        ...depth.sources.map((_, c) => {
          const w = this.depth_weight(mix, c);
          return el("td", {}, w === null ? "" : w.toFixed(3));
        }))));
    return el("details.table", {}, el("summary", {}, "Mean weights as a table"),
      el("div.table-scroll", { tabIndex: 0 }, el("table", {},
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "before layer"), ...depth.sources.map((s) => el("th", { scope: "col" }, s)))), body)));
  }

  // Width.

  width() {
    const { width } = this.seen;
    if (width.layers.length === 0) return this.absent("Width", "No layer of this model has experts.");
    const card = this.card("width", "Width",
      `Each token asks ${width.top_k} of ${width.experts} experts in a layer. Shade: an expert’s load, from none to ${this.most()} times its fair share and more. Outlined: the route of the chosen token.`,
      `Load of ${width.experts} experts in ${width.layers.length} layers`);
    const foot = el("div.ends", { "aria-hidden": "true" }, el("span", {}, "expert 1"), el("span", {}, `${width.experts}`));
    card.insertBefore(this.picture("width", width.layers.map((layer) => `${layer.layer + 1}`), null, foot), this.canvases.width.detail);
    hover(this.canvases.width.canvas, () => ({ rows: width.layers.length, columns: width.experts }), (r, c) => {
      this.canvases.width.detail.textContent = r === null ? this.width_summary() : this.width_cell(width.layers[r], c);
    });
    return card;
  }

  fair() {
    const { width, tokens } = this.seen;
    return (tokens.length * width.top_k) / width.experts;
  }

  /// Times the fair share that gets the full shade.
  most() {
    return Math.min(4, this.seen.width.experts / this.seen.width.top_k);
  }

  width_cell(layer, expert) {
    const load = layer.load[expert];
    const at = this.token < 0 ? -1 : layer.ids[this.token].indexOf(expert);
    const chosen = at < 0 ? "" : ` The chosen token gives it a weight of ${percent(layer.weights[this.token][at])}.`;
    return `Layer ${layer.layer + 1}, expert ${expert + 1}: ${load} of ${this.seen.tokens.length} tokens, ${short_number(load / this.fair())} times its fair share.${chosen}`;
  }

  width_summary() {
    const { width } = this.seen;
    const used = width.layers.reduce((sum, layer) => sum + layer.load.filter((load) => load > 0).length, 0) / (width.layers.length * width.experts);
    const worst = Math.max(...width.layers.map((layer) => Math.max(...layer.load))) / this.fair();
    return `These tokens used ${percent(used)} of all experts; the busiest had ${short_number(worst)} times its fair share.`;
  }

  // Sequence.

  sequence() {
    const { sequence } = this.seen;
    if (sequence.layers.every((layer) => layer.kind !== "kda")) return this.absent("Sequence", "No layer of this model has a decaying state.");
    const card = this.card("sequence", "Sequence",
      "How long each channel of KDA remembers: tokens until half of what it holds has faded, at the gates of these tokens. The other layers keep every token exactly.",
      "Half-lives of the channels of each KDA layer");
    const name = (layer) => `${layer.layer + 1}`;
    const ticks = el("div.ticks", { "aria-hidden": "true" }, ...this.tick_marks());
    card.insertBefore(this.picture("sequence", sequence.layers.map(name), null, ticks), this.canvases.sequence.detail);
    hover(this.canvases.sequence.canvas, () => ({ rows: sequence.layers.length, columns: sequence.bins.length - 1 }), (r, c) => {
      this.canvases.sequence.detail.textContent = r === null ? this.sequence_summary() : this.sequence_cell(sequence.layers[r], c);
    });
    return card;
  }

  tick_marks() {
    const { bins } = this.seen.sequence;
    const low = Math.log2(bins[0]);
    const span = Math.log2(bins.at(-1)) - low;
    const marks = [];
    for (const tokens of [1, 10, 100, 1000, 10000, 100000]) {
      const at = (Math.log2(tokens) - low) / span;
      if (at < 0 || at > 0.97) continue;
      const mark = el("span", {}, short_number(tokens));
      mark.style.left = `${100 * at}%`;
      marks.push(mark);
    }
    return marks;
  }

  sequence_cell(layer, c) {
    if (layer.kind !== "kda") return `Layer ${layer.layer + 1}: gated MLA, attention to every token, nothing fades.`;
    const { bins } = this.seen.sequence;
    const share = layer.histogram[c] / layer.histogram.reduce((a, b) => a + b, 0);
    return `Layer ${layer.layer + 1}: ${percent(share)} of the channels have a half-life of ${short_number(bins[c])} to ${short_number(bins[c + 1])} tokens; half of all are below ${short_number(layer.median)}.`;
  }

  sequence_summary() {
    const medians = this.seen.sequence.layers.filter((layer) => layer.kind === "kda").map((layer) => layer.median ?? Infinity);
    return `Half of a layer’s channels forget within ${short_number(Math.min(...medians))} to ${short_number(Math.max(...medians))} tokens, by layer.`;
  }

  absent(title, text) {
    return el("section.card", {}, el("h2", {}, title), el("p.explain", {}, text));
  }

  // Drawing.

  paint() {
    const { depth, width, sequence } = this.seen;
    if (depth !== null) {
      draw(this.canvases.depth.canvas, {
        rows: depth.mixes.length, columns: depth.sources.length, row_height: this.row_height(depth.mixes.length),
        value: (r, c) => this.depth_weight(depth.mixes[r], c),
      });
      this.canvases.depth.detail.textContent = this.depth_summary();
    }
    if (width.layers.length > 0) {
      draw(this.canvases.width.canvas, {
        rows: width.layers.length, columns: width.experts, row_height: this.row_height(width.layers.length),
        value: (r, c) => width.layers[r].load[c] / this.fair() / this.most(),
        ring: (r, c) => this.token >= 0 && width.layers[r].ids[this.token].includes(c),
      });
      this.canvases.width.detail.textContent = this.width_summary();
    }
    if (this.canvases.sequence !== undefined) this.paint_sequence(sequence);
  }

  paint_sequence(sequence) {
    const columns = sequence.bins.length - 1;
    const { canvas, detail } = this.canvases.sequence;
    const height = this.row_height(sequence.layers.length);
    draw(canvas, {
      rows: sequence.layers.length, columns, row_height: height, gap: 2,
      value: (r, c) => {
        const layer = sequence.layers[r];
        return layer.kind === "kda" ? layer.histogram[c] / Math.max(1, ...layer.histogram) : null;
      },
    });
    const context = canvas.getContext("2d");
    const style = getComputedStyle(document.documentElement);
    context.font = `11px ${style.getPropertyValue("--sans")}`;
    context.textBaseline = "middle";
    context.textAlign = "center";
    for (const [r, layer] of sequence.layers.entries()) {
      if (layer.kind === "kda") continue;
      context.strokeStyle = style.getPropertyValue("--line");
      context.strokeRect(0.5, r * height + 0.5, canvas.clientWidth - 1, height - 3);
      context.fillStyle = style.getPropertyValue("--faint");
      context.fillText("gated MLA: every token", canvas.clientWidth / 2, r * height + height / 2 - 0.5);
    }
    detail.textContent = this.sequence_summary();
  }

  /// Deep models get thin rows.
  row_height(rows) {
    return Math.max(4, Math.min(20, Math.floor(420 / rows)));
  }
}
