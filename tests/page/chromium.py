"""Headless Chromium over its debugging pipe: no package beside Python's own library."""
import base64
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
import queue

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def find():
    return next((path for path in map(shutil.which, PROGRAMS) if path), None)


class Failure(Exception):
    pass


class Chromium:
    """One browser with one page. `problems` gathers what the console and the policy complain of."""

    def __init__(self, program):
        self.folder = tempfile.mkdtemp(prefix="triax-page-")
        to_read, self.to = os.pipe()
        self.source, from_write = os.pipe()

        def pipes():
            # To 3 and 4, by way of numbers that neither can have.
            a, b = os.dup2(to_read, 63), os.dup2(from_write, 62)
            os.dup2(a, 3)
            os.dup2(b, 4)

        self.process = subprocess.Popen(
            [program, "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
             "--no-first-run", "--disable-dev-shm-usage", "--disable-background-networking",
             "--disable-component-update", "--disable-default-apps", "--hide-scrollbars",
             f"--user-data-dir={self.folder}", "about:blank"],
            preexec_fn=pipes, close_fds=False, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(from_write)
        self.answers = {}
        self.arrived = threading.Condition()
        self.number = 0
        self.session = None
        self.problems = []
        self.requests = []
        self.downloads = queue.Queue()
        self.ended = False
        threading.Thread(target=self._read, daemon=True).start()
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(t for t in targets if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
            self.call(f"{domain}.enable")

    def _read(self):
        rest = b""
        while True:
            data = os.read(self.source, 1 << 16)
            if not data:
                break
            *messages, rest = (rest + data).split(b"\0")
            for message in messages:
                self._take(json.loads(message))
        with self.arrived:
            self.ended = True
            self.arrived.notify_all()

    def _take(self, message):
        if "id" in message:
            with self.arrived:
                self.answers[message["id"]] = message
                self.arrived.notify_all()
            return
        method, params = message["method"], message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append("exception: " + details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append("console: " + " ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append("log: " + params["entry"]["text"] + " " + params["entry"].get("url", ""))
        elif method == "Audits.issueAdded" and params["issue"]["code"] == "ContentSecurityPolicyIssue":
            self.problems.append("policy: " + json.dumps(params["issue"]["details"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.problems.append("dialog: " + params["message"])
            threading.Thread(target=lambda: self.call("Page.handleJavaScriptDialog", accept=True), daemon=True).start()

    def call(self, method, _timeout=30, **params):
        with self.arrived:
            self.number += 1
            number = self.number
        message = {"id": number, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        with self.arrived:
            if not self.arrived.wait_for(lambda: number in self.answers or self.ended, _timeout):
                raise Failure(f"{method}: no answer in {_timeout} s")
            if self.ended:
                raise Failure(f"{method}: the browser ended")
            answer = self.answers.pop(number)
        if "error" in answer:
            raise Failure(f"{method}: {answer['error']['message']}")
        return answer["result"]

    # What a test does.

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.until("document.body?.dataset.ready === 'true'", "the page is ready")

    def run(self, script):
        """The value of an expression; promises are waited for."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, allowUnsafeEvalBlockedByCSP=False)
        if "exceptionDetails" in result:
            raise Failure(f"{script}: {result['exceptionDetails'].get('exception', {}).get('description')}")
        return result["result"].get("value")

    def until(self, script, what=None, timeout=20):
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            value = self.run(script)
            if value:
                return value
            time.sleep(0.04)
        raise Failure(f"not within {timeout} s: {what or script}; problems so far: {self.problems}")

    def type(self, text):
        self.call("Input.insertText", text=text)

    def key(self, key, code=None, modifiers=0, text=None):
        """A key as a hand presses it. modifiers: 1 alt, 2 ctrl, 8 shift."""
        codes = {"Enter": 13, "Escape": 27, "ArrowUp": 38, "ArrowRight": 39, "Tab": 9}
        base = {"key": key, "code": code or key, "modifiers": modifiers, "windowsVirtualKeyCode": codes.get(key, ord(key[0].upper()))}
        down = dict(base, type="keyDown" if text or key == "Enter" else "rawKeyDown")
        if text or key == "Enter":
            down["text"] = text or "\r"
        self.call("Input.dispatchKeyEvent", **down)
        self.call("Input.dispatchKeyEvent", **dict(base, type="keyUp"))

    def click(self, selector):
        """The middle of the last such element, by the mouse."""
        box = self.run(f"""(() => {{ const e = [...document.querySelectorAll({json.dumps(selector)})].at(-1);
            if (!e) return null; e.scrollIntoView({{block: 'nearest'}}); const b = e.getBoundingClientRect();
            return [b.x + b.width / 2, b.y + b.height / 2]; }})()""")
        if box is None:
            raise Failure(f"nothing to click: {selector}")
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def size(self, width, height, scale=1, phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)

    def scheme(self, name):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def picture(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        try:
            self.session = None
            self.call("Browser.close", _timeout=5)
            self.process.wait(5)
        except (Failure, subprocess.TimeoutExpired, OSError):
            self.process.kill()
            self.process.wait()
        os.close(self.to)
        shutil.rmtree(self.folder, ignore_errors=True)
