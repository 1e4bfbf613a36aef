"""Chromium without a head, over its debugging pipe: open a page, wait for text in it, take a picture. Nothing to install beside it."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find() -> str:
    """The browser; skips the test where there is none."""
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is on the PATH (apt-get install chromium)")
    return found


class Browser:
    """One page. The debugging pipe is file descriptor 3 (in) and 4 (out) of the browser, messages end in a zero byte."""

    def __init__(self, profile: Path) -> None:
        to_browser, from_test = os.pipe()
        to_test, from_browser = os.pipe()
        command = [
            find(), "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-dev-shm-usage", "--disable-background-networking", "--hide-scrollbars", f"--user-data-dir={profile}",
            "--window-size=1200,900", "about:blank",
        ]  # fmt: skip

        def descriptors() -> None:
            os.dup2(to_browser, 10)
            os.dup2(from_browser, 11)
            os.dup2(10, 3)
            os.dup2(11, 4)

        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False, preexec_fn=descriptors
        )
        os.close(to_browser)
        os.close(from_browser)
        self._out, self._in, self._buffer, self._number = from_test, to_test, b"", 0
        self.said: list[str] = []
        """Errors of the page: exceptions, and what it wrote to the console as an error."""
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._send(method, self._session, **params)

    def _send(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            got = self._read()
            if got.get("id") == number:
                assert "error" not in got, got
                return dict(got["result"])
            if got.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                entry = got["params"].get("entry", {"level": "error"})
                if entry["level"] == "error":
                    self.said.append(json.dumps(got["params"])[:500])

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._in, 1 << 16)
            assert part, "the browser has gone"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(line))

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        got = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in got, got
        return got["result"].get("value")

    def until(self, script: str, seconds: float = 20.0) -> Any:
        """The first true value of an expression."""
        end = time.monotonic() + seconds
        script = f"(() => {{ try {{ return !!({script}) }} catch (e) {{ return null }} }})()"  # the page may not be there yet
        while not (value := self.run(script)):
            assert time.monotonic() < end, f"{script} is still {value!r}; the page: {self.run('document.body.innerText')}"
            time.sleep(0.05)
        return value

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)
        os.close(self._out)
        os.close(self._in)
