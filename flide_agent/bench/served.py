"""The server of a bench run, as `flide-agent serve` runs it, with a cap on device memory where one is asked for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec


class Given(msgspec.Struct):
    """settings: of Settings by name. max_memory: bytes of the device that this process may take, None for all."""

    settings: dict[str, Any]
    max_memory: int | None = None


def main() -> None:
    """`python -m flide_agent.bench.served JSON`."""
    from flide_agent.api.server import serve
    from flide_agent.bench.inside import cap
    from flide_agent.bench.leash import end_with_parent
    from flide_agent.errors import FlideError
    from flide_agent.settings import Settings

    end_with_parent()
    given = msgspec.json.decode(sys.argv[1], type=Given)
    settings = Settings(**given.settings | {"store": Path(given.settings["store"])})
    try:
        if given.max_memory is not None:
            cap(settings.device, given.max_memory)
        serve(settings)
    except (FlideError, ValueError) as e:
        raise SystemExit(f"flide-agent: {e}") from e


if __name__ == "__main__":
    main()
