"""A small client for a headless Chromium, over its own debugging pipe: no package and no port is
needed.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome")
PROGRAM = next((found for name in _NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page.

    Commands go to file descriptor 3 of the browser and answers come from 4, each ended by a zero
    byte.
    """

    def __init__(self) -> None:
        assert PROGRAM is not None
        self._home = tempfile.mkdtemp(prefix="recal-chromium-")
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()

        def to_three_and_four() -> None:
            # By way of high numbers, since one of the ends may itself be 3 or 4.
            ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 100) for end in (to_read, to_write)]
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--remote-debugging-pipe",
        ]
        self._process = subprocess.Popen(
            [PROGRAM, *options, f"--user-data-dir={self._home}", "about:blank"],
            close_fds=False,
            preexec_fn=to_three_and_four,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.errors: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; what happens meanwhile is noted."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._read, 1 << 16)
            assert part, "the browser has gone"
            self._buffer += part
        line, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(line)

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(event["params"]["request"]["url"])
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(event["params"]["exceptionDetails"]))
        if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.errors.append(event["params"]["entry"]["text"])

    def open(self, path: Path, width: int = 1280, height: int = 900) -> None:
        self.requests.clear()
        self.errors.clear()
        mobile = width < 600
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )
        self.send("Page.navigate", url=path.resolve().as_uri())
        for _ in range(200):
            if (
                self.ask("document.readyState") == "complete"
                and self.ask("location.protocol") == "file:"
            ):
                return
            time.sleep(0.05)
        raise AssertionError("the page did not load")

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def text(self, element: str) -> str:
        return str(self.ask(f"document.getElementById({json.dumps(element)}).textContent"))

    def screenshot(self, path: Path) -> None:
        taken = self.send("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(taken["data"]))

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
        os.close(self._read)
        os.close(self._write)
        shutil.rmtree(self._home, ignore_errors=True)
