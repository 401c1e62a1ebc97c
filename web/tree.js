// A conversation is a tree: editing a question or asking for another answer adds a branch. Pure.
import { fresh_id } from "./dom.js";

/// nodes: {id: {id, parent, role, content, …}}; `chosen`: of each parent ("" for the top) the child
/// that is shown.
export function new_conversation() {
  const now = Date.now();
  return { id: fresh_id(), title: "", created: now, updated: now, system: "", tools: "", nodes: {}, chosen: {} };
}

export function add(conversation, parent, node) {
  const added = { id: fresh_id(), parent: parent ?? "", created: Date.now(), ...node };
  conversation.nodes[added.id] = added;
  conversation.chosen[added.parent] = added.id;
  conversation.updated = Date.now();
  return added;
}

/// The children of `parent`, oldest first.
export function children(conversation, parent) {
  return Object.values(conversation.nodes).filter((node) => node.parent === (parent ?? ""));
}

/// What is shown, from the first message to the last.
export function path(conversation) {
  const shown = [];
  for (let at = conversation.chosen[""]; at !== undefined; at = conversation.chosen[at]) {
    const node = conversation.nodes[at];
    if (node === undefined) break;
    shown.push(node);
  }
  return shown;
}

/// {index, count} among its siblings.
export function place(conversation, node) {
  const all = children(conversation, node.parent);
  return { index: all.findIndex((other) => other.id === node.id), count: all.length };
}

/// Shows the sibling `step` further on.
export function turn(conversation, node, step) {
  const all = children(conversation, node.parent);
  const next = all[all.findIndex((other) => other.id === node.id) + step];
  if (next !== undefined) conversation.chosen[node.parent] = next.id;
}

/// The path up to and with `node`, as the API takes it.
export function messages(conversation, node) {
  const list = [];
  for (let at = node; at !== undefined; at = conversation.nodes[at.parent]) list.unshift(message(at));
  if (conversation.system.trim() !== "") list.unshift({ role: "system", content: conversation.system });
  return list;
}

function message(node) {
  if (node.role === "tool") return { role: "tool", tool_call_id: node.call, content: node.content };
  const out = { role: node.role, content: node.content };
  if (node.role !== "assistant") return out;
  if (node.reasoning) out.reasoning_content = node.reasoning;
  if (node.calls?.length > 0) {
    out.tool_calls = node.calls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: call.arguments },
    }));
  }
  return out;
}

/// The conversation as a text to read.
export function markdown(conversation) {
  const names = { user: "You", assistant: "Model", tool: "Tool" };
  const parts = [`# ${conversation.title || "Conversation"}`];
  if (conversation.system) parts.push(`**System**\n\n${conversation.system}`);
  for (const node of path(conversation)) {
    const calls = (node.calls ?? []).map((call) => `\`\`\`\n${call.name}(${call.arguments})\n\`\`\``);
    parts.push(`**${names[node.role]}**\n\n${[node.content, ...calls].filter(Boolean).join("\n\n")}`);
  }
  return `${parts.join("\n\n")}\n`;
}
