// What the user chose, and the sheet to choose it in.
import { $, download, el } from "./dom.js";

const defaults = {
  key: "",
  temperature: "",
  top_p: "",
  top_k: "",
  min_p: "",
  max_tokens: "",
  seed: "",
  presence_penalty: "",
  frequency_penalty: "",
  thinking: "default",
};

export const settings = { ...defaults, ...JSON.parse(localStorage.getItem("triax.settings") || "{}") };

function keep() {
  localStorage.setItem("triax.settings", JSON.stringify(settings));
}

/// The sampling part of a request: what is empty is left to the model's own settings.
export function sampling() {
  const body = {};
  for (const { key } of numbers) if (settings[key] !== "") body[key] = Number(settings[key]);
  if (settings.thinking === "off") body.thinking = { type: "disabled" };
  else if (settings.thinking !== "default") body.reasoning_effort = settings.thinking;
  return body;
}

const numbers = [
  { key: "temperature", label: "Temperature", min: 0, max: 2, step: 0.05, note: "0 takes the likeliest token" },
  { key: "top_p", label: "Top p", min: 0, max: 1, step: 0.01, note: "share of probability kept" },
  { key: "top_k", label: "Top k", min: 0, step: 1, note: "tokens kept" },
  { key: "min_p", label: "Min p", min: 0, max: 1, step: 0.01, note: "least share of the likeliest" },
  { key: "max_tokens", label: "Longest answer", min: 1, step: 1, note: "tokens" },
  { key: "seed", label: "Seed", min: 0, step: 1, note: "same seed, same answer" },
  { key: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1, note: "against words used" },
  { key: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1, note: "by how often" },
];

function number_field({ key, label, min, max, step, note }) {
  const input = el("input", {
    id: `set-${key}`, type: "number", min, max, step, value: settings[key], placeholder: "model’s own",
    inputMode: "decimal",
    onchange: (event) => {
      settings[key] = event.target.validity.valid ? event.target.value : "";
      event.target.value = settings[key];
      keep();
    },
  });
  return el("label.field", { htmlFor: input.id }, el("span", {}, label), input, el("small", {}, note));
}

function thinking_field() {
  const select = el("select", {
    id: "set-thinking",
    onchange: (event) => {
      settings.thinking = event.target.value;
      keep();
    },
  });
  for (const [value, text] of [["default", "model’s own"], ["off", "off"], ["low", "low"], ["medium", "medium"], ["high", "high"], ["max", "max"]]) {
    select.append(el("option", { value, selected: settings.thinking === value }, text));
  }
  return el("label.field", { htmlFor: select.id }, el("span", {}, "Thinking"), select, el("small", {}, "effort before the answer"));
}

/// Errors  a message when `text` is neither empty nor a JSON array of tools
export function tools_of(text) {
  if (text.trim() === "") return undefined;
  const tools = JSON.parse(text);
  if (!Array.isArray(tools)) throw new Error("expected an array of tools");
  return tools;
}

function conversation_part(conversation, save) {
  const system = el("textarea", {
    id: "set-system", rows: 4, value: conversation.system, placeholder: "You are …",
    onchange: (event) => {
      conversation.system = event.target.value;
      save();
    },
  });
  const problem = el("small.problem", { id: "tools-problem", role: "alert" });
  const tools = el("textarea.code", {
    id: "set-tools", rows: 5, value: conversation.tools, spellcheck: false, "aria-describedby": "tools-problem",
    placeholder: '[{"type": "function", "function": {"name": …}}]',
    oninput: (event) => {
      problem.textContent = "";
      try {
        tools_of(event.target.value);
        conversation.tools = event.target.value;
        save();
      } catch (error) {
        problem.textContent = `Not used yet: ${error.message}`;
      }
    },
  });
  return el("fieldset", {},
    el("legend", {}, "This conversation"),
    el("label.field.tall", { htmlFor: system.id }, el("span", {}, "System prompt"), system),
    el("label.field.tall", { htmlFor: tools.id }, el("span", {}, "Tools, as JSON"), tools, problem));
}

function key_field(on_key) {
  const input = el("input", {
    id: "set-key", type: "password", value: settings.key, autocomplete: "off", placeholder: "none",
    onchange: (event) => {
      settings.key = event.target.value.trim();
      keep();
      on_key();
    },
  });
  return el("label.field", { htmlFor: input.id }, el("span", {}, "API key"), input, el("small", {}, "kept in this browser"));
}

/// Opens the sheet. `actions`: {save, exported, imported, on_key}.
export function open_settings(conversation, actions) {
  const sheet = $("settings");
  const close = el("button.icon-button.close", { type: "button", "aria-label": "Close", onclick: () => sheet.close() }, "×");
  const file = el("input.visually-hidden", {
    id: "import", type: "file", accept: "application/json",
    onchange: async (event) => actions.imported(await event.target.files[0].text()),
  });
  sheet.replaceChildren(
    el("header", {}, el("h2", { id: "settings-title" }, "Settings"), close),
    el("div.sheet-body", {},
      conversation_part(conversation, actions.save),
      el("fieldset", {}, el("legend", {}, "Sampling"),
        el("div.fields", {}, ...numbers.map(number_field), thinking_field())),
      el("fieldset", {}, el("legend", {}, "Server"), el("div.fields", {}, key_field(actions.on_key))),
      el("fieldset", {}, el("legend", {}, "Conversations"),
        el("p.hint", {}, "They are kept in this browser alone."),
        el("div.row", {},
          el("button.button", { type: "button", onclick: async () => download("triax-conversations.json", "application/json", await actions.exported()) }, "Export all"),
          el("button.button", { type: "button", onclick: () => actions.export_one() }, "Export this one as text"),
          el("button.button", { type: "button", onclick: () => file.click() }, "Import"),
          file))));
  sheet.showModal();
}

const keys = [
  ["Enter", "send"],
  ["Shift Enter", "new line"],
  ["Esc", "stop the answer"],
  ["↑ in an empty message", "edit the last question"],
  ["Alt N", "new conversation"],
  ["Alt 1, 2, 3", "chat, live, three axes"],
  ["Alt R", "another answer"],
  ["Alt ,", "settings"],
  ["?", "these keys"],
];

export function open_help() {
  const sheet = $("help");
  sheet.replaceChildren(
    el("header", {}, el("h2", { id: "help-title" }, "Keys"),
      el("button.icon-button.close", { type: "button", "aria-label": "Close", onclick: () => sheet.close() }, "×")),
    el("dl.keys", {}, ...keys.flatMap(([key, does]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, does)])));
  sheet.showModal();
}

const themes = { auto: "as the system", light: "light", dark: "dark" };

export function start_theme() {
  const button = $("theme");
  const show = (theme) => {
    document.documentElement.dataset.theme = theme;
    button.setAttribute("aria-label", `Theme: ${themes[theme]}`);
    button.textContent = { auto: "Auto", light: "Light", dark: "Dark" }[theme];
    document.dispatchEvent(new Event("theme"));
  };
  show(localStorage.getItem("triax.theme") || "auto");
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("theme")));
  button.addEventListener("click", () => {
    const names = Object.keys(themes);
    const next = names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length];
    localStorage.setItem("triax.theme", next);
    show(next);
  });
}
