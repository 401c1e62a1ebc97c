// What the server does now: counters read once a second while this view is open, drawn over the
// last minutes; sessions with what is kept of each.
import { bytes_text, el, icon, icons, percent, short_number } from "./dom.js";
import { get, remove } from "./api.js";
import { by, parse, sum } from "./metrics.js";

const every_ms = 1000;
const points_max = 300;
const seconds_least = 60; // of the time that plots show
const sessions_every = 2; // readings

let chart_library;
const load_charts = () => (chart_library ??= import("./lib/chart.js").then(() => globalThis.Chart));

/// As /metrics and /v1/triax/sessions call them, and as people do.
const tier_names = { device: "device", ram: "memory", ssd: "SSD", shared: "shared" };

/// What is drawn; `series`: labels of its lines.
const plots = [
  { id: "tokens", title: "Tokens a second", unit: "", series: ["generated", "prompt computed", "prompt cached"] },
  { id: "hits", title: "Hit rate of prompts", unit: "%", series: ["last 30 s", "since the start"], most: 100 },
  { id: "residency", title: "Kept for later, by tier, MiB", unit: "", series: Object.values(tier_names), stacked: true },
  { id: "queue", title: "Requests", unit: "", series: ["running", "waiting"], whole: true },
];

export class Live {
  constructor(host) {
    this.host = host;
    this.charts = {};
    this.readings = []; // {at, computed, cached, generated, …}
    this.count = 0;
    document.addEventListener("theme", () => this.recolor());
    document.addEventListener("visibilitychange", () => this.active(this.open));
  }

  /// Reads only while it is seen.
  async active(open) {
    this.open = open;
    clearInterval(this.timer);
    if (!open || document.hidden) return;
    if (this.host.childElementCount === 0) await this.build();
    this.read();
    this.timer = setInterval(() => this.read(), every_ms);
  }

  async build() {
    this.figures = el("div.figures");
    this.problem = el("p.notice.problem", { role: "alert", hidden: true });
    this.sessions = el("div.table-scroll", { tabIndex: 0 });
    const cards = plots.map((plot) => {
      const canvas = el("canvas", { role: "img", "aria-label": plot.title });
      plot.canvas = canvas;
      return el("section.card.plot", { "aria-label": plot.title }, el("h2", {}, plot.title), el("div.plot-box", {}, canvas));
    });
    this.host.replaceChildren(el("div.panel-inner", {},
      el("header.panel-head", {}, el("h1", {}, "Live"), el("p", {}, "Read once a second while this view is open; the curves begin when you opened it.")),
      this.problem, this.figures, el("div.plots", {}, ...cards),
      el("section.card.sessions", { "aria-label": "Sessions" },
        el("h2", {}, "Sessions"),
        el("p.explain", {}, "What the server still holds of each conversation, and where. Deleting frees it; the next prompt computes it anew."),
        this.sessions)));
    const Chart = await load_charts();
    for (const plot of plots) this.charts[plot.id] = new Chart(plot.canvas, this.chart_of(plot));
    this.recolor();
  }

  chart_of(plot) {
    const text = (value) => `${short_number(value)}${plot.unit}`;
    return {
      type: "line",
      data: {
        datasets: plot.series.map((label) => ({ label, data: [], borderWidth: 1.6, pointRadius: 0, cubicInterpolationMode: "monotone", fill: plot.stacked === true, spanGaps: false })),
      },
      options: {
        animation: false, responsive: true, maintainAspectRatio: false, parsing: false, normalized: true,
        interaction: { mode: "index", intersect: false },
        scales: {
          x: { type: "linear", min: -seconds_least, max: 0, grid: { display: false }, ticks: { maxTicksLimit: 6, includeBounds: false, maxRotation: 0, callback: (s) => (s === 0 ? "now" : `−${-s} s`) } },
          y: { min: 0, suggestedMax: plot.most ?? (plot.whole ? 4 : 1), max: plot.most, stacked: plot.stacked === true, border: { display: false },
            ticks: { maxTicksLimit: 5, precision: plot.whole ? 0 : undefined, callback: text } },
        },
        plugins: {
          legend: { display: plot.series.length > 1, position: "bottom", align: "start", labels: { boxWidth: 8, boxHeight: 8, usePointStyle: true, pointStyle: "circle", padding: 14 } },
          tooltip: { callbacks: { title: (items) => `${Math.round(-items[0].parsed.x)} s ago`, label: (item) => ` ${item.dataset.label}: ${text(item.parsed.y)}` } },
        },
      },
    };
  }

  recolor() {
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    const lines = ["--accent", "--second", "--third", "--fourth"].map(color);
    for (const chart of Object.values(this.charts)) {
      chart.data.datasets.forEach((set, i) => {
        set.borderColor = lines[i];
        set.backgroundColor = `${lines[i]}30`;
        set.pointBackgroundColor = lines[i];
      });
      for (const axis of Object.values(chart.options.scales)) {
        axis.ticks.color = color("--faint");
        axis.grid.color = color("--line");
        axis.ticks.font = { family: color("--sans"), size: 11 };
      }
      chart.options.plugins.legend.labels.color = color("--soft");
      chart.options.plugins.legend.labels.font = { family: color("--sans"), size: 12 };
      chart.update("none");
    }
  }

  async read() {
    if (this.reading) return;
    this.reading = true;
    try {
      const samples = parse(await (await get("/metrics")).text());
      this.take(samples);
      if (this.count++ % sessions_every === 0) this.show_sessions((await (await get("/v1/triax/sessions")).json()).data);
      this.problem.hidden = true;
    } catch (error) {
      this.problem.hidden = false;
      this.problem.textContent = `No reading: ${error.message}`;
    } finally {
      this.reading = false;
    }
  }

  take(samples) {
    const prompt = by(samples, "triax_prompt_tokens_total", "source");
    const computed = prompt.computed ?? 0;
    const all = Object.values(prompt).reduce((a, b) => a + b, 0);
    this.readings.push({
      at: performance.now() / 1000,
      computed,
      cached: all - computed,
      generated: sum(samples, "triax_generated_tokens_total") ?? 0,
      running: sum(samples, "triax_requests_running") ?? 0,
      waiting: sum(samples, "triax_requests_waiting") ?? 0,
      tiers: by(samples.filter((s) => s.labels.class !== "running"), "triax_cache_bytes", "tier"),
    });
    if (this.readings.length > points_max) this.readings.shift();
    this.draw();
  }

  /// A counter's rate between two readings.
  rate(i, name) {
    if (i === 0) return null;
    const [before, now] = [this.readings[i - 1], this.readings[i]];
    return Math.max(0, now[name] - before[name]) / (now.at - before.at);
  }

  hits(i, span) {
    const now = this.readings[i];
    const from = this.readings.find((r) => r.at >= now.at - span);
    const cached = now.cached - from.cached;
    const all = cached + now.computed - from.computed;
    return all > 0 ? (100 * cached) / all : null;
  }

  draw() {
    const now = this.readings.at(-1);
    const points = (f) => this.readings.map((r, i) => ({ x: r.at - now.at, y: f(r, i) ?? NaN }));
    const total = (r) => (r.cached + r.computed > 0 ? (100 * r.cached) / (r.cached + r.computed) : null);
    this.fill("tokens", points((_, i) => this.rate(i, "generated")), points((_, i) => this.rate(i, "computed")), points((_, i) => this.rate(i, "cached")));
    this.fill("hits", points((_, i) => this.hits(i, 30)), points(total));
    const mib = (tier) => points((r) => (r.tiers[tier] ?? 0) / 2 ** 20);
    this.fill("residency", ...Object.keys(tier_names).map(mib));
    this.fill("queue", points((r) => r.running), points((r) => r.waiting));
    const last = this.readings.length - 1;
    const kept = Object.values(now.tiers).reduce((a, b) => a + b, 0);
    this.show_figures([
      [short_number(this.rate(last, "generated") ?? 0), "tokens a second"],
      [total(now) === null ? "–" : percent(total(now) / 100), "of prompt tokens from the cache"],
      [bytes_text(kept), "kept for later"],
      [`${now.running} + ${now.waiting}`, "running + waiting"],
    ]);
  }

  fill(id, ...lines) {
    const chart = this.charts[id];
    if (chart === undefined) return;
    lines.forEach((data, i) => (chart.data.datasets[i].data = data));
    chart.options.scales.x.min = -Math.max(seconds_least, Math.ceil(-lines[0][0].x / 30) * 30);
    chart.update("none");
  }

  show_figures(list) {
    if (this.figures.childElementCount === 0) {
      this.figures.append(...list.map(() => el("div.figure", {}, el("b"), el("span"))));
    }
    list.forEach(([value, label], i) => {
      this.figures.children[i].firstChild.textContent = value;
      this.figures.children[i].lastChild.textContent = label;
    });
  }

  show_sessions(list) {
    if (this.sessions.contains(document.activeElement) && document.activeElement.tagName === "BUTTON") return;
    if (list.length === 0) {
      this.sessions.replaceChildren(el("p.hint", {}, "None yet."));
      return;
    }
    const now = Date.now() / 1000;
    const rows = list.map((one) => el("tr", {},
      el("th", { scope: "row" }, el("code", {}, one.id)),
      el("td", {}, one.state ?? ""),
      el("td.number", {}, short_number(one.tokens ?? 0)),
      el("td", {}, residency(one.resident_tokens ?? {}, one.tokens ?? 0)),
      el("td", {}, one.last_miss ?? ""),
      el("td.number", {}, one.last_used === undefined ? "" : `${Math.max(0, Math.round(now - one.last_used))} s ago`),
      el("td", {}, el("button.icon-button", { type: "button", "aria-label": `Delete session ${one.id}`, onclick: () => this.delete(one.id) }, icon(icons.trash)))));
    this.sessions.replaceChildren(el("table", {},
      el("thead", {}, el("tr", {}, ...["Session", "State", "Tokens", "Held in", "Last miss", "Used", ""].map((head) => el("th", { scope: "col" }, head)))),
      el("tbody", {}, ...rows)));
  }

  async delete(id) {
    try {
      await remove(`/v1/triax/sessions/${encodeURIComponent(id)}`);
      document.activeElement?.blur();
      this.show_sessions((await (await get("/v1/triax/sessions")).json()).data);
    } catch (error) {
      this.problem.hidden = false;
      this.problem.textContent = error.message;
    }
  }
}

/// How far from its beginning a conversation lies in each tier, as words; in the bar a slower tier
/// shows what the faster ones lack.
function residency(tiers, tokens) {
  const bar = el("span.bar", { "aria-hidden": "true" });
  const words = [];
  let shown = 0;
  for (const [tier, name] of Object.entries(tier_names)) {
    const share = tokens > 0 ? Math.min(1, (tiers[tier] ?? 0) / tokens) : 0;
    if (share === 0) continue;
    const part = el("i", { dataset: { tier } });
    part.style.width = `${100 * Math.max(0, share - shown)}%`;
    shown = Math.max(shown, share);
    bar.append(part);
    words.push(`${name} ${percent(share)}`);
  }
  return el("span.residency", {}, bar, words.join(", ") || "nowhere");
}
