"""A real Chromium without a window, driven by the DevTools protocol over a pipe: no driver, no port, no package."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LIMIT_S = 300

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One page of a Chromium, with all that it logged and asked for."""

    def __init__(self, to_browser: int, from_browser: int):
        self._out, self._in, self._buffer, self._count = to_browser, from_browser, b"", 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, and give its result."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + LIMIT_S
        while True:
            answer = self._receive(until)
            if answer.get("id") == self._count:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self.events.append(answer)

    def _receive(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            assert ready, "Chromium does not answer"
            part = os.read(self._in, 1 << 20)
            assert part, "Chromium ended"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, page: Path) -> None:
        """Open a file, and wait until it is there."""
        self.run("window.before = true")
        self.events.clear()
        self.call("Page.navigate", url=page.absolute().as_uri())
        self.wait("!window.before && document.readyState === 'complete' && location.protocol === 'file:'")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true."""
        until = time.monotonic() + LIMIT_S
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < until, f"never true: {condition}"
            time.sleep(0.05)

    def run(self, expression: str) -> Any:
        """Give the value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def key(self, name: str, code: int, text: str = "") -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            shown = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code, **shown)

    def width(self, pixels: int, height: int = 900) -> None:
        """Give the page the width of a screen."""
        phone = pixels < 600
        self.call("Emulation.setDeviceMetricsOverride", width=pixels, height=height, deviceScaleFactor=1, mobile=phone)

    def scheme(self, name: str) -> None:
        """Ask for light or dark."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def scripts(self, allowed: bool) -> None:
        """Allow or forbid the page's JavaScript, from the next page on."""
        self.call("Emulation.setScriptExecutionDisabled", value=not allowed)

    def picture(self, path: Path) -> None:
        """Take a picture of the whole page."""
        content = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(content["data"]))

    @property
    def complaints(self) -> list[str]:
        """What the page wrote to the console, threw, or was refused."""
        found = []
        for event in self.events:
            parameters = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(json.dumps(parameters["exceptionDetails"]))
            elif event.get("method") == "Runtime.consoleAPICalled":
                found.append(json.dumps(parameters["args"]))
            elif event.get("method") == "Log.entryAdded":
                found.append(parameters["entry"]["text"])
        return found

    @property
    def requests(self) -> list[str]:
        """Addresses that the page asked for, those within itself left out."""
        sent = [event["params"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        addresses = [each["request"]["url"] for each in sent]
        return [address for address in addresses if not address.startswith(("data:", "blob:"))]


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a Chromium, and end it."""
    assert CHROMIUM
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = [
            "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={profile}", "--disable-gpu",
            "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--disable-extensions", "--disable-dev-shm-usage", "--hide-scrollbars",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
        ]  # fmt: skip
        # Chromium reads from its file 3 and writes to its file 4.
        shell = f'exec "$@" 3<&{to_read} 4>&{from_write}'
        process = subprocess.Popen(
            ["bash", "-c", shell, "bash", CHROMIUM, *options, "about:blank"],
            pass_fds=(to_read, from_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(from_write)
        try:
            yield Browser(to_write, from_read)
        finally:
            os.close(to_write)
            os.close(from_read)
            try:
                process.wait(timeout=10)  # it ends with its pipe
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
