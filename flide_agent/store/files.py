"""The file-system calls of the store in one place, each behind a named point, so that tests can fail or stop at the n-th."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path

RESERVE = 32 << 20
"""Bytes that stay free on the file system: the index needs room to record deletions."""
SMALL = 1 << 16
KEPT = 32 << 20
"""Bytes of objects of at most SMALL that a store which goes with its process has in memory."""


class FileSource:
    """A file opened for reading; closes it at the end of a with block. See objects.Source."""

    def __init__(self, fd: int) -> None:
        """Takes over the descriptor."""
        self._fd = fd
        try:
            self.size = os.fstat(fd).st_size
        except OSError:
            os.close(fd)
            raise

    def read_into(self, offset: int, into: memoryview) -> int:
        done = 0
        while done < len(into):
            n = os.preadv(self._fd, [into[done:]], offset + done)
            if n <= 0:
                break
            done += n
        return done

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> FileSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MemorySource:
    """The same of an object in memory."""

    def __init__(self, data: bytes) -> None:
        self._data, self.size = memoryview(data), len(data)

    def read_into(self, offset: int, into: memoryview) -> int:
        part = self._data[offset : offset + len(into)]
        into[: len(part)] = part
        return len(part)

    def close(self) -> None:
        """Nothing to do."""

    def __enter__(self) -> MemorySource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Files:
    """Payload files below `objects`, in a directory of the first two digits of their names. The local `objects.Objects`.

    Written as: .tmp, fsync, rename, fsync of the directory. After `put` returns, the file is whole on stable storage.
    """

    synced = True
    """What was written is on stable storage before anything relies on it, in the index too."""

    def __init__(self, objects: Path) -> None:
        self.objects, self._root = objects, str(objects)

    def point(self, name: str) -> None:
        """Called before each call that can fail: open, write, fsync, rename, fsync_dir, unlink, commit, committed."""

    def path(self, name: str) -> Path:
        return Path(self._at(name))

    def _at(self, name: str) -> str:
        return f"{self._root}/{name[:2]}/{name}"

    def prepare(self) -> None:
        """Make the 256 directories."""
        self.objects.mkdir(mode=0o700, exist_ok=True)
        for i in range(256):
            (self.objects / f"{i:02x}").mkdir(mode=0o700, exist_ok=True)
        self._fsync_dir(self._root)

    def listing(self) -> dict[str, str]:
        """Name -> directory of all files below `objects`."""
        return {entry: d for d in (f"{i:02x}" for i in range(256)) for entry in os.listdir(self.objects / d)}

    def free(self) -> int:
        """Bytes that may still be written here, less the reserve."""
        st = os.statvfs(self._root)
        return st.f_bavail * st.f_frsize - RESERVE

    def _check_free(self, size: int) -> None:
        if self.free() < size:
            raise OSError(errno.ENOSPC, "the file system is full up to the store's reserve")

    def put(self, kind: str, chunks: Iterable[bytes | memoryview], size: int) -> str:
        """See objects.Objects. Raises ENOSPC before writing when it would not fit."""
        self._check_free(size)
        at = tmp = self._at(f"00new.{kind}.tmp")
        try:
            digest = hashlib.sha256()
            self.point("open")
            fd = os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                for chunk in chunks:
                    digest.update(chunk)
                    self._write(fd, memoryview(chunk))
                self.point("fsync")
                if self.synced:
                    os.fsync(fd)
            finally:
                os.close(fd)
            name = f"{digest.hexdigest()}.{kind}"
            self.point("rename")
            self._rename(tmp, self._at(name))
            at = self._at(name)
            self.point("fsync_dir")
            self._fsync_dir(os.path.dirname(at))
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(at)
            raise
        return name

    @staticmethod
    def _rename(old: str, new: str) -> None:
        try:
            os.rename(old, new)
        except IsADirectoryError:  # somebody put one there; an object's name is given, so it has to make room
            os.rename(new, f"{new}.aside")
            os.rename(old, new)

    def _write(self, fd: int, data: memoryview) -> None:
        while data:
            self.point("write")
            data = data[os.write(fd, data) :]

    def delete(self, name: str) -> bool:
        """Remove a file; True when it is gone. What cannot be removed now is tried again at the next start."""
        try:
            self.point("unlink")
            os.unlink(self._at(name))
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def get(self, name: str) -> FileSource | MemorySource:
        """A file opened for reading, never through a symbolic link. Raises OSError."""
        return FileSource(os.open(self._at(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))

    def exists(self, names: Iterable[str]) -> set[str]:
        """Those of the names that are there: a file has its name only once it is whole."""
        listing = self.listing()
        return {name for name in names if name in listing}

    def close(self) -> None:
        """Nothing is put any more. All of it is in its place already."""

    def _fsync_dir(self, path: str) -> None:
        if not self.synced:
            return
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class UnsyncedFiles(Files):
    """For a store that goes with its process: nothing waits for the disk. Closing it loses nothing, the end of the machine may.

    Small objects stay in memory, up to KEPT bytes, until it closes: a file costs several times as much as what is in it. Who kills
    the process loses those.
    """

    synced = False

    def __init__(self, objects: Path) -> None:
        super().__init__(objects)
        self._small: dict[str, bytes] = {}
        self._kept = 0
        self._lock = threading.Lock()

    def put(self, kind: str, chunks: Iterable[bytes | memoryview], size: int) -> str:
        if size > SMALL or self._kept + size > KEPT:
            return super().put(kind, chunks, size)
        data = b"".join(chunks)
        name = f"{hashlib.sha256(data).hexdigest()}.{kind}"
        with self._lock:
            self._forget(name)
            self._small[name] = data
            self._kept += len(data)
        return name

    def delete(self, name: str) -> bool:
        with self._lock:
            self._forget(name)
        return super().delete(name)

    def get(self, name: str) -> FileSource | MemorySource:
        data = self._small.get(name)
        return super().get(name) if data is None else MemorySource(data)

    def listing(self) -> dict[str, str]:
        return super().listing() | {name: name[:2] for name in list(self._small)}

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the next start finds what is missing
            for name, data in list(self._small.items()):
                super().put(name.rpartition(".")[2], [data], len(data))
                self._forget(name)

    def _forget(self, name: str) -> bool:
        """Whether it was in memory. Under the lock."""
        data = self._small.pop(name, None)
        self._kept -= 0 if data is None else len(data)
        return data is not None
