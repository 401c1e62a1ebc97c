// Puts the page together: views, keys, the model's name, the sidebar of a phone.
import { $, announce, download } from "./dom.js";
import { get } from "./api.js";
import { Chat } from "./chat.js";
import { Live } from "./live.js";
import { AxesView } from "./axes.js";
import { open_help, open_settings, start_theme } from "./settings.js";
import { markdown } from "./tree.js";

const views = ["chat", "live", "axes"];
let model = { id: "", context: 0 };

const axes = new AxesView($("view-axes"));
const live = new Live($("view-live"));
const chat = new Chat({
  on_look: (request) => {
    show("axes", request);
  },
  model: () => model,
});

/// `request`: of the answer whose axes to show; null: the last one's.
function show(view, request = null) {
  for (const name of views) {
    const tab = $(`tab-${name}`);
    tab.setAttribute("aria-selected", String(name === view));
    tab.tabIndex = name === view ? 0 : -1;
    $(`view-${name}`).hidden = name !== view;
  }
  live.active(view === "live");
  if (view === "axes") axes.opened(request ?? chat.last_axes_request());
  document.body.dataset.view = view;
}

function start_tabs() {
  for (const name of views) $(`tab-${name}`).addEventListener("click", () => show(name));
  document.querySelector(".tabs").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) return;
    const at = views.indexOf(document.body.dataset.view);
    const next = views[(at + step + views.length) % views.length];
    show(next);
    $(`tab-${next}`).focus();
  });
  show("chat");
}

function start_sidebar() {
  const open = (yes) => {
    document.body.classList.toggle("sidebar-open", yes);
    $("menu").setAttribute("aria-expanded", String(yes));
  };
  $("menu").addEventListener("click", () => open(!document.body.classList.contains("sidebar-open")));
  $("scrim").addEventListener("click", () => open(false));
  document.addEventListener("opened", () => {
    open(false);
    show("chat");
  });
  document.addEventListener("keydown", (event) => event.key === "Escape" && open(false));
  $("new-chat").addEventListener("click", () => chat.fresh());
  $("open-help").addEventListener("click", open_help);
  $("open-settings").addEventListener("click", settings);
}

function settings() {
  open_settings(chat.conversation, {
    save: () => chat.save(),
    exported: () => chat.export_all(),
    export_one: () => download("conversation.md", "text/markdown", markdown(chat.conversation)),
    imported: async (text) => {
      try {
        announce(`${await chat.import_all(text)} conversations imported`);
      } catch {
        announce("This file holds no conversations");
      }
    },
    on_key: show_model,
  });
}

function start_keys() {
  const typing = () => /^(?:INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "");
  document.addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]") !== null) return;
    if (event.key === "Escape") chat.stop();
    else if (event.key === "?" && !typing()) open_help();
    else if (event.altKey && !event.ctrlKey && !event.metaKey) {
      const does = {
        KeyN: () => chat.fresh(),
        KeyR: () => [...document.querySelectorAll(".assistant [aria-label='Another answer']")].at(-1)?.click(),
        Comma: settings,
        Digit1: () => show("chat"),
        Digit2: () => show("live"),
        Digit3: () => show("axes"),
      }[event.code];
      if (does === undefined) return;
      event.preventDefault();
      does();
    }
  });
}

async function show_model() {
  try {
    const first = (await (await get("/v1/models")).json()).data[0];
    model = { id: first.id, context: first.context_length ?? first.max_model_len ?? 0 };
    $("model").textContent = model.id;
    $("model").classList.remove("problem");
    chat.show_fine_print();
  } catch (error) {
    $("model").textContent = error.status === 401 ? "A key is needed" : "No answer from the server";
    $("model").classList.add("problem");
  }
}

start_theme();
start_tabs();
start_sidebar();
start_keys();
show_model();
await chat.start();
document.body.dataset.ready = "true"; // for tests: everything listens
