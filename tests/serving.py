"""A server on a free loopback port and clients of bare sockets, for tests of what goes wrong."""

import http.client
import json
import os
import pathlib
import re
import socket
import struct
import subprocess
import tempfile
import threading
import time


class Server:
    """`triax serve` with `flags`; `log` is its access log, `words` what it said on standard error."""

    def __init__(self, triax, model, *flags):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TRIAX_")}
        self.log_file = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.process = subprocess.Popen(
            [triax, "serve", "-m", str(model), "--port", "0", "--log", "json", *flags],
            stdout=self.log_file, stderr=subprocess.PIPE, text=True, env=environment)
        self.words = []
        self.port = None
        for line in self.process.stderr:
            self.words.append(line)
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                break
        if self.port is None:
            self.process.wait()
            raise RuntimeError("the server ended: " + "".join(self.words))
        self.reader = threading.Thread(target=lambda: self.words.extend(self.process.stderr))
        self.reader.start()

    def end(self, seconds=20):
        """SIGTERM; the exit code. Killed when it takes longer than `seconds`."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(timeout=seconds)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self.reader.join()
            self.process.stderr.close()

    def log(self):
        return pathlib.Path(self.log_file.name).read_text()

    def ask(self, method, path, body=None, headers=None, timeout=60):
        """(status, headers by lower-case name, body) of one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = json.dumps(body) if isinstance(body, (dict, list)) else body
            connection.request(method, path, data, headers or {})
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, text
        finally:
            connection.close()

    def load(self):
        """Requests that wait and that run."""
        state = json.loads(self.ask("GET", "/health")[2])
        return state["queued"], state["running"]

    def wait_for_load(self, wanted, seconds):
        """Whether `wanted(queued, running)` came true within `seconds`."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if wanted(*self.load()):
                return True
            time.sleep(0.02)
        return False

    def idle(self, seconds=5):
        return self.wait_for_load(lambda queued, running: queued == 0 and running == 0, seconds)

    def resident_bytes(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024


def completion(prompt, tokens, **more):
    """Body of a streamed completion of exactly `tokens` tokens."""
    return {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True, **more}


class Stream:
    """One request on a bare socket, so that it can end in any way."""

    def __init__(self, port, body, receive_bytes=0, timeout=60):
        self.socket = socket.socket()
        self.socket.settimeout(timeout)
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.connect(("127.0.0.1", port))
        text = json.dumps(body).encode()
        self.socket.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n"
                            % len(text) + text)
        self.seen = b""

    def read_until(self, mark):
        """Reads on until `mark` has come; False when the server ends before."""
        while mark not in self.seen:
            piece = self.socket.recv(65536)
            if not piece:
                return False
            self.seen += piece
        return True

    def status(self):
        self.read_until(b"\r\n")
        return int(self.seen.split(b" ", 2)[1])

    def leave(self, how):
        """'fin': closes; 'rst': resets; 'half': shuts its own side and stays."""
        if how == "half":
            self.socket.shutdown(socket.SHUT_WR)
            return
        if how == "rst":
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()
