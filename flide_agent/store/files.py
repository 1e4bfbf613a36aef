"""The file-system calls of the store in one place, each behind a named point, so that tests can fail or stop at the n-th."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

RESERVE = 32 << 20
"""Bytes that stay free on the file system: the index needs room to record deletions."""


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


class Files:
    """Payload files below `objects`, in a directory of the first two digits of their names. The local `objects.Objects`.

    Written as: .tmp, fsync, rename, fsync of the directory. After `put` returns, the file is whole on stable storage.
    """

    synced = True
    """What was written is on stable storage before anything relies on it, in the index too."""

    def __init__(self, objects: Path) -> None:
        self.objects = objects

    def point(self, name: str) -> None:
        """Called before each call that can fail: open, write, fsync, rename, fsync_dir, unlink, commit, committed."""

    def path(self, name: str) -> Path:
        return self.objects / name[:2] / name

    def prepare(self) -> None:
        """Make the 256 directories."""
        self.objects.mkdir(mode=0o700, exist_ok=True)
        for i in range(256):
            (self.objects / f"{i:02x}").mkdir(mode=0o700, exist_ok=True)
        self._fsync_dir(self.objects)

    def listing(self) -> dict[str, str]:
        """Name -> directory of all files below `objects`."""
        return {entry: d for d in (f"{i:02x}" for i in range(256)) for entry in os.listdir(self.objects / d)}

    def free(self) -> int:
        """Bytes that may still be written here, less the reserve."""
        st = os.statvfs(self.objects)
        return st.f_bavail * st.f_frsize - RESERVE

    def put(self, kind: str, chunks: Iterable[bytes | memoryview], size: int) -> str:
        """See objects.Objects. Raises ENOSPC before writing when it would not fit."""
        if self.free() < size:
            raise OSError(errno.ENOSPC, "the file system is full up to the store's reserve")
        at = tmp = self.path(f"00new.{kind}.tmp")
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
            self._rename(tmp, self.path(name))
            at = self.path(name)
            self.point("fsync_dir")
            self._fsync_dir(at.parent)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(at)
            raise
        return name

    @staticmethod
    def _rename(old: Path, new: Path) -> None:
        try:
            os.rename(old, new)
        except IsADirectoryError:  # somebody put one there; an object's name is given, so it has to make room
            os.rename(new, new.with_name(f"{new.name}.aside"))
            os.rename(old, new)

    def _write(self, fd: int, data: memoryview) -> None:
        while data:
            self.point("write")
            data = data[os.write(fd, data) :]

    def delete(self, name: str) -> bool:
        """Remove a file; True when it is gone. What cannot be removed now is tried again at the next start."""
        try:
            self.point("unlink")
            os.unlink(self.path(name))
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def get(self, name: str) -> FileSource:
        """A file opened for reading, never through a symbolic link. Raises OSError."""
        return FileSource(os.open(self.path(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))

    def exists(self, names: Iterable[str]) -> set[str]:
        """Those of the names that are there: a file has its name only once it is whole."""
        listing = self.listing()
        return {name for name in names if name in listing}

    def _fsync_dir(self, path: Path) -> None:
        if not self.synced:
            return
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class UnsyncedFiles(Files):
    """For a store that goes with its process: nothing waits for the disk. The end of the process loses nothing, that of the machine may."""

    synced = False
