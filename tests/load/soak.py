"""Hours of bad luck for one server: clients that leave in every way, bad, huge and empty requests.

Usage: soak.py TRIAX MODEL [--seconds 900] [--streams 64] [-- flags of `triax serve`]
Without flags the server has 128 MB for sequences and cache: what fills up within that budget is no
growth, so it should be full after the first quarter.
Prints figures as JSON. Exit code 1: the server ended, was not idle in the end, answered with a 5xx
other than 503, refused what is right for another reason than its queue, or grew by more than
--growth-mb after the first quarter."""

import argparse
import collections
import json
import pathlib
import random
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from serving import Server, Stream, completion  # noqa: E402

BAD = ["", "{", "null", '{"prompt": 5}', '{"prompt": []}', '{"prompt": [-1]}', "[" * 50_000,
       '{"prompt": "a", "n": 1000000}', '{"prompt": "a", "max_tokens": "many"}', "\x00" * 1000]


class Soak:
    def __init__(self, server, seconds, seed):
        self.server = server
        self.end = time.monotonic() + seconds
        self.seed = seed
        self.counts = collections.Counter()
        self.wrong = []
        self.lock = threading.Lock()

    def count(self, what, wrong=None):
        with self.lock:
            self.counts[what] += 1
            if wrong and len(self.wrong) < 20:
                self.wrong.append(f"{what}: {wrong}")

    def prompt(self, rng):
        kind = rng.random()
        if kind < 0.1:
            return [rng.randrange(1000) for _ in range(1500)]
        if kind < 0.4:
            return "One of few beginnings that many share. " * rng.randrange(1, 5)
        return f"{rng.random()} "

    def stream(self, rng):
        """One stream, read to its end or left on the way."""
        way = rng.choice(["end", "end", "fin", "rst", "half"])
        # Leaving at once meets the queue and the prompt; after a while, the answer.
        patience = rng.choice([0.0, rng.random() * 0.2, rng.random() * 3])
        stream = Stream(self.server.port, completion(self.prompt(rng), rng.randrange(1, 60)))
        with stream.socket:
            if way != "end":
                time.sleep(patience)
                self.count("left by " + way)
                stream.leave(way)
                return
            status = stream.status()
            if status == 200:
                ended = stream.read_until(b"data: [DONE]")
                whole = ended and b'"error"' not in stream.seen
                self.count("whole streams" if whole else "broken streams",
                           None if whole else stream.seen[-200:])
            elif status == 429:
                self.count("refused: queue full")
                time.sleep(0.1)
            else:
                self.count(f"status {status}", stream.seen[:300])

    def bad(self, rng):
        body = rng.choice(BAD) if rng.random() < 0.8 else json.dumps({"prompt": "a " * 300_000})
        status = self.server.ask("POST", "/v1/completions", body.encode())[0]
        right = 400 <= status < 500
        self.count("bad requests" if right else f"bad request: {status}", None if right else body[:80])

    def client(self, number):
        rng = random.Random(self.seed * 100_003 + number)
        while time.monotonic() < self.end and self.server.process.poll() is None:
            try:
                self.stream(rng) if rng.random() < 0.85 else self.bad(rng)
            except OSError as error:
                self.count("socket errors", repr(error))


def main():
    arguments, flags = sys.argv[1:], []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, flags = arguments[:at], arguments[at + 1:]
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("triax")
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=900)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--growth-mb", type=float, default=16)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)

    server = Server(options.triax, options.model, *(flags or ["--memory", "128MB"]))
    soak = Soak(server, options.seconds, options.seed)
    threads = [threading.Thread(target=soak.client, args=(i,)) for i in range(options.streams)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    sizes = []
    while any(thread.is_alive() for thread in threads) and server.process.poll() is None:
        sizes.append((time.monotonic() - begun, server.resident_bytes()))
        time.sleep(0.25)
    for thread in threads:
        thread.join()

    alive = server.process.poll() is None
    idle = alive and server.idle(20)
    load = server.load() if alive else None
    code = server.end(60)
    quarter = max((size for when, size in sizes if when <= options.seconds / 4), default=0)
    last = max(size for when, size in sizes if when >= sizes[-1][0] * 3 / 4)
    growth = (last - quarter) / 1e6
    broken = [what for what in soak.counts if what.startswith(("status", "bad request:", "broken",
                                                              "socket"))]
    fine = alive and idle and code == 0 and not broken and growth <= options.growth_mb
    print(json.dumps({"fine": fine, "seconds": round(time.monotonic() - begun, 1),
                      "streams": options.streams, "alive": alive, "idle": idle,
                      "queued_running": load, "exit_code": code,
                      "counts": dict(sorted(soak.counts.items())),
                      "resident_mb": {"first quarter, largest": round(quarter / 1e6, 1),
                                      "last quarter, largest": round(last / 1e6, 1)},
                      "wrong": soak.wrong}, indent=1))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
