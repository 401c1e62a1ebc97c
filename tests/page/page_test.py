#!/usr/bin/env python3
"""The page in a headless Chromium: against answers as hostile as a model could write them, and against
`triax serve`.

  page_test.py [TRIAX MODEL]    with the program and a model also against the real server
Needs a Chromium (Debian: chromium-headless-shell); exit code 77 without one.
"""
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import chromium  # noqa: E402
from mock_server import MockServer, Script, page_files, text  # noqa: E402

WEB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "web")
EVIL = "window.pwned=(window.pwned??0)+1"

HOSTILE = {
    "script": f"<script>{EVIL}</script>\n\nHello <script>{EVIL}</script> there",
    "handler": f'<img src="/leak" onerror="{EVIL}"> <div onmouseover="{EVIL}">hover</div> <details open ontoggle="{EVIL}">x</details>',
    "svg": f'<svg onload="{EVIL}"><script>{EVIL}</script><animate onbegin="{EVIL}" attributeName=x dur=1s /></svg>',
    "frame": f'<iframe srcdoc="<script>parent.{EVIL}</script>"></iframe><object data="/leak"></object><embed src="/leak">',
    "markup": '<style>body{display:none}</style><link rel=stylesheet href="/leak"><meta http-equiv=refresh content="0;url=/leak"><base href="/leak/">',
    "form": f'<form action="/leak"><input autofocus onfocus="{EVIL}"><button formaction="javascript:{EVIL}">x</button></form>',
    "links": f"[a](javascript:{EVIL}) [b](JaVaScRiPt:{EVIL}) [c](&#106;avascript:{EVIL}) [d](data:text/html,<script>{EVIL}</script>) "
             f"[e](vbscript:x) [f](//evil.example/x) [g](/v1/models) [h](<javascript:{EVIL}>) [i]\n\n[i]: javascript:{EVIL}",
    "good link": "[site](https://example.com/a?b=c) and <https://example.org> and https://example.net",
    "image": "![pixel](/leak) ![x](https://evil.example/leak?cookie \"t\") ![y](data:image/svg+xml,<svg/onload=alert(1)>)",
    "fence": f'```"><img src=/leak onerror={EVIL}>\n</code></pre><script>{EVIL}</script>\n```\n\n```html\n<script>{EVIL}</script>\n```',
    "maths": f"$\\href{{javascript:{EVIL}}}{{x}}$ $\\includegraphics{{/leak}}$ $\\htmlData{{x=1}}{{y}}$ $\\url{{javascript:{EVIL}}}$ "
             f"$\\htmlStyle{{background:url(/leak)}}{{z}}$ $<img src=/leak onerror={EVIL}>$",
    "clobber": '<a id="scroller" name="settings">x</a> <a id=draft></a>\n\n# triax\n\n<input name=chat>',
    "broken": "<div><div><p <<b>> <!-- <script> --> <![CDATA[ x ]]> <?php ?> </html></body>\n\nstill here",
}

BOMBS = {
    "brackets": "[" * 30000,
    "quotes": ">" * 20000 + " deep",
    "quotes by line": "\n".join(">" * i + " x" for i in range(1, 300)),
    "stars": "*a **b " * 8000,
    "underscores": "_" * 30000,
    "ticks": "`" * 30001,
    "lists": "".join("  " * i + "- x\n" for i in range(500)),
    "dollars": "$a " * 15000,
    "table": "|a" * 5000 + "\n" + "|-" * 5000 + "\n" + "|b" * 5000,
    "links": "[a](b " * 8000,
    "maths": "$$" + "\\frac{1}{" * 900 + "x" + "}" * 900 + "$$",
    "macro": "$$\\def\\a{\\b\\b}\\def\\b{\\c\\c}\\def\\c{\\d\\d}\\def\\d{\\a\\a}\\a$$",
    "one line": "x" * 400000,
    "entities": "&lt;" * 20000,
    "combining": "Z" + "\u0301" * 20000,
    "direction": "\u202e" * 50 + "desrever",
}


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = MockServer({})
        cls.browser = chromium.Chromium(PROGRAM)

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.server.close()

    def setUp(self):
        self.server.scripts.clear()
        self.server.bodies.clear()
        self.server.hits.clear()
        self.server.cut.clear()
        self.browser.size(1200, 800)
        self.browser.open(self.server.url)
        self.browser.run("document.getElementById('new-chat').click()")
        self.browser.problems.clear()

    def tearDown(self):
        self.assertEqual(self.browser.problems, [])
        self.assertFalse(self.browser.run("'pwned' in window"))
        self.assertEqual([hit for hit in self.server.hits if "leak" in hit], [])
        outside = [url for url in self.browser.requests if not url.startswith((self.server.url, "blob:", "about:"))]
        self.assertEqual(outside, [])

    def ask(self, question, wait=True, timeout=20):
        self.browser.run("document.getElementById('draft').focus()")
        self.browser.type(question)
        self.browser.key("Enter")
        if wait:
            self.done(timeout)

    def done(self, timeout=20):
        self.browser.until("!document.body.classList.contains('busy') && document.querySelector('.message.assistant:not(.busy)') !== null", "the answer is complete", timeout)

    def last(self, what="textContent", of=".assistant .prose"):
        return self.browser.run(f"[...document.querySelectorAll({json.dumps(of)})].at(-1)?.{what}")

    # A chat.

    def test_text_shows_while_it_comes(self):
        self.server.scripts["go"] = text("One two three four five six seven eight nine ten", 4, pause=0.15)
        self.ask("go", wait=False)
        self.browser.until("document.querySelector('.prose')?.textContent.includes('One two')")
        self.assertNotIn("ten", self.last())
        self.assertEqual(self.browser.run("document.getElementById('send').getAttribute('aria-label')"), "Stop")
        self.done()
        self.assertEqual(self.last().strip(), "One two three four five six seven eight nine ten")
        self.assertRegex(self.last(of=".usage"), r"412 tokens in · 384 cached \(93%\) · 96 out · .*/s · first after")
        body = self.server.bodies[-1]
        self.assertEqual(body["messages"], [{"role": "user", "content": "go"}])
        self.assertEqual(body["stream_options"], {"include_usage": True})

    def test_nothing_jumps_while_it_comes(self):
        paragraphs = "\n\n".join(f"Paragraph {i} of **some** length with `code` and a list:\n\n- one\n- two\n" for i in range(12))
        self.server.scripts["grow"] = Script({"reasoning_content": "Let me see."}, *text(paragraphs, 40).deltas, pause=0.01)
        self.browser.run("""window.shifts = 0; window.watcher = new PerformanceObserver((list) => {
            for (const e of list.getEntries()) if (!e.hadRecentInput) window.shifts += e.value; });
            watcher.observe({type: 'layout-shift', buffered: false})""")
        self.ask("grow")
        time.sleep(0.2)
        self.browser.run("watcher.disconnect()")
        # Following the end moves everything up, which is no shift; the rest must stay where it is.
        self.assertLess(self.browser.run("window.shifts"), 0.1)

    def test_stop_by_button_and_key(self):
        self.server.scripts["long"] = text("word " * 400, 5, pause=0.05)
        for stop in (lambda: self.browser.click("#send"), lambda: self.browser.key("Escape")):
            self.server.cut.clear()
            self.ask("long", wait=False)
            self.browser.until("document.querySelectorAll('.message.busy .prose').length && [...document.querySelectorAll('.prose')].at(-1).textContent.includes('word word')")
            stop()
            self.done()
            self.assertTrue(self.server.cut.wait(5), "the server hears of it")
            self.assertEqual(self.last(of=".usage"), "stopped")
            self.assertIn("word", self.last())

    def test_edit_makes_a_branch_and_both_stay(self):
        self.server.scripts.update({"first": text("answer one"), "second": text("answer two"), "then": text("follows")})
        self.ask("first")
        self.ask("then")
        self.assertEqual(len(self.server.bodies[-1]["messages"]), 3)
        self.browser.run("document.querySelector('.user [aria-label=Edit]').click()")
        self.browser.run("document.querySelector('textarea.edit').select()")
        self.browser.type("second")
        self.browser.key("Enter")
        self.browser.until("document.querySelector('.prose')?.textContent.trim() === 'answer two'")
        self.done()
        self.assertEqual(self.server.bodies[-1]["messages"], [{"role": "user", "content": "second"}])
        self.assertEqual(self.last(of=".user .count"), "2/2")
        self.assertEqual(self.browser.run("document.querySelectorAll('.message').length"), 2)
        self.browser.click(".user [aria-label='Version before']")
        self.browser.until("document.querySelectorAll('.message').length === 4")
        self.assertEqual(self.last().strip(), "follows")
        # Also after the page is opened anew.
        self.browser.until("Promise.all([import('/page/store.js'), import('/page/tree.js')]).then(async ([store, tree]) => tree.path((await store.all())[0]).length === 4)")
        self.browser.open(self.server.url)
        self.assertEqual(self.browser.run("document.querySelectorAll('.message').length"), 4)
        self.browser.click(".user [aria-label='Next version']")
        self.browser.until("document.querySelectorAll('.message').length === 2")

    def test_another_answer(self):
        self.server.scripts["again"] = text("once")
        self.ask("again")
        self.server.scripts["again"] = text("twice")
        self.browser.key("r", "KeyR", modifiers=1)
        self.browser.until("[...document.querySelectorAll('.prose')].at(-1)?.textContent.trim() === 'twice'")
        self.done()
        self.assertEqual(self.last(of=".assistant .count"), "2/2")

    def test_reasoning_is_folded(self):
        self.server.scripts["think"] = Script({"reasoning_content": "<b>hm</b> "}, {"reasoning_content": "so"}, {"content": "Yes."})
        self.ask("think")
        self.assertFalse(self.last("open", ".reasoning"))
        self.assertEqual(self.last(of=".reasoning-text"), "<b>hm</b> so")
        self.assertEqual(self.last().strip(), "Yes.")

    def test_tools_are_shown_and_answered(self):
        call = {"index": 0, "id": "call_7", "type": "function", "function": {"name": "<i>weather</i>", "arguments": ""}}
        self.server.scripts["weather?"] = Script({"tool_calls": [call]}, {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": "<b>Rome'}}]},
                                                 {"tool_calls": [{"index": 0, "function": {"arguments": '</b>"}'}}]}, finish="tool_calls")
        self.server.scripts["24 degrees"] = text("Warm.")
        self.ask("weather?")
        self.assertEqual(self.last(of=".call-head code"), "<i>weather</i>")
        self.assertIn("<b>Rome</b>", self.last(of=".call pre"))
        self.browser.run("document.querySelector('.call-result textarea').focus()")
        self.browser.type("24 degrees")
        self.browser.click(".call-result button")
        self.browser.until("[...document.querySelectorAll('.prose')].at(-1)?.textContent.trim() === 'Warm.'")
        sent = self.server.bodies[-1]["messages"]
        self.assertEqual(sent[1]["tool_calls"][0]["function"], {"name": "<i>weather</i>", "arguments": '{"city": "<b>Rome</b>"}'})
        self.assertEqual(sent[2], {"role": "tool", "tool_call_id": "call_7", "content": "24 degrees"})

    def test_an_error_is_said(self):
        self.ask("unknown", wait=False)
        self.browser.until("document.querySelector('.message .problem')?.textContent === 'messages: no script for this'")
        self.done()
        self.browser.problems[:] = [p for p in self.browser.problems if "400" not in p]  # the browser's own line

    def test_settings_go_along(self):
        self.server.scripts["set"] = text("ok")
        self.browser.click("#open-settings")
        for field, value in (("set-system", "Be brief."), ("set-temperature", "0.3"), ("set-max_tokens", "50"), ("set-top_p", "7")):
            self.browser.run(f"(() => {{ const e = document.getElementById('{field}'); e.value = '{value}'; e.dispatchEvent(new Event('change')); }})()")
        self.browser.run("(() => { const e = document.getElementById('set-thinking'); e.value = 'off'; e.dispatchEvent(new Event('change')); })()")
        self.browser.key("Escape")
        try:
            self.ask("set")
            body = self.server.bodies[-1]
            self.assertEqual(body["messages"][0], {"role": "system", "content": "Be brief."})
            self.assertEqual((body["temperature"], body["max_tokens"], body["thinking"]), (0.3, 50, {"type": "disabled"}))
            self.assertNotIn("top_p", body)  # 7 is none
        finally:
            self.browser.run("localStorage.removeItem('triax.settings')")

    def test_export_and_import(self):
        self.server.scripts["keep me"] = text("kept")
        self.ask("keep me")
        with tempfile.TemporaryDirectory() as folder:
            self.browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=folder)
            self.browser.click("#open-settings")
            self.browser.run("[...document.querySelectorAll('#settings button')].find((b) => b.textContent === 'Export all').click()")
            path = os.path.join(folder, "triax-conversations.json")
            deadline = time.monotonic() + 10
            while not os.path.exists(path) and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(0.1)
            with open(path, encoding="utf-8") as file:
                exported = json.load(file)
        self.assertEqual(exported["conversations"][0]["title"], "keep me")
        contents = {node["content"] for node in exported["conversations"][0]["nodes"].values()}
        self.assertEqual(contents, {"keep me", "kept"})
        exported["conversations"] = [dict(exported["conversations"][0], id="imported", title="<b>brought</b>")]
        self.browser.run(f"""(() => {{ const input = document.getElementById('import'); const files = new DataTransfer();
            files.items.add(new File([{json.dumps(json.dumps(exported))}], 'x.json')); input.files = files.files; input.dispatchEvent(new Event('change')); }})()""")
        self.browser.until("[...document.querySelectorAll('.conversation .title')].some((t) => t.textContent === '<b>brought</b>')")
        self.browser.key("Escape")

    def test_markdown_code_and_maths(self):
        self.server.scripts["md"] = text("# Title\n\nSome **bold** and $x^2$ for $5 and $6.\n\n$$\\sum_i p_i = 1$$\n\n```python\ndef f():\n    return 1\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n", 3)
        self.ask("md")
        self.browser.until("document.querySelectorAll('.prose .katex').length === 2", "two formulas")
        self.browser.until("document.querySelector('.prose .hljs-keyword')?.textContent === 'def'")
        self.assertEqual(self.browser.run("document.querySelector('.prose h1').textContent"), "Title")
        self.assertIn("for $5 and $6", self.last())
        self.assertEqual(self.browser.run("document.querySelectorAll('.prose td').length"), 2)
        self.assertEqual(self.browser.run("document.querySelector('.prose pre code').textContent"), "def f():\n    return 1")
        self.assertEqual(self.browser.run("document.querySelector('[role=math]').getAttribute('aria-label')"), "x^2")

    # What a model must not be able to do.

    def test_hostile_output_does_nothing(self):
        for name, content in HOSTILE.items():
            with self.subTest(name):
                self.server.scripts[name] = Script({"reasoning_content": content}, *text(content, 11).deltas)
                self.ask(name)
                time.sleep(0.1)
                self.browser.run("document.querySelectorAll('.prose *').forEach((e) => e.dispatchEvent(new Event('mouseover', {bubbles: true})))")
                bad = self.browser.run("""[...document.querySelectorAll('.prose, .reasoning-text')].flatMap((p) => [...p.querySelectorAll('*')])
                    .filter((e) => /^(SCRIPT|IFRAME|IMG|OBJECT|EMBED|STYLE|LINK|META|BASE|FORM|INPUT|SVG|DETAILS|VIDEO|AUDIO)$/i.test(e.tagName)
                        || [...e.attributes].some((a) => /^on/i.test(a.name) || (e.id !== '')))
                    .map((e) => e.outerHTML)""")
                self.assertEqual(bad, [])
                links = self.browser.run("[...document.querySelectorAll('.prose a[href]')].map((a) => [a.href, a.rel, a.target])")
                for href, rel, target in links:
                    self.assertRegex(href, r"^(https?://|mailto:)")
                    self.assertFalse(href.startswith(self.server.url), href)
                    self.assertEqual((rel, target), ("noopener noreferrer nofollow", "_blank"))
                self.assertEqual(self.browser.run("getComputedStyle(document.body).display"), "block")
        self.assertEqual(self.browser.run("[...document.querySelectorAll('.prose a[href^=\"https://example\"]')].length"), 3)

    def test_markdown_bombs_do_not_hold_the_page(self):
        for name, content in BOMBS.items():
            with self.subTest(name):
                self.browser.run("document.getElementById('new-chat').click()")
                self.server.scripts[name] = text(content, 2000)
                began = time.monotonic()
                self.ask(name, timeout=30)
                took = time.monotonic() - began
                self.assertLess(took, 10, f"{name} took {took:.1f} s")
                self.assertGreater(len(self.last()), 0)

    def test_a_huge_answer_stays_usable(self):
        self.server.scripts["huge"] = text("A sentence of this answer, with *some* markdown in it.\n\n" * 9000, 4000)
        self.ask("huge", timeout=60)
        self.assertEqual(self.last("querySelectorAll('em').length"), 9000)
        began = time.monotonic()
        self.browser.click("#tab-live")
        self.browser.click("#tab-chat")
        self.browser.run("new Promise(requestAnimationFrame).then(() => 1)")
        self.assertLess(time.monotonic() - began, 5)
        self.browser.problems[:] = [p for p in self.browser.problems if "404" not in p]  # the mock has no metrics

    def test_the_policy_holds_when_a_wall_falls(self):
        """As if the sanitiser had let something through: the browser itself refuses, and tells."""
        refused = self.browser.run(f"""(() => {{
            const tries = [() => document.body.insertAdjacentHTML('beforeend', '<b>x</b>'),
                () => document.createElement('div').setAttribute('onclick', {json.dumps(EVIL)}),
                () => eval({json.dumps(EVIL)}), () => new Function({json.dumps(EVIL)})(),
                () => (document.createElement('script').src = '/leak')];
            return tries.map((f) => {{ try {{ f(); return 'taken'; }} catch (error) {{ return error.name; }} }}); }})()""")
        self.assertTrue(all(name in ("TypeError", "EvalError") for name in refused), refused)
        self.browser.run("""(() => { const b = document.createElement('b'); b.style.color = 'red'; const i = document.createElement('img');
            i.src = 'https://evil.example/leak'; document.body.append(i); i.remove(); })()""")
        self.browser.until("true")
        self.assertTrue(any("policy" in p.lower() for p in self.browser.problems), self.browser.problems)
        time.sleep(0.1)
        self.browser.problems.clear()
        self.browser.requests[:] = [url for url in self.browser.requests if "evil.example" not in url]  # asked, refused

    # Views, keys, sizes.

    def live_metrics(self):
        self.readings += 1
        n = self.readings
        return "text/plain", (f'triax_prompt_tokens_total{{source="computed"}} {25 * n}\ntriax_prompt_tokens_total{{source="device"}} {75 * n}\n'
                              f"triax_generated_tokens_total {40 * n}\ntriax_requests_running 3\ntriax_requests_waiting 2\n"
                              f'triax_cache_bytes{{tier="device",class="kv"}} {n << 20}\ntriax_cache_bytes{{tier="device",class="running"}} {9 << 30}\n'
                              f'triax_cache_bytes{{tier="ram",class="kv"}} {1 << 20}\ntriax_cache_bytes{{tier="ram",class="state"}} {1 << 20}\n').encode()

    def test_live_draws_what_the_server_tells(self):
        self.readings = 0
        evil = f'"><img src=/leak onerror={EVIL}>'
        sessions = [{"id": evil, "state": evil, "tokens": 100, "resident_tokens": {"device": 50, "ram": 25}, "last_miss": evil, "last_used": time.time() - 5}]
        self.server.gets = {"/metrics": self.live_metrics, "/v1/triax/sessions": lambda: ("application/json", json.dumps({"data": sessions}).encode())}
        try:
            self.browser.click("#tab-live")
            self.browser.until("document.querySelectorAll('#view-live canvas').length === 4")
            chart = "globalThis.Chart?.getChart(document.querySelectorAll('#view-live canvas')[{}])"
            self.browser.until(f"{chart.format(0)}?.data.datasets[0].data.filter((p) => p.y > 0).length >= 2", "two rates")
            self.assertEqual(self.browser.run(f"{chart.format(1)}.data.datasets[0].data.at(-1).y"), 75)
            self.assertEqual(self.browser.run(f"{chart.format(2)}.data.datasets.map((d) => d.data.at(-1).y).slice(1)"), [2, 0, 0])
            self.assertLess(self.browser.run(f"{chart.format(2)}.data.datasets[0].data.at(-1).y"), 1000)
            self.assertEqual(self.browser.run(f"{chart.format(3)}.data.datasets.map((d) => d.data.at(-1).y)"), [3, 2])
            self.assertEqual(self.browser.run("[...document.querySelectorAll('.figure b')].map((b) => b.textContent)").pop(), "3 + 2")
            self.assertEqual(self.browser.run("document.querySelector('.sessions th[scope=row]').textContent"), evil)
            self.assertIn("device 50%, memory 25%", self.browser.run("document.querySelector('.sessions tbody').textContent"))
            self.browser.click(".sessions tbody button")
            self.browser.until("document.querySelector('.sessions tbody') !== null")
            time.sleep(0.2)
            self.assertEqual([urllib.parse.unquote(path) for path in self.server.deleted], [f"/v1/triax/sessions/{evil}"])
            self.browser.click("#tab-chat")
            time.sleep(0.3)
            before = self.readings
            time.sleep(1.5)
            self.assertEqual(self.readings, before, "nothing is read while nobody looks")
        finally:
            self.server.gets = {}

    def test_keys_lead_to_the_views(self):
        for digit, view in (("2", "live"), ("3", "axes"), ("1", "chat")):
            self.browser.key(digit, f"Digit{digit}", modifiers=1)
            self.assertEqual(self.browser.run("document.body.dataset.view"), view)
            self.assertEqual(self.browser.run(f"document.getElementById('tab-{view}').getAttribute('aria-selected')"), "true")
        self.browser.run("document.getElementById('tab-chat').focus()")
        self.browser.key("ArrowRight")
        self.assertEqual(self.browser.run("document.activeElement.id"), "tab-live")
        self.browser.run("document.activeElement.blur()")
        self.browser.key("?", "Slash", modifiers=8, text="?")
        self.browser.until("document.getElementById('help').open")
        self.browser.key("Escape")
        self.browser.problems[:] = [p for p in self.browser.problems if "404" not in p]

    def test_a_phone(self):
        self.browser.size(390, 844, 2, phone=True)
        self.server.scripts["small"] = text("```\n" + "x" * 300 + "\n```\n\n" + "|a" * 40 + "|\n" + "|-" * 40 + "|\n" + "|b" * 40 + "|\n\n" + "y" * 400)
        self.ask("small")
        self.assertLessEqual(self.browser.run("document.scrollingElement.scrollWidth"), 390)
        self.assertLessEqual(self.browser.run("document.getElementById('thread').scrollWidth"), 390)
        box = self.browser.run("(() => { const b = document.getElementById('composer').getBoundingClientRect(); return [b.top, b.bottom, b.left, b.right]; })()")
        self.assertTrue(0 < box[0] < box[1] <= 844 and 0 <= box[2] < box[3] <= 390, box)
        self.browser.until("getComputedStyle(document.getElementById('sidebar')).visibility === 'hidden'")
        self.browser.click("#menu")
        self.browser.until("document.getElementById('sidebar').getBoundingClientRect().left === 0")
        self.browser.click("#new-chat")
        self.browser.until("getComputedStyle(document.getElementById('sidebar')).visibility === 'hidden'")

    def test_everything_has_a_name(self):
        self.server.scripts["named"] = Script({"reasoning_content": "r"}, *text("```js\n1\n```\n\n$x$").deltas)
        self.ask("named")
        self.browser.click("#open-settings")
        for root in ("document.body", "document.getElementById('settings')"):
            del root
            nodes = self.browser.call("Accessibility.getFullAXTree")["nodes"]
            nameless = [n for n in nodes if not n.get("ignored") and n.get("role", {}).get("value") in
                        ("button", "textbox", "combobox", "tab", "link", "spinbutton", "dialog", "navigation", "image", "math")
                        and not n.get("name", {}).get("value", "").strip()]
            self.assertEqual([n["role"]["value"] for n in nameless], [])
            self.browser.key("Escape")

    def test_contrast(self):
        """Text on its grounds: at least 4.5 to 1 in both themes."""
        with open(os.path.join(WEB, "app.css"), encoding="utf-8") as file:
            css = file.read()
        light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block)) for block in re.findall(r":root(?:\[data-theme=\"dark\"\])? \{(.*?)\n\}", css, re.S)[:2])

        def luminance(color):
            parts = [int(color[i:i + 2], 16) / 255 for i in (1, 3, 5)]
            linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
            return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        for theme in (light, dark):
            for ink, grounds in {"ink": "ground side raised wash accent-wash code", "soft": "ground side raised wash", "faint": "ground side raised code wash",
                                 "accent": "ground raised", "accent-ink": "accent", "problem": "ground raised", "string": "code", "keyword": "code", "literal": "code"}.items():
                for ground in grounds.split():
                    a, b = sorted((luminance(theme[ink]), luminance(theme[ground])), reverse=True)
                    self.assertGreaterEqual((a + 0.05) / (b + 0.05), 4.5, f"{ink} {theme[ink]} on {ground} {theme[ground]}")

    def test_themes(self):
        ground = "getComputedStyle(document.body).backgroundColor"
        self.browser.scheme("dark")
        dark = self.browser.run(ground)
        self.browser.scheme("light")
        light = self.browser.run(ground)
        self.assertNotEqual(dark, light)
        self.browser.click("#theme")  # light
        self.browser.click("#theme")  # dark
        self.assertEqual(self.browser.run(ground), dark)
        self.browser.open(self.server.url)
        self.assertEqual(self.browser.run(ground), dark)
        self.browser.click("#theme")
        self.assertEqual(self.browser.run(ground), light)


class ServedTest(unittest.TestCase):
    """The real server with the model that ships."""

    @classmethod
    def setUpClass(cls):
        cls.process = subprocess.Popen(
            [*SERVED, "--port", "0", "--threads", "1", "--log", "off"], stderr=subprocess.PIPE, text=True)
        line = cls.process.stderr.readline()
        found = re.search(r"(http://[^/]+/)", line)
        if found is None:
            raise unittest.SkipTest(f"no server: {line}{cls.process.stderr.read()}")
        cls.url = found.group(1)
        cls.browser = chromium.Chromium(PROGRAM)

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.process.terminate()
        cls.process.wait(20)
        cls.process.stderr.close()

    def setUp(self):
        self.browser.size(1200, 800)
        self.browser.open(self.url)
        self.browser.run("document.getElementById('new-chat').click()")
        self.browser.run("localStorage.setItem('triax.settings', JSON.stringify({temperature: '0', max_tokens: '60'}))")
        self.browser.open(self.url)
        self.browser.problems.clear()

    def tearDown(self):
        self.assertEqual(self.browser.problems, [])
        self.assertEqual([u for u in self.browser.requests if not u.startswith((self.url, "about:"))], [])

    def ask(self, question):
        self.browser.run("document.getElementById('draft').focus()")
        self.browser.type(question)
        self.browser.key("Enter")
        self.browser.until("!document.body.classList.contains('busy') && document.querySelectorAll('.assistant .usage').length > 0", timeout=60)

    def test_files_come_with_their_headers(self):
        def get(path, **headers):
            try:
                return urllib.request.urlopen(urllib.request.Request(self.url + path, headers=headers), timeout=10)
            except urllib.error.HTTPError as error:
                return error
        policy, files = page_files.load()
        for path, (kind, source) in files.items():
            with get(path.lstrip("/")) as plain, open(source, "rb") as file:
                self.assertEqual(plain.read(), file.read(), path)
                self.assertEqual(plain.headers["content-type"], kind)
                self.assertEqual(plain.headers.get_all("content-security-policy"), [policy])
                self.assertEqual(plain.headers.get_all("x-content-type-options"), ["nosniff"])
        with get("", **{"accept-encoding": "gzip"}) as packed:
            self.assertEqual(packed.headers["content-encoding"], "gzip")
            self.assertIn(b"<title>Triax</title>", gzip.decompress(packed.read()))
            tag = packed.headers["etag"]
        with get("", **{"if-none-match": tag}) as same:
            self.assertEqual((same.status, same.read()), (304, b""))

    def test_a_chat_with_the_model(self):
        self.ask("What is Debian?")
        self.assertIn("free operating system", self.browser.run("document.querySelector('.prose').textContent"))
        self.assertRegex(self.browser.run("document.querySelector('.usage').textContent"), r"^\d+ tokens in · .*\d+ out")
        self.assertEqual(self.browser.run("document.getElementById('model').textContent"), "boot-k3")
        self.assertRegex(self.browser.run("document.getElementById('fine-print').textContent"), r"^\d+ of [\d,]+ tokens of context$")
        self.ask("Who are you?")
        self.assertEqual(self.browser.run("document.querySelectorAll('.message').length"), 4)

    def test_the_three_axes_of_an_answer(self):
        self.browser.run("window.seen = []; const ask = window.fetch; window.fetch = async (...a) => { const r = await ask(...a); if (String(a[0]).endsWith('/axes')) seen.push(await r.clone().json()); return r; }")
        self.ask("What is Debian?")
        answer = self.browser.run("document.querySelector('.prose').textContent").strip()
        self.browser.click(".assistant [aria-label='The three axes of this answer']")
        self.browser.until("document.querySelectorAll('#view-axes canvas').length === 3", timeout=60)
        axes = self.browser.run("seen[0]")
        self.assertIn(answer, "".join(token["text"] for token in axes["tokens"]))
        self.assertEqual(axes["depth"]["sources"], ["embedding", "layers 1–4", "layers 5–8", "layers 9–12"])
        self.assertEqual(len(axes["depth"]["mixes"]), 25)
        for mix in axes["depth"]["mixes"]:
            for row in mix["weights"]:
                self.assertAlmostEqual(sum(row), 1, delta=3e-4)
        self.assertEqual([layer["layer"] for layer in axes["width"]["layers"]], list(range(1, 12)))
        for layer in axes["width"]["layers"]:
            self.assertEqual(sum(layer["load"]), 4 * len(axes["tokens"]))
            for row in layer["weights"]:
                self.assertAlmostEqual(sum(row), 1, delta=3e-4)
        self.assertEqual([layer["layer"] for layer in axes["sequence"]["layers"] if layer["kind"] == "mla"], [3, 7, 11])
        for layer in axes["sequence"]["layers"]:
            if layer["kind"] == "kda":
                self.assertEqual(sum(layer["histogram"]), 256)
                self.assertLess(layer["p10"], layer["p90"])
                self.assertGreater(layer["p10"], 0.138)  # ln 2 / 5: the gate's bound
        # Pictures with something in them, and a token of its own.
        colors = """(() => [...document.querySelectorAll('#view-axes canvas')].map((c) => {
            const copy = new OffscreenCanvas(c.width, c.height).getContext('2d', {willReadFrequently: true});
            copy.drawImage(c, 0, 0);
            const all = copy.getImageData(0, 0, c.width, c.height).data;
            const seen = {};
            for (let i = 0; i < all.length; i += 4) { const key = all.slice(i, i + 4).join(); seen[key] = (seen[key] ?? 0) + 1; }
            return seen; }))()"""
        before = self.browser.run(colors)
        self.assertTrue(all(len(seen) > 8 for seen in before))
        self.browser.click(".token:nth-child(5)")
        self.assertEqual(self.browser.run("document.querySelector('.token:nth-child(5)').getAttribute('aria-pressed')"), "true")
        after = self.browser.run(colors)
        self.assertNotEqual(after[0], before[0])  # depth: of this token
        self.assertNotEqual(after[1], before[1])  # width: with its route
        self.assertEqual(after[2], before[2])     # sequence: of all tokens


if __name__ == "__main__":
    PROGRAM = chromium.find()
    if PROGRAM is None:
        print("skipped: there is no Chromium; apt-get install chromium-headless-shell")
        sys.exit(77)
    SERVED = None
    if len(sys.argv) > 2 and os.path.isfile(sys.argv[1]):
        SERVED = [sys.argv[1], "serve", "--model", sys.argv[2]]
        del sys.argv[1:3]
    else:
        ServedTest = None  # not found then
    unittest.main(verbosity=2)
