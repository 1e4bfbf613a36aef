"""A port taken for this process, or a clear word why not."""

from __future__ import annotations

import os
import socket

from flide_agent.errors import StartError


def bind(host: str, port: int) -> socket.socket:
    """A bound socket, not yet accepting. Raises StartError when the port is taken or the address is none of this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    s = socket.socket(family, socket.SOCK_STREAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        s.bind((host, port))
    except OSError as e:
        s.close()
        why = os.strerror(e.errno) if e.errno else str(e)
        raise StartError(f"cannot listen on {host} port {port}: {why}; choose another --port or --host") from e
    return s
