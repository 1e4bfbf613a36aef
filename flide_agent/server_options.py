"""Options that name a server and its key, checked before anything is asked."""

from __future__ import annotations

from urllib.parse import urlsplit

import typer


def header_key(key: str | None) -> str | None:
    """Raises typer.BadParameter for an API key that no HTTP header can hold."""
    from flide_agent.wire import check_key

    try:
        check_key(key or "")
    except ValueError as e:
        raise typer.BadParameter(str(e)) from None
    return key


def server_url(url: str | None) -> str | None:
    """Raises typer.BadParameter for what is no URL of a server."""
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise typer.BadParameter(f"{url!r} is no URL of a server; write http://HOST:PORT")
    if parts.path.rstrip("/").endswith("/v1"):
        raise typer.BadParameter(f"{url!r}: leave /v1 out, it is added to each request")
    return url
