"""Child processes of a run end with it, however it ends: a run that is killed leaves no server on the GPU."""

from __future__ import annotations

import os
import signal
import threading
import time

LOOK_SECONDS = 0.5


def end_with_parent() -> None:
    """SIGTERM to this process once its parent is gone."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="leash", daemon=True).start()
