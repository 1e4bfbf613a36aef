"""Whose directory it is: one process at a time, on a local file system."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from flide_agent.store.errors import StoreBusy, StoreError

# mmap and flock are not coherent or not durable on these; FUSE is listed as fuse, fuse.sshfs and the like.
NETWORK = frozenset(
    [
        "9p",
        "afs",
        "afpfs",
        "beegfs",
        "ceph",
        "cifs",
        "davfs",
        "fuse",
        "gfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs3",
        "nfs4",
        "ocfs2",
        "orangefs",
        "panfs",
        "smb2",
        "smb3",
        "smbfs",
        "virtiofs",
        "vboxsf",
        "wekafs",
    ]
)


OWN = frozenset(["LOCK", "objects", "index", "lost+found"])
"""What a store directory may have before its index is there: traces of a first start that was cut short, or of mkfs."""


def filesystem(path: Path, mounts: str | None = None) -> str:
    """Type of the file system that holds `path`, from the mount table; "" where there is none to read (not Linux)."""
    if mounts is None:
        try:
            mounts = Path("/proc/self/mounts").read_text(errors="replace")
        except OSError:
            return ""
    where = str(path.resolve())
    best, kind = -1, ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        inside = where == point or where.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, kind = len(point), fields[2]
    return kind


def refuse_network(path: Path, force: bool, mounts: str | None = None) -> str | None:
    """Raise StoreError on a network file system; with force return a note instead. None when all is well."""
    kind = filesystem(path, mounts)
    if kind.split(".")[0] not in NETWORK:
        return None
    said = f"{path} is on a network or FUSE file system ({kind}), where the index can be corrupted"
    if not force:
        raise StoreError(f"{said}; choose a directory on a local disk, or force it at your own risk")
    return f"{said}; used all the same because it was forced"


def refuse_foreign(path: Path) -> None:
    """Raise StoreError for a directory with things in it and no store: what is there is somebody else's."""
    if (path / "index" / "data.mdb").exists():
        return
    foreign = sorted(e.name for e in path.iterdir() if e.name not in OWN and not e.name.startswith("index.damaged-"))
    if foreign:
        some = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
        raise StoreError(f"{path} is no store and not empty ({some}); choose an empty directory or a new one")


class Ownership:
    """The lock file of a store directory, held until `release` or the end of the process, however it ends."""

    def __init__(self, path: Path) -> None:
        """Raises StoreBusy naming the process that has it, StoreError when the file cannot be made."""
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"cannot open {path}: {error.strerror}; is the directory writable?") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            text = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip()
            os.close(self._fd)
            pid = int(text) if text.isdigit() else None
            who = f"process {pid}" if pid else "another process"
            raise StoreBusy(f"{path.parent} is in use by {who}; stop it or choose another store directory", pid) from None
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            os.close(self._fd)
            raise StoreError(
                f"cannot write {path}: {error.strerror}; free some space or choose another store directory"
            ) from error

    def release(self) -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
        os.close(self._fd)


def claim(path: Path, force: bool) -> tuple[Ownership, list[str]]:
    """Make the directory and take it. Returns the ownership and notes. Raises StoreError for one that is not empty and no store."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        refuse_foreign(path)
    except OSError as error:
        raise StoreError(f"cannot make the store directory {path}: {error.strerror}") from error
    note = refuse_network(path, force)
    return Ownership(path / "LOCK"), [note] if note else []
