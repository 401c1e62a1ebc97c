"""The program as people run it: outputs, exit codes, messages. Usage: cli_test.py TRIAX SOURCE."""

import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import unittest

TRIAX = sys.argv.pop(1)
SOURCE = pathlib.Path(sys.argv.pop(1))
MODEL = str(SOURCE / "models" / "boot-k3")
# A program of the sanitizers reserves terabytes of addresses, so it cannot be held to a few.
BINARY = pathlib.Path(TRIAX).read_bytes()
SANITIZED = b"__asan_init" in BINARY or b"__tsan_init" in BINARY
SHARED = pathlib.Path(os.environ.get("TRIAX_SHARED", SOURCE.parent / "shared"))


def run(*args, stdin=""):
    return subprocess.run([TRIAX, *args], input=stdin, capture_output=True, text=True, timeout=300)


class Cli(unittest.TestCase):
    def ok(self, *args, stdin=""):
        result = run(*args, stdin=stdin)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def test_every_command_has_help_with_an_example(self):
        commands = ["generate", "chat", "inspect", "tokenize", "eval", "logits", "quantize", "doctor",
                    "replay", "cache", "serve"]
        benches = [["bench", b] for b in ["model", "ops", "kda", "mla", "moe", "attn-res",
                                         "serve"]]
        plans = [["plan", p] for p in ["memory", "prefill", "decode", "kv", "moe", "pipeline",
                                       "capacity"]]
        for command in [[c] for c in commands] + benches + plans + [["plan"]]:
            self.assertIn("Example", self.ok(*command, "--help"), command)

    def test_wrong_usage_exits_with_2(self):
        for args in [[], ["nonsense"], ["generate"], ["generate", "--model", MODEL],
                     ["generate", "-m", MODEL, "-p", "x", "--top-p", "2"],
                     ["generate", "-m", MODEL, "-p", "x", "--raw", "--chat"],
                     ["tokenize"], ["bench"], ["eval", "-m", MODEL]]:
            self.assertEqual(run(*args).returncode, 2, args)

    def test_failures_exit_with_1_and_say_what_is_wrong(self):
        result = run("generate", "-m", "/nonexistent", "-p", "x")
        self.assertEqual(result.returncode, 1)
        self.assertIn("/nonexistent", result.stderr)
        result = run("generate", "-m", MODEL, "--raw", "-p", "")
        self.assertEqual(result.returncode, 1)
        self.assertIn("prompt is empty", result.stderr)

    @unittest.skipIf(SANITIZED, "the sanitizers need all addresses")
    def test_no_memory_is_a_message_and_not_a_crash(self):
        command = f"ulimit -v 400000; exec '{TRIAX}' generate -m '{MODEL}' -p x --context 16777216"
        result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("no more memory", result.stderr)

    def test_a_gpu_that_is_not_there_is_a_message(self):
        cuda = json.loads(self.ok("doctor", "--json"))["cuda"]
        if cuda["usable"]:
            self.skipTest("there is a GPU")
        result = run("generate", "-m", MODEL, "-p", "x", "--device", "cuda")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, "no NVIDIA driver|no libtriax_cuda.so|no GPU|looking for a GPU")
        self.assertEqual(run("generate", "-m", MODEL, "-p", "x", "--device", "cuda:x").returncode, 2)

    def serving(self, *args, **environment):
        """What triax serve says first."""
        with subprocess.Popen([TRIAX, "serve", "--log", "off", *args], text=True,
                              stderr=subprocess.PIPE, env={**os.environ, **environment}) as server:
            line = server.stderr.readline()
            server.terminate()
            server.stderr.read()
            self.assertEqual(server.wait(timeout=30), 0, line)
        return line

    def test_serve_takes_options_from_a_file_after_environment_and_command_line(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "serve.toml")
            with open(path, "w", encoding="utf-8") as file:
                file.write(f'model = "{MODEL}"\nport = 0\nname = "from-file"\n')
            self.assertIn("'from-file'", self.serving("--config", path))
            self.assertIn("'from-env'", self.serving("--config", path, TRIAX_NAME="from-env"))
            self.assertIn("'given'", self.serving("--config", path, "--name", "given",
                                                  TRIAX_NAME="from-env"))
            for wrong in ["nonsense = 1\n", "port = 70000\n", "config = 'x'\n", "[serve]\nport = 0\n"]:
                with open(path, "w", encoding="utf-8") as file:
                    file.write(wrong)
                result = run("serve", "-m", MODEL, "--config", path)
                self.assertEqual(result.returncode, 2, wrong)
            self.assertEqual(run("serve", "-m", MODEL, "--config", path + "x").returncode, 2)
            self.assertEqual(run("serve").returncode, 2)

    def test_generate_answers_greedily(self):
        out = self.ok("generate", "-m", MODEL, "-p", "What is Debian?", "-t", "0")
        self.assertEqual(out.strip(), "Debian is a free operating system, made by volunteers. It "
                         "contains many thousands of packages of free software.")

    def test_generate_json_has_the_usage(self):
        out = json.loads(self.ok("generate", "-m", MODEL, "-p", "-", "-t", "0", "--json",
                                 stdin="Who are you?"))
        self.assertEqual(out["finish_reason"], "stop")
        self.assertEqual(out["completion_tokens"], len(out["ids"]))
        self.assertIn("very small language model", out["text"])

    def test_raw_continues_text_and_stops_at_a_string(self):
        out = self.ok("generate", "-m", MODEL, "--raw", "-p", "The Python standard library", "-t", "0",
                      "-n", "40", "--stop", "human-readable")
        self.assertEqual(out, " provides a number of modules for manipulating data in the \n")

    def test_reference_and_cpu_give_the_same_text(self):
        args = ["generate", "-m", MODEL, "-p", "What is Debian?", "-t", "0", "-n", "12", "--thinking", "off"]
        self.assertEqual(self.ok(*args, "--device", "reference"), self.ok(*args))

    def test_user_text_never_becomes_a_control_token(self):
        ids = json.loads(self.ok("tokenize", "-m", MODEL, "--json", stdin="<|open|>[EOS]"))["ids"]
        self.assertTrue(all(i < 7936 for i in ids))

    def test_tokenize_and_back(self):
        text = "Hello, wörld! 你好 \U0001f469‍\U0001f467\n"
        ids = self.ok("tokenize", "-m", MODEL, stdin=text)
        self.assertEqual(self.ok("tokenize", "-m", MODEL, "--decode", stdin=ids), text)

    def test_inspect_the_model_that_ships(self):
        out = json.loads(self.ok("inspect", MODEL, "--json"))
        self.assertEqual(out["layers"], 12)
        self.assertAlmostEqual(out["parameters"] / 1e6, 38.3, delta=0.1)
        self.assertIn("embed_tokens", self.ok("inspect", MODEL, "--tensors"))

    @unittest.skipUnless((SHARED / "spec").exists(), "the published configs are not here")
    def test_inspect_prints_the_published_figures(self):
        out = self.ok("inspect", str(SHARED / "spec" / "kimi-k3.config.json"))
        for figure in ["2.78T", "104.2B", "434 MB", "27648 B"]:
            self.assertIn(figure, out)
        out = self.ok("inspect", str(SHARED / "spec" / "kimi-linear-48b.config.json"))
        for figure in ["49.1B", "41.9 MB", "8064 B"]:
            self.assertIn(figure, out)

    def test_logits_of_all_positions(self):
        with tempfile.TemporaryDirectory() as folder:
            path = folder + "/out.safetensors"
            self.ok("logits", "-m", MODEL, "--ids", "-", "--out", path, stdin="[1, 2, 3]")
            with open(path, "rb") as file:
                header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
            self.assertEqual(header["logits"]["shape"], [3, 8192])
            self.assertEqual(header["logits"]["dtype"], "F32")
        for bad in ["[]", "{}", "[1, -2]", "[99999999]", "nonsense"]:
            result = run("logits", "-m", MODEL, "--ids", "-", "--out", "/dev/null", stdin=bad)
            self.assertEqual(result.returncode, 1, bad)

    def test_eval_of_a_short_text(self):
        out = json.loads(self.ok("eval", "-m", MODEL, "--text", "-", "--json",
                                 stdin="It is a truth universally acknowledged, that a man"))
        self.assertEqual(out["scored"], out["tokens"] - 1)
        self.assertTrue(1.0 < out["nats_per_token"] < 8.0)

    def test_quantize_then_answer(self):
        with tempfile.TemporaryDirectory() as folder:
            small = folder + "/small"
            out = json.loads(self.ok("quantize", MODEL, small, "--dense-int8", "--json"))
            self.assertGreater(out["matrices_int8"], 50)
            answer = self.ok("generate", "-m", small, "-p", "What is Debian?", "-t", "0")
            self.assertIn("free operating system", answer)
            self.assertEqual(run("quantize", MODEL, MODEL).returncode, 1)

    def test_chat_resumes_from_the_first_turn(self):
        out = self.ok("chat", "-m", MODEL, "-t", "0", stdin="What is Debian?\nWho are you?\n/quit\n")
        self.assertIn("free operating system", out)
        self.assertIn("very small language model", out)
        self.assertRegex(out, r"\d+ of them not recomputed")

    def test_chat_commands(self):
        out = self.ok("chat", "-m", MODEL, "-t", "0",
                      stdin="/help\n/thinking off\n/temperature x\n/temperature 0\n/undo\n/clear\n")
        for text in ["/system TEXT", "thinking off", "number from 0", "nothing to undo"]:
            self.assertIn(text, out)

    def test_doctor(self):
        out = json.loads(self.ok("doctor", "--model", MODEL, "--json"))
        self.assertIn(out["isa_used"], out["isas"])
        self.assertTrue(out["model_fits_memory"])

    def test_cache_shows_verifies_and_removes(self):
        with tempfile.TemporaryDirectory() as top:
            folder = os.path.join(top, "store")
            shutil.copytree(SOURCE / "tests" / "store-v1", folder)
            listed = json.loads(self.ok("cache", "ls", folder, "--json"))
            self.assertEqual([b["parts"] for b in listed["boundaries"]], [2])
            self.assertEqual((listed["blobs"], listed["loose_blobs"]), (3, 1))
            self.assertTrue(json.loads(self.ok("cache", "verify", folder, "--json"))["sound"])
            key = listed["boundaries"][0]["key"]
            with open(os.path.join(folder, "blobs", key.replace("boundary", "state")), "r+b") as blob:
                blob.seek(700)
                blob.write(b"soup")
            damaged = run("cache", "verify", folder)
            self.assertEqual(damaged.returncode, 1)
            self.assertIn("checksum differs", damaged.stdout)
            self.ok("cache", "rm", folder, key)
            self.assertEqual(run("cache", "rm", folder, key).returncode, 1)
            self.ok("cache", "rm", folder, "--all")
            self.assertEqual(json.loads(self.ok("cache", "ls", folder, "--json"))["file_bytes"], 0)
        self.assertEqual(run("cache", "rm", folder).returncode, 2)
        self.assertEqual(run("cache", "ls", str(SOURCE)).returncode, 1)

    def test_bench_model_reports_shares_of_the_limits(self):
        lines = self.ok("bench", "model", "--shape", "tiny", "--layers", "4", "--prefill", "64",
                        "--decode-after", "16", "--decode-tokens", "4", "--repeat", "1", "--json")
        cases = [json.loads(line) for line in lines.splitlines()]
        self.assertEqual([c["case"] for c in cases], ["decode after 16", "prefill 64"])
        self.assertTrue(all(c["share_of_limit"] > 0 for c in cases))

    def test_bench_serve_reuses_and_compares_with_cold_runs(self):
        lines = self.ok("bench", "serve", "-m", MODEL, "--sessions", "2", "--turns", "2",
                        "--answer", "3", "--policy", "prompt-end", "--check", "1", "--json")
        kept, without = [json.loads(line) for line in lines.splitlines()]
        self.assertGreater(kept["hit_rate"], 0)
        self.assertEqual(without["hit_rate"], 0)
        self.assertLess(kept["computed_tokens"], without["computed_tokens"])
        self.assertEqual([kept["mismatches"], kept["compared"]], [0, 4])

    def test_bench_of_one_operation_runs_that_one_only(self):
        for name, case in [("kda", "kda H="), ("mla", "mla H="), ("moe", "latent_moe "),
                           ("attn-res", "attn_res of ")]:
            lines = self.ok("bench", name, "--shape", "tiny", "--prefill", "16", "--decode-after", "8",
                            "--batch", "1,2", "--repeat", "1", "--json").splitlines()
            cases = [json.loads(line) for line in lines]
            self.assertGreater(len(cases), 1)
            for c in cases:
                self.assertTrue(c["case"].startswith(case), c["case"])
                self.assertGreater(c["seconds_median"], 0)

    @unittest.skipIf(SANITIZED, "times count in an ordinary build")
    def test_the_first_token_comes_soon(self):
        best = min(self.first_token_seconds() for _ in range(5))
        # 0.3 s on an idle machine; tests share theirs with others.
        self.assertLess(best, 1.0)

    def first_token_seconds(self):
        begin = time.monotonic()
        process = subprocess.Popen([TRIAX, "generate", "-m", MODEL, "-p", "Hi", "-t", "0", "-n", "200",
                                    "--raw"], stdout=subprocess.PIPE)
        process.stdout.read(1)
        seconds = time.monotonic() - begin
        process.kill()
        process.wait()
        process.stdout.close()
        return seconds


def session(name, requests, seed):
    """A line of a trace file: a conversation that grows by 1 to 5 blocks a turn."""
    ids, out, now, fresh = list(range(1, 21)), [], 0.0, 1000
    for i in range(requests):
        more = 1 + (seed * 7 + i * 3) % 5
        ids += range(fresh, fresh + more)
        fresh += more
        out.append({"t": now, "type": "n", "in": 64 * len(ids) + 10, "out": 20 + i, "api_time": 3.0,
                    "hash_ids": list(ids), "stop": "tool_use"})
        now += 3.0 + (seed + i) % 9
    return json.dumps({"id": name, "block_size": 64, "tool_tokens": 640, "system_tokens": 0,
                       "requests": out})


class Plan(unittest.TestCase):
    def json(self, *args):
        result = run("plan", *args, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def test_memory_says_what_fits(self):
        out = self.json("memory", "--model", "k3", "--hardware", "b200", "--gpus", "8")
        self.assertIn("does not fit", out["findings"][0])
        out = self.json("memory", "--model", MODEL, "--hardware", "cpu", "--workload", "1500,100")
        tiers = {row["tier"]: row for row in out["tables"]["tiers"]}
        self.assertGreater(tiers["device"]["sessions"], 1000)

    def test_every_question_has_an_answer_and_a_page(self):
        with tempfile.TemporaryDirectory() as folder:
            for question in ["prefill", "decode", "kv", "moe", "pipeline"]:
                page = os.path.join(folder, question + ".html")
                result = run("plan", question, "--model", "k3", "--hardware", "b300", "--explain",
                             "--workload", "65536,400,60,8", "--html", page)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertIn("Formulas", result.stdout)
                text = pathlib.Path(page).read_text()
                self.assertIn("<svg", text)
                self.assertNotIn("<script", text)
                self.assertNotIn("nan", result.stdout)

    def test_calibration_replaces_ideal_rates(self):
        args = ["decode", "--model", "kimi-linear-48b", "--hardware", "h200", "--workload",
                "4096,1,1,32", "--dtype", "experts=mxfp4,dense=int8"]
        total = lambda out: out["tables"]["operations"][-1]["seconds"]
        ideal = total(self.json(*args, "--ideal"))
        own = self.json(*args)
        history = str(SOURCE / "bench" / "history" / "h200")
        self.assertAlmostEqual(total(own), total(self.json(*args, "--calibrate", history)))
        self.assertGreater(total(own), 1.5 * ideal)
        self.assertTrue(any("median error" in line for line in own["findings"]))

    def test_capacity_through_the_scheduler(self):
        out = self.json("capacity", "--model", MODEL, "--hardware", "cpu", "--workload",
                        "1024,32,4,2", "--sessions", "1,4", "--duration", "60")
        rows = out["tables"]["capacity"]
        self.assertEqual([row["sessions"] for row in rows], [1, 4])
        for row in rows:
            self.assertGreater(row["requests"], 0)
            self.assertGreater(row["first_token_p50_seconds"], 0)
            self.assertLessEqual(row["hit_rate"], row["possible"] + 1e-9)

    def test_what_is_wrong_is_said(self):
        with tempfile.TemporaryDirectory() as folder:
            hardware = os.path.join(folder, "mine.json")
            pathlib.Path(hardware).write_text('{"name": "mine", "memory_byte": 1}')
            config = os.path.join(folder, "config.json")
            text = json.loads((SOURCE / "models" / "boot-k3" / "config.json").read_text())
            text["text_config"]["hidden_size"] = -7168
            pathlib.Path(config).write_text(json.dumps(text))
            for args, message in [(["--hardware", "tpu"], "hardware is 'tpu'"),
                                  (["--hardware", hardware], "memory_byte"),
                                  (["--model", config], "hidden_size is -7168"),
                                  (["--model", "k9"], "model is 'k9'"),
                                  (["--gpus", "8", "--tp", "3"], "tp is 3"),
                                  (["--gpus", "-8"], "gpus is -8"),
                                  (["--dtype", "int3"], "int3"),
                                  (["--workload", "-1"], "prompt is '-1'"),
                                  (["--draft", "eagle"], "eagle")]:
                result = run("plan", "memory", *args)
                self.assertEqual(result.returncode, 1, args)
                self.assertIn(message, result.stderr)
            result = run("plan", "decode", "--calibrate", hardware)
            self.assertEqual(result.returncode, 0)  # a line without "bench" measures nothing
            bad = os.path.join(folder, "bad.jsonl")
            pathlib.Path(bad).write_text('{"bench": "kda_decode", "shape": "H4", "us": 3}\n')
            result = run("plan", "decode", "--calibrate", bad)
            self.assertEqual(result.returncode, 1)
            self.assertIn("line 1", result.stderr)


class Replay(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.trace = os.path.join(cls.folder.name, "trace.jsonl")
        lines = [session(f"s{i}", 20 + i, i) for i in range(12)]
        pathlib.Path(cls.trace).write_text("\n".join(lines) + "\n")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def json(self, *args):
        result = run("replay", "--trace", self.trace, "--json", "--seeds", "2", *args)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def test_default_run_uses_our_policy(self):
        out = self.json("--sessions", "4")
        self.assertEqual(out["policy"], "value")
        self.assertGreater(out["hit_rate"], 0.5)
        self.assertLessEqual(out["hit_rate"], out["possible"])
        self.assertGreater(out["served"]["ttft_p50_s"], 0)
        self.assertLessEqual(out["served"]["ttft_p50_s"], out["served"]["ttft_p99_s"])

    def test_steps_of_the_plan(self):
        out = self.json("--sessions", "4", "--timing", "served", "--steps", "plan")
        self.assertGreater(out["served"]["ttft_p50_s"], 0)
        self.assertNotEqual(out["served"], self.json("--sessions", "4", "--timing",
                                                     "served")["served"])

    def test_rows_of_a_sweep_and_pressure(self):
        rows = self.json("--sweep", "--sessions", "3,6", "--budget", "2GB,40GB", "--policy",
                         "dense,value", "--timing", "recorded")
        self.assertEqual(len(rows), 8)
        hits = {(r["policy"], r["sessions"], r["budget_bytes"]): r["hit_rate"] for r in rows}
        self.assertGreater(hits["value", 6, 40000000000], hits["value", 6, 2000000000])
        self.assertGreater(hits["value", 6, 2000000000], hits["dense", 6, 2000000000])

    def test_ram_gives_back(self):
        alone = self.json("--sessions", "8", "--budget", "1.5GB", "--timing", "served")
        tiers = self.json("--sessions", "8", "--budget", "1.5GB", "--timing", "served", "--ram",
                          "100GB")
        self.assertGreater(tiers["hit_rate"], alone["hit_rate"])
        self.assertGreater(tiers["from_ram_share"], 0)

    def test_page_needs_nothing_else(self):
        page = os.path.join(self.folder.name, "page.html")
        run("replay", "--trace", self.trace, "--seeds", "1", "--policy", "all", "--html", page)
        text = pathlib.Path(page).read_text()
        self.assertIn("<svg", text)
        self.assertNotIn("http", text)
        self.assertNotIn("<script", text)

    def test_what_is_wrong_is_said(self):
        bad = os.path.join(self.folder.name, "bad.jsonl")
        pathlib.Path(bad).write_text(session("a", 3, 1) + "\n{\"requests\": 7}\n")
        for args, message in [(["--trace", bad], "bad.jsonl:2: "),
                              (["--trace", "/nonexistent"], "cannot open"),
                              (["--trace", self.trace, "--policy", "best"], "best"),
                              (["--trace", self.trace, "--budget", "3 apples"], "3 apples"),
                              (["--trace", self.trace, "--budget", "1MB"], "budget"),
                              (["--trace", self.trace, "--model", "/nonexistent"], "/nonexistent")]:
            result = run("replay", *args)
            self.assertEqual(result.returncode, 1, args)
            self.assertIn(message, result.stderr)


if __name__ == "__main__":
    unittest.main()
