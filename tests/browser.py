"""Headless Chromium by its own protocol over a pipe: enough to load a page, look at it, and ask what went wrong.

No driver and no package: Chromium reads commands from file descriptor 3 and answers on 4, JSON between NULs.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

# Becomes the browser, with the two pipes as 3 and 4; those may be in use as the pipes' own numbers.
CONNECT = """
import fcntl, os, sys
reading, writing = (fcntl.fcntl(int(x), fcntl.F_DUPFD_CLOEXEC, 10) for x in sys.argv[1:3])
os.dup2(reading, 3)
os.dup2(writing, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_chromium() -> str | None:
    """The path of a Chromium: the variable CHROMIUM, else what is installed."""
    asked = os.environ.get("CHROMIUM")
    return asked or next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of a headless Chromium. `complaints` collects what the console, the network and scripts report."""

    def __init__(self, program: str, profile: Path) -> None:
        to_browser, self._commands = os.pipe()
        self._answers, from_browser = os.pipe()
        flags = [
            "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
            "--hide-scrollbars", "--no-first-run", "--disable-extensions", "--disable-sync",
            "--disable-background-networking", "--disable-component-update",
            "--disable-dev-shm-usage", f"--user-data-dir={profile}", "about:blank",
        ]  # fmt: skip

        # Not by preexec_fn, which forks this process and all its threads with it.
        command = [sys.executable, "-c", CONNECT, str(to_browser), str(from_browser), program]
        self._process = subprocess.Popen(
            [*command, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=(to_browser, from_browser), env={**os.environ, "HOME": str(profile)},
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._last = b"", 0
        self._loaded = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        attach = {"targetId": page["targetId"], "flatten": True}
        self._session = self.call("Target.attachToTarget", **attach)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait(30)
        os.close(self._commands)
        os.close(self._answers)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends a command and waits for its answer."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            heard = self._hear()
            if heard.get("id") == self._last:
                if "error" in heard:
                    raise RuntimeError(f"{method}: {heard['error']}")
                return heard["result"]

    def open(self, url: str, *, width: int, dark: bool = False, media: str = "screen") -> None:
        """Loads a page at a width in CSS pixels and a colour scheme, and waits until it is drawn."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=800, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        before = self._loaded
        self.call("Page.navigate", url=url)
        while self._loaded == before:
            self._hear()
        self.ask("Promise.all([...document.images].map(image => image.decode().catch(() => 0)))")

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression on the page."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """The whole page, or what is on the screen of it, as PNG."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self, path: Path) -> None:
        """The page as it would be printed."""
        printed = self.call("Page.printToPDF", printBackground=False, preferCSSPageSize=True)
        path.write_bytes(base64.b64decode(printed["data"]))

    def _hear(self, timeout: float = 120.0) -> dict[str, Any]:
        end = time.monotonic() + timeout
        while b"\0" not in self._buffer:
            part = os.read(self._answers, 1 << 20)
            if not part or time.monotonic() > end:
                raise RuntimeError("the browser stopped answering")
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        heard = json.loads(line)
        self._note(heard.get("method", ""), heard.get("params", {}))
        return heard

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded += 1
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"].get("text")))
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(f"console.{params['type']}: {params['args']}")
        elif method == "Log.entryAdded":
            self.complaints.append(f"{params['entry']['level']}: {params['entry']['text']}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
