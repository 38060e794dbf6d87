"""Opens pages in a real browser, without a window: Chromium, driven through a pipe by its own protocol.

    page = browser.open(path, width=400, dark=True)
    page.evaluate("document.title"), page.picture(path), page.paper(path)
    page.complaints       what the console, the network and the policy of the page had to say
"""

import base64
import fcntl
import importlib.util
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 90  # for one answer; the machine may be slow

# The pages are made as tests/cli makes them: its folder, and its conftest by its path, as both files are called conftest.
sys.path.insert(0, str(ROOT / "tests/cli"))
_spec = importlib.util.spec_from_file_location("cli_conftest", ROOT / "tests/cli/conftest.py")
cli_conftest = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(cli_conftest)
tools, layout, make, report = (getattr(cli_conftest, name) for name in ("tools", "layout", "make", "report"))


class Page:
    def __init__(self, browser, session):
        self.browser, self.session, self.complaints = browser, session, []

    def ask(self, method, **parameters):
        return self.browser.ask(method, parameters, self)

    def heard(self, event):
        method, parameters = event["method"], event["params"]
        if method in ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Audits.issueAdded"):
            self.complaints.append(parameters)
        elif method == "Network.requestWillBeSent" and not parameters["request"]["url"].startswith(("file:///", "data:")):
            self.complaints.append(parameters["request"]["url"])

    def evaluate(self, expression):
        return self.ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"]["value"]

    def picture(self, path):
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        Path(path).write_bytes(base64.b64decode(shot["data"]))

    def paper(self, path):
        Path(path).write_bytes(base64.b64decode(self.ask("Page.printToPDF")["data"]))


class Browser:
    def __init__(self, program, scratch):
        ours, its = [self.pipe() for _ in range(2)], []
        (its_in, self.out), (self.into, its_out) = ours
        its += [its_in, its_out]
        flags = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe"]
        flags += ["--no-sandbox"] * (os.geteuid() == 0) + [f"--user-data-dir={scratch}"]
        # It reads from descriptor 3 and writes to 4.
        command = ["bash", "-c", f'exec "$@" 3<&{its_in} 4>&{its_out} {its_in}<&- {its_out}>&-', "-", "nice", "-n", "19", program, *flags]
        self.log = open(scratch / "log", "wb")
        self.process = subprocess.Popen(command, pass_fds=its, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        for fd in its:
            os.close(fd)
        self.number, self.rest, self.pages = 0, b"", {}

    @staticmethod
    def pipe():
        """Both ends above what the browser calls 3 and 4."""
        ends = os.pipe()
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 50) for fd in ends]
        for fd in ends:
            os.close(fd)
        return high

    def hear(self, deadline):
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.into], [], [], max(0, deadline - time.monotonic()))
            more = os.read(self.into, 1 << 20) if ready else b""
            assert more, f"the browser says nothing: {Path(self.log.name).read_text(errors='replace')[-2000:]}"
            self.rest += more
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def ask(self, method, parameters, page=None, until=None):
        """Its answer, or, where `until` is an event, what it says with that."""
        self.number += 1
        request = {"id": self.number, "method": method, "params": parameters, **({"sessionId": page.session} if page else {})}
        os.write(self.out, json.dumps(request).encode() + b"\0")
        deadline = time.monotonic() + SECONDS
        while True:
            message = self.hear(deadline)
            assert "error" not in message, message
            if "method" in message and message.get("sessionId") in self.pages:
                self.pages[message["sessionId"]].heard(message)
            if message.get("method" if until else "id") == (until or self.number):
                return message.get("result", message.get("params"))

    def open(self, path, width=1280, dark=False, media=""):
        target = self.ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        page = Page(self, self.ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"])
        self.pages[page.session] = page
        for domain in ("Page", "Log", "Runtime", "Network", "Audits"):
            page.ask(f"{domain}.enable")
        page.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.ask("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.ask("Page.navigate", {"url": Path(path).as_uri()}, page, until="Page.loadEventFired")
        return page

    def close(self):
        try:
            self.ask("Browser.close", {})
            self.process.wait(SECONDS)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        self.log.close()


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    program = next(filter(None, map(shutil.which, NAMES)), None)
    assert program, "no Chromium here; run scripts/install-deps browser"
    browser = Browser(program, tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def pictures(tools):
    """Where the pictures are left, to be looked at."""
    folder = tools / "browser"
    folder.mkdir(exist_ok=True)
    return folder
