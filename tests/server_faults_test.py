"""What goes wrong between a server and its clients. Usage: server_faults_test.py TRIAX SOURCE."""

import concurrent.futures
import http.client
import json
import pathlib
import socket
import sys
import tempfile
import time
import unittest

from serving import Server, Stream, completion

TRIAX = sys.argv.pop(1)
CONTEXT = ("--context", "16384")
MODEL = pathlib.Path(sys.argv.pop(1)) / "models" / "boot-k3"
LONG = 12_000  # tokens of an answer or prompt: far more than is computed while a test waits
WAYS = ("fin", "rst", "half")
KEY = "sk-test-0123456789"


class Faults(unittest.TestCase):
    flags = ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server(TRIAX, MODEL, *CONTEXT, *cls.flags)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.end()
        assert code == 0, f"{code}: {''.join(cls.server.words)}"

    def stream(self, *args, **more):
        stream = Stream(self.server.port, *args, **more)
        self.addCleanup(stream.socket.close)
        return stream

    def answers(self):
        status, _, text = self.server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})
        self.assertEqual(status, 200, text)


class Small(Faults):
    """One request runs, two wait; prompts are read in many steps."""

    flags = ("--max-running", "1", "--max-queue", "2", "--max-batch-tokens", "65")

    def tearDown(self):
        self.doCleanups()
        self.assertTrue(self.server.idle(), self.server.load())

    def test_full_queue_is_429_with_the_time_to_come_again(self):
        self.stream(completion("a", LONG)).read_until(b"data:")
        for _ in range(2):
            self.stream(completion("b", LONG))
        self.assertTrue(self.server.wait_for_load(lambda queued, _: queued == 2, 5))
        status, headers, text = self.server.ask("POST", "/v1/completions", {"prompt": "c"})
        self.assertEqual(status, 429, text)
        self.assertGreaterEqual(int(headers["retry-after"]), 1)
        self.assertEqual(json.loads(text)["error"]["code"], "queue_full")

    def test_who_leaves_while_decoding_is_cancelled(self):
        for way in WAYS:
            with self.subTest(way):
                stream = self.stream(completion("a", LONG))
                self.assertTrue(stream.read_until(b"data:"))
                stream.leave(way)
                self.assertTrue(self.server.idle(), "it goes on")
                self.answers()

    def test_who_leaves_in_the_prompt_is_cancelled(self):
        for i, way in enumerate(WAYS):
            with self.subTest(way):
                stream = self.stream(completion([300 + i] * LONG, 3000))
                self.assertTrue(self.server.wait_for_load(lambda _, running: running == 1, 5))
                stream.leave(way)
                self.assertTrue(self.server.idle(), "it goes on")
                left = [line for line in map(json.loads, self.server.log().splitlines())
                        if line["status"] == 499][-1]
                self.assertEqual(left["first_token_seconds"], 0, "it was no longer in the prompt")
                self.answers()

    def test_who_leaves_the_queue_is_cancelled(self):
        first = self.stream(completion("a", LONG))
        first.read_until(b"data:")
        for way in WAYS:
            with self.subTest(way):
                stream = self.stream(completion("b", LONG))
                self.assertTrue(self.server.wait_for_load(lambda queued, _: queued == 1, 5))
                stream.leave(way)
                self.assertTrue(self.server.wait_for_load(
                    lambda queued, running: (queued, running) == (0, 1), 5))
        first.leave("rst")


class Limits(Faults):
    flags = ("--max-body", "200000")

    def test_large_header_is_431_and_large_body_413(self):
        status, _, _ = self.server.ask("GET", "/v1/models", headers={"X-Large": "x" * 200_000})
        self.assertEqual(status, 431)
        # The length alone is enough: nothing of the body is sent.
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=20) as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\n"
                           b"Content-Length: 200001\r\n\r\n")
            self.assertIn(b" 413 ", client.recv(4096).split(b"\r\n")[0])
        self.answers()

    def test_deep_json_and_many_tools_are_400(self):
        deep = '{"prompt": ' + "[" * 90_000 + "]" * 90_000 + "}"
        self.assertEqual(self.server.ask("POST", "/v1/completions", deep)[0], 400)
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        tools = [{**tool, "function": {**tool["function"], "name": f"f{i}"}} for i in range(2000)]
        status, _, text = self.server.ask("POST", "/v1/chat/completions", {
            "messages": [{"role": "user", "content": "a"}], "tools": tools, "max_tokens": 1})
        self.assertEqual(status, 400, text)
        self.assertEqual(json.loads(text)["error"]["param"], "tools")
        self.answers()

    def test_bad_requests_are_4xx_before_any_work_and_the_server_lives(self):
        path = "/v1/completions"
        for body in ["", "{", "null", "[]", '{"prompt": ', '{"prompt": "\\ud800"', "\xff\xfe",
                     {"prompt": 5}, {"prompt": []}, {"prompt": [-1]}, {"prompt": [10**12]},
                     {"prompt": "a", "max_tokens": -1}, {"prompt": "a", "max_tokens": 10**30},
                     {"prompt": "a", "temperature": "hot"}, {"prompt": "a", "n": 0},
                     {"prompt": "a", "n": 10**6}, {"prompt": "a " * 60_000}]:
            data = body.encode("latin-1") if isinstance(body, str) else body
            status, _, text = self.server.ask("POST", path, data)
            self.assertIn(status, range(400, 500), (str(body)[:60], text))
            self.assertTrue(json.loads(text)["error"]["message"])
        for raw in [b"\r\n\r\n", b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x00\xa5",
                    b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: -5\r\n\r\n",
                    b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
                    b"GET %zz HTTP/1.1\r\nHost: t\r\n\r\n"]:
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=20) as client:
                client.sendall(raw)
                client.shutdown(socket.SHUT_WR)
                self.assertNotIn(b" 200 ", client.recv(4096).split(b"\r\n")[0])
        self.assertEqual(self.server.load(), (0, 0))
        self.answers()

    def test_methods_and_paths_that_are_not_served(self):
        self.assertEqual(self.server.ask("GET", "/v1/nothing")[0], 404)
        self.assertEqual(self.server.ask("DELETE", "/v1/chat/completions")[0], 405)
        status, headers, text = self.server.ask("HEAD", "/v1/models")
        self.assertEqual((status, text), (200, b""))
        self.assertGreater(int(headers["content-length"]), 0)

    def test_one_connection_serves_many_requests(self):
        client = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        client.connect()
        own = client.sock
        for pause in (0, 0, 0, 5.1):  # 5 s is where other servers close and agents' pools fail
            time.sleep(pause)
            client.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 1}))
            answer = client.getresponse()
            answer.read()
            self.assertEqual(answer.status, 200)
            self.assertIs(client.sock, own)
        client.close()

    def test_the_log_has_no_text_of_requests(self):
        secret = "xyzzy-plugh-4711"
        self.server.ask("POST", "/v1/completions", {"prompt": secret, "max_tokens": 1})
        self.server.ask("POST", "/v1/completions", {"prompt": secret, "max_tokens": secret})
        self.server.ask("GET", f"/v1/models?key={secret}", headers={"Authorization": f"Bearer {secret}"})
        log = self.server.log()
        self.assertEqual(json.loads(log.splitlines()[-1])["path"], "/v1/models")
        self.assertNotIn(secret, log + "".join(self.server.words))

    def test_other_origins_are_refused(self):
        status, headers, _ = self.server.ask("GET", "/v1/models",
                                             headers={"Origin": "https://evil.example"})
        self.assertEqual(status, 403)
        self.assertNotIn("access-control-allow-origin", headers)


class Many(Faults):
    flags = ("--max-running", "64")

    def test_64_open_streams_all_end_and_none_starves(self):
        def one(i):
            begun = time.monotonic()
            stream = Stream(self.server.port, completion(f"{i} is", 8))
            with stream.socket:
                stream.read_until(b"data:")
                ended = stream.read_until(b"data: [DONE]")
            return stream.status(), ended, time.monotonic() - begun

        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            results = list(pool.map(one, range(64)))
        self.assertEqual({r[:2] for r in results}, {(200, True)})
        times = sorted(r[2] for r in results)
        self.assertLess(times[-1], 5 * times[32] + 2, "some starve")
        self.assertTrue(self.server.idle())

    def test_a_slow_reader_holds_nobody(self):
        # It reads its first bytes and no more; log-probabilities make much of the rest.
        slow = self.stream(completion("a", LONG, logprobs=5), receive_bytes=4096)
        self.assertTrue(slow.read_until(b"data:"))
        fast = self.stream(completion("b", 20))
        self.assertTrue(fast.read_until(b"data: [DONE]"))
        self.assertEqual(self.server.load()[1], 1, "the slow one ended too early to say anything")
        slow.leave("rst")
        self.assertTrue(self.server.idle())


class Guarded(unittest.TestCase):
    def serve(self, *flags):
        server = Server(TRIAX, MODEL, *CONTEXT, *flags)
        self.addCleanup(server.end)
        return server

    def test_keys_and_named_origins(self):
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
            keys.write(KEY + "\n")
            keys.flush()
            server = self.serve("--api-key-file", keys.name, "--cors-origin", "https://a.example")
        for given in [{}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Bearer {KEY}x"},
                      {"Authorization": KEY}, {"X-Api-Key": KEY[:-1]}]:
            status, headers, _ = server.ask("GET", "/v1/models", headers=given)
            self.assertEqual(status, 401, given)
            self.assertIn("www-authenticate", headers)
        for given in [{"Authorization": f"Bearer {KEY}"}, {"X-Api-Key": KEY}]:
            self.assertEqual(server.ask("GET", "/v1/models", headers=given)[0], 200)
        self.assertEqual(server.ask("GET", "/health")[0], 200)
        status, headers, _ = server.ask("OPTIONS", "/v1/models",
                                        headers={"Origin": "https://a.example"})
        self.assertEqual((status, headers["access-control-allow-origin"]),
                         (204, "https://a.example"))

    def test_sigterm_lets_answers_end(self):
        server = self.serve("--drain-seconds", "30")
        stream = Stream(server.port, completion("a", 30))
        stream.read_until(b"data:")
        server.process.terminate()
        self.assertTrue(stream.read_until(b"data: [DONE]"))
        stream.socket.close()
        self.assertEqual(server.process.wait(timeout=20), 0)

    def test_sigterm_ends_answers_at_the_deadline(self):
        server = self.serve("--drain-seconds", "1")
        stream = Stream(server.port, completion("a", LONG))
        stream.read_until(b"data:")
        begun = time.monotonic()
        server.process.terminate()
        told = stream.read_until(b"shutting_down")
        stream.socket.close()
        self.assertTrue(told, stream.seen[-300:])
        self.assertEqual(server.process.wait(timeout=20), 0)
        self.assertGreater(time.monotonic() - begun, 0.9)


if __name__ == "__main__":
    unittest.main(verbosity=2)
