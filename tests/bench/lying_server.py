"""A System One server whose answers depend on how many requests it holds at once: what a benchmark must not let pass."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKENS = 7
PAUSE = 0.05


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    held = 0
    lock = threading.Lock()
    refuse = False

    def do_GET(self) -> None:
        self._send(404, {"detail": "no"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        cls = type(self)
        with cls.lock:
            cls.held += 1
        time.sleep(PAUSE)
        with cls.lock:
            off, cls.held = cls.held > 1, cls.held - 1
        if cls.refuse:
            self._send(429, {"detail": "full"})
            return
        answers = {key: {"type": "noul", "noul": 0.5 + (1e-16 * 4 if off else 0.0)} for key in body["questions"]}
        self._send(200, {"answers": answers, "usage": {"input_tokens": TOKENS, "x_cached_tokens": 0}})

    def _send(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def lying(*, refuse: bool = False) -> Iterator[str]:
    """The URL of one. refuse: it answers 429 to everything."""
    handler = type("Handler", (_Handler,), {"held": 0, "lock": threading.Lock(), "refuse": refuse})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
