"""JSON schemas at random against Python's jsonschema. Usage: constraint_test.py PROBE TRIAX SOURCE.

Valid instances must be taken, invalid ones refused, and all that is drawn at random, token by token
from the masks, must be valid. Exit code 77: there is no jsonschema (Debian: python3-jsonschema)."""

import copy
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request

try:
    import jsonschema
except ImportError:
    print("python3-jsonschema is not here")
    sys.exit(77)

PROBE, TRIAX, SOURCE = sys.argv[1:4]
del sys.argv[1:4]
MODEL = str(pathlib.Path(SOURCE) / "models" / "boot-k3")
PATTERNS = {"^[a-z]{2,4}$": lambda r: "".join(r.choices("abcz", k=r.randint(2, 4))),
            "^\"?[0-9]+(\\.[0-9]{2})?$": lambda r: r.choice(["\"7", "12.50", "0"]),
            "b+": lambda r: r.choice(["b", "abba", "é\\bbb\n"])}
FORMATS = {"date": "2024-02-29", "uuid": "123e4567-e89b-12d3-a456-426614174000", "ipv4": "1.2.3.255"}


class Maker:
    """A random schema with a way to make its valid instances."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def name(self):
        return "".join(self.random.choices("abé\"\\ ", k=self.random.randint(1, 3)))

    def text(self, low, high):
        return "".join(self.random.choices("aZ0 \"\\\n\té人😀", k=self.random.randint(low, high)))

    def make(self, depth):
        kinds = ["integer", "number", "string", "pattern", "format", "enum", "boolean", "null"]
        if depth > 0:
            kinds += ["array", "tuple", "object", "object", "map", "any", "list", "ref"]
        return getattr(self, "make_" + self.random.choice(kinds))(depth)

    def make_integer(self, depth):
        low = self.random.randint(-300, 300)
        high = low + self.random.choice([0, 5, 90, 4000])
        step = self.random.choice([1, 1, 7])
        values = [v for v in range(low, high + 1) if v % step == 0] or [None]
        if values == [None]:
            return self.make_boolean(depth)
        schema = {"type": "integer", "minimum": low, "exclusiveMaximum": high + 1}
        if step > 1:
            schema["multipleOf"] = step
        return schema, lambda: self.random.choice(values)

    def make_number(self, depth):
        low = self.random.randint(-20, 20)
        high = low + self.random.randint(1, 30)
        return ({"type": "number", "exclusiveMinimum": low, "maximum": high},
                lambda: round(self.random.uniform(low + 0.01, high), 3))

    def make_string(self, depth):
        low = self.random.randint(0, 4)
        high = low + self.random.randint(0, 25)
        return ({"type": "string", "minLength": low, "maxLength": high},
                lambda: self.text(low, high))

    def make_pattern(self, depth):
        pattern = self.random.choice(list(PATTERNS))
        return {"type": "string", "pattern": pattern}, lambda: PATTERNS[pattern](self.random)

    def make_format(self, depth):
        name = self.random.choice(list(FORMATS))
        return {"type": "string", "format": name}, lambda: FORMATS[name]

    def make_enum(self, depth):
        values = [self.text(0, 5), 7, None, True, [1, {"k": "v\""}]]
        return {"enum": values}, lambda: copy.deepcopy(self.random.choice(values))

    def make_boolean(self, depth):
        return {"type": "boolean"}, lambda: self.random.random() < 0.5

    def make_null(self, depth):
        return {"type": "null"}, lambda: None

    def make_array(self, depth):
        item, value = self.make(depth - 1)
        low = self.random.randint(0, 2)
        high = low + self.random.randint(0, 3)
        return ({"type": "array", "items": item, "minItems": low, "maxItems": high},
                lambda: [value() for _ in range(self.random.randint(low, high))])

    def make_tuple(self, depth):
        parts = [self.make(depth - 1) for _ in range(2)]
        return ({"type": "array", "prefixItems": [p[0] for p in parts], "items": False,
                 "minItems": 1}, lambda: [p[1]() for p in parts][:self.random.randint(1, 2)])

    def make_object(self, depth):
        members = {self.name(): self.make(depth - 1) for _ in range(self.random.randint(1, 4))}
        required = [n for n in members if self.random.random() < 0.5]
        extra, more = self.make(0) if self.random.random() < 0.3 else (False, None)

        def value():
            made = {n: m[1]() for n, m in members.items()
                    if n in required or self.random.random() < 0.5}
            if more and self.random.random() < 0.5:
                made["zz" + self.name()] = more()
            return made
        return ({"type": "object", "properties": {n: m[0] for n, m in members.items()},
                 "required": required, "additionalProperties": extra}, value)

    def make_map(self, depth):
        item, value = self.make(depth - 1)
        return ({"type": "object", "additionalProperties": item, "maxProperties": 3},
                lambda: {f"k{i}": value() for i in range(self.random.randint(0, 3))})

    def make_any(self, depth):
        parts = [self.make(depth - 1) for _ in range(2)]
        return ({"anyOf": [p[0] for p in parts]}, lambda: self.random.choice(parts)[1]())

    def make_list(self, depth):
        item, value = self.make_integer(0)
        schema = {"allOf": [{"type": "array", "items": item}, {"minItems": 1}, {"maxItems": 4}]}
        return schema, lambda: [value() for _ in range(self.random.randint(1, 4))]

    def make_ref(self, depth):
        def value(left=3):
            return None if left == 0 or self.random.random() < 0.3 else {"next": value(left - 1)}
        return {"$ref": "#/$defs/chain"}, value


CHAIN = {"anyOf": [{"type": "null"}, {"type": "object", "properties": {
    "next": {"$ref": "#/$defs/chain"}}, "required": ["next"], "additionalProperties": False}]}


def mutated(value, rng):
    """The value with one thing changed: often no instance any more."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        changed = dict(value)
        if rng.random() < 0.3:
            del changed[key]
        else:
            changed[key] = mutated(value[key], rng)
        return changed
    if isinstance(value, list) and value and rng.random() < 0.8:
        i = rng.randrange(len(value))
        return value[:i] + ([mutated(value[i], rng)] if rng.random() < 0.7 else []) + value[i + 1:]
    if isinstance(value, str):
        return rng.choice([value + "a", value[1:], value * 9, 5])
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return rng.choice([value + 1, -value, value * 100 + 3, value + 0.5, str(value)])
    return rng.choice([None, True, 0, "x", [], {}, {"q": 1}])


class Constraint(unittest.TestCase):
    def test_random_schemas(self):
        probe = subprocess.Popen([PROBE, MODEL], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 text=True)
        counts = {"valid": 0, "invalid": 0, "drawn": 0}
        for seed in range(250):
            maker = Maker(seed)
            schema, value = maker.make(3)
            schema = {"$defs": {"chain": CHAIN}, **schema}
            judge = jsonschema.Draft202012Validator(
                schema, format_checker=jsonschema.FormatChecker())
            rng = random.Random(seed)
            valid = [value() for _ in range(4)]
            wrong = [m for m in (mutated(v, rng) for v in valid * 3) if not judge.is_valid(m)]
            for v in valid:
                self.assertTrue(judge.is_valid(v), (schema, v))
            dumps = [json.dumps(v, ensure_ascii=False, indent=rng.choice([None, 1]))
                     for v in valid + wrong]
            request = {"schema": json.dumps(schema), "texts": dumps, "draws": 4, "seed": seed}
            probe.stdin.write(json.dumps(request) + "\n")
            probe.stdin.flush()
            answer = json.loads(probe.stdout.readline())
            self.assertNotIn("error", answer, schema)
            for text, accepted in zip(dumps[:len(valid)], answer["accepted"]):
                self.assertTrue(accepted, (schema, text))
            for text, accepted in zip(dumps[len(valid):], answer["accepted"][len(valid):]):
                self.assertFalse(accepted, (schema, text))
            for text in filter(None, answer["drawn"]):
                self.assertTrue(judge.is_valid(json.loads(text)), (schema, text))
                counts["drawn"] += 1
            counts["valid"] += len(valid)
            counts["invalid"] += len(wrong)
        probe.stdin.close()
        self.assertEqual(probe.wait(timeout=30), 0)
        probe.stdout.close()
        print(counts)
        self.assertGreater(min(counts.values()), 800, counts)

    def generate(self, *args):
        result = subprocess.run([TRIAX, "generate", "-m", MODEL, "--thinking", "off", *args],
                                capture_output=True, text=True, timeout=120)
        return result

    def test_the_program_writes_instances(self):
        schema = {"type": "object", "properties": {
            "name": {"type": "string", "maxLength": 20}, "year": {"type": "integer", "minimum": 1900,
                                                                  "maximum": 2030},
            "kind": {"enum": ["system", "package"]}}, "required": ["name", "year", "kind"]}
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "schema.json"
            path.write_text(json.dumps(schema))
            for seed, temperature in ((1, "0"), (2, "1"), (3, "1.5")):
                out = self.generate("-p", "What is Debian?", "--json-schema", str(path), "-t",
                                    temperature, "--seed", str(seed))
                self.assertEqual(out.returncode, 0, out.stderr)
                jsonschema.validate(json.loads(out.stdout), schema)
            path.write_text('{"type": "object", "properties": {"a": {"not": {}}}}')
            out = self.generate("-p", "x", "--json-schema", str(path))
            self.assertEqual(out.returncode, 1)
            self.assertIn("$.properties.a.not: this keyword is not supported", out.stderr)
            path.write_text('root ::= "Debian " [0-9]{1,2} ("." [0-9])?')
            out = self.generate("-p", "Which one?", "--grammar", str(path), "-t", "1")
            self.assertRegex(out.stdout.strip(), r"^Debian [0-9]{1,2}(\.[0-9])?$")
        out = self.generate("--raw", "-p", "Debian is", "--regex", " (free|a[a-z ]{1,20})\\.", "-t", "1")
        self.assertRegex(out.stdout, r"^ (free|a[a-z ]{1,20})\.\n$")

    def test_the_server_holds_response_formats_and_tools(self):
        server = subprocess.Popen([TRIAX, "serve", "-m", MODEL, "--port", "0", "--log", "off"],
                                  stderr=subprocess.PIPE, text=True)
        try:
            base = re.search(r"http://[^ ,]+", server.stderr.readline()).group()

            def ask(**fields):
                body = {"model": "boot-k3", "max_tokens": 400, "temperature": 1, "thinking": False,
                        "messages": [{"role": "user", "content": "What is Debian?"}], **fields}
                request = urllib.request.Request(base + "/chat/completions", json.dumps(body).encode(),
                                                 {"content-type": "application/json"})
                with urllib.request.urlopen(request, timeout=120) as reply:
                    return json.load(reply)["choices"][0]
            schema = {"type": "object", "properties": {
                "name": {"type": "string", "maxLength": 30}, "free": {"type": "boolean"}},
                "required": ["name", "free"], "additionalProperties": False}
            named = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
            for seed in range(3):
                choice = ask(response_format=named, seed=seed)
                self.assertEqual(choice["finish_reason"], "stop")
                jsonschema.validate(json.loads(choice["message"]["content"]), schema)
            tool = {"type": "function", "function": {"name": "look", "strict": True,
                                                     "parameters": schema}}
            for seed in range(3):
                choice = ask(tools=[tool], seed=seed,
                             tool_choice={"type": "function", "function": {"name": "look"}})
                self.assertEqual(choice["finish_reason"], "tool_calls")
                call = choice["message"]["tool_calls"][0]["function"]
                self.assertEqual(call["name"], "look")
                jsonschema.validate(json.loads(call["arguments"]), schema)
            named["json_schema"]["schema"] = {"type": "array", "uniqueItems": True}
            with self.assertRaises(urllib.error.HTTPError) as refused:
                ask(response_format=named)
            self.assertEqual(refused.exception.code, 400)
            self.assertIn("uniqueItems", refused.exception.read().decode())
        finally:
            server.terminate()
            server.communicate(timeout=60)


if __name__ == "__main__":
    unittest.main()
