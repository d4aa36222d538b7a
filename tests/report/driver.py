"""Chromium under the tests' control, over the WebDriver protocol: it opens pages, runs scripts in them and prints."""

import json
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tests.report.test_browser import BROWSER, FLAGS

CHROMEDRIVER = shutil.which("chromedriver")


class Driver:
    """A window of Chromium, 1440 × 900 until it is resized."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.process = subprocess.Popen([str(CHROMEDRIVER), f"--port={port}", "--silent"], stdout=subprocess.DEVNULL)
        self.base = f"http://127.0.0.1:{port}"
        flags = [flag for flag in FLAGS if not flag.startswith("--virtual")] + [
            "--hide-scrollbars",
            "--window-size=1440,900",
        ]
        options = {"binary": BROWSER, "args": flags}
        wanted = {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}
        self._wait_until_ready()
        self.base += f"/session/{self._post('/session', {'capabilities': wanted})['sessionId']}"

    def open(self, page: Path) -> None:
        """Open a page and wait until its charts, if it has any, are drawn."""
        self._post("/url", {"url": page.as_uri()})
        while self.script("return document.getElementById('charts') && !document.documentElement.dataset.drawn"):
            time.sleep(0.05)

    def script(self, source: str, *arguments: Any) -> Any:
        """Run the body of a function in the page and return its result, once it is there if it is a promise."""
        return self._post("/execute/sync", {"script": source, "args": arguments})

    def devtools(self, command: str, **parameters: Any) -> Any:
        """Run a command of the DevTools protocol."""
        return self._post("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def resize(self, width: int) -> None:
        """Give the page so many CSS pixels of width."""
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)

    def prefer(self, scheme: str) -> None:
        """Prefer a light or a dark color scheme."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.devtools("Emulation.setEmulatedMedia", features=features)

    def console(self) -> list[Any]:
        """Return what the page wrote on its console since the last call."""
        result: list[Any] = self._post("/se/log", {"type": "browser"})
        return result

    def close(self) -> None:
        """End the browser and its driver."""
        with suppress(OSError):
            urlopen(Request(self.base, method="DELETE"), timeout=30).close()
        self.process.terminate()
        self.process.wait(30)

    def _wait_until_ready(self) -> None:
        for _ in range(200):
            with suppress(OSError):
                urlopen(f"{self.base}/status", timeout=5).close()
                return
            time.sleep(0.05)

    def _post(self, path: str, body: Any) -> Any:
        request = Request(self.base + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urlopen(request, timeout=120) as reply:
            return json.load(reply)["value"]
