// The server as the page sees it.
import { events } from "./sse.js";
import { settings } from "./settings.js";

export class ServerError extends Error {
  constructor(message, status, retry_after) {
    super(message);
    this.status = status;
    this.retry_after = retry_after;
  }
}

function headers(more = {}) {
  return settings.key === "" ? more : { ...more, authorization: `Bearer ${settings.key}` };
}

async function checked(response) {
  if (response.ok) return response;
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message ?? message;
  } catch {
    // No JSON: the status must do.
  }
  if (response.status === 401) message += " Enter a key in the settings.";
  throw new ServerError(message, response.status, Number(response.headers.get("retry-after")) || 0);
}

export async function get(path, signal) {
  return checked(await fetch(path, { headers: headers(), signal, cache: "no-store" }));
}

export async function remove(path) {
  return checked(await fetch(path, { method: "DELETE", headers: headers() }));
}

export async function post(path, body, signal) {
  const response = await fetch(path, {
    method: "POST",
    headers: headers({ "content-type": "application/json" }),
    body: JSON.stringify(body),
    signal,
  });
  return checked(response);
}

/// Runs a chat completion and calls `on_chunk` with each chunk. Ends at [DONE].
/// Errors  ServerError; what fetch throws, AbortError included; one that comes in the stream
export async function stream_chat(body, signal, on_chunk) {
  const response = await post(
    "/v1/chat/completions",
    { ...body, stream: true, stream_options: { include_usage: true } },
    signal,
  );
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ServerError(chunk.error.message ?? "the server failed", 500, 0);
    on_chunk(chunk);
  }
  throw new ServerError("the connection ended before the answer did", 0, 0);
}
