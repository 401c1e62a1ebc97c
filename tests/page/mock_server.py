"""A server of the page's own files whose answers are scripted: what a model might say at its worst.
Test only; the real server is tested beside it."""
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
import page_files  # noqa: E402


class Script:
    """An answer: pieces of deltas, seconds between them."""

    def __init__(self, *deltas, pause=0.0, finish="stop", usage=None):
        self.deltas, self.pause, self.finish = deltas, pause, finish
        self.usage = usage or {"prompt_tokens": 412, "completion_tokens": 96, "total_tokens": 508,
                               "prompt_tokens_details": {"cached_tokens": 384}}


def text(content, size=7, **more):
    return Script(*({"content": content[i:i + size]} for i in range(0, len(content), size)), **more)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def give(self, body, kind="application/json", status=200, headers=()):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        server = self.server
        path = self.path.split("?")[0]
        server.hits.append(path)
        if path in server.files:
            kind, source = server.files[path]
            with open(source, "rb") as file:
                self.give(file.read(), kind, headers=[
                    ("content-security-policy", server.policy), ("x-content-type-options", "nosniff")])
        elif path == "/v1/models":
            self.give(json.dumps({"object": "list", "data": [{"id": "mock", "object": "model"}]}).encode())
        elif path in server.gets:
            kind, body = server.gets[path]()
            self.give(body, kind)
        else:
            self.give(b'{"error":{"message":"there is no such thing"}}', status=404)

    def do_DELETE(self):
        self.server.deleted.append(self.path)
        self.give(b"{}")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.bodies.append(body)
        if self.path in self.server.posts:
            self.give(self.server.posts[self.path](body))
            return
        question = next((m["content"] for m in reversed(body["messages"]) if m["role"] != "assistant"), "")
        script = self.server.scripts.get(question)
        if script is None:
            self.give(b'{"error":{"message":"messages: no script for this","type":"invalid_request_error"}}', status=400)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        try:
            self.stream(script)
        except OSError:
            self.server.cut.set()  # the page has left

    def stream(self, script):
        def chunk(choices, **more):
            data = json.dumps({"id": "x", "object": "chat.completion.chunk", "choices": choices, **more})
            self.wfile.write(f"data: {data}\n\n".encode())
        chunk([{"index": 0, "delta": {"role": "assistant", "content": ""}}])
        for delta in script.deltas:
            chunk([{"index": 0, "delta": delta}])
            if script.pause:
                self.wfile.flush()
                time.sleep(script.pause)
        chunk([{"index": 0, "delta": {}, "finish_reason": script.finish}])
        chunk([], usage=script.usage)
        self.wfile.write(b"data: [DONE]\n\n")


class MockServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, scripts):
        super().__init__(("127.0.0.1", 0), Handler)
        self.policy, self.files = page_files.load()
        self.scripts = scripts  # {question: Script}
        self.gets, self.posts = {}, {}
        self.hits, self.bodies, self.deleted = [], [], []
        self.cut = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self):
        self.shutdown()
        self.server_close()
