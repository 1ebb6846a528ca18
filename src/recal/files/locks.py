"""One writer at a time.

A folder of this machine is locked by its own handle, which leaves no file behind and dies with the process. An object
store has no locks. There the last to come writes its own word into the store, and whoever finds another's there stops.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Protocol

from recal.errors import FileError
from recal.files.places import is_remote

# The name of the file that stands for a lock in an object store.
WORD = ".writer.part"


class Lock(Protocol):
    """Holds a folder for one writer until it is closed."""

    def check(self) -> None:
        """Refuse to go on when the folder is another writer's by now."""

    def close(self) -> None: ...


def lock_folder(folder: Path) -> Lock:
    """Return the lock of a folder, held."""
    return Word(folder) if is_remote(folder) else FolderLock(folder)


class Word:
    """A file in a folder with a word that only one run knows.

    A worker that finds it reaches the folder itself. When it is gone, or holds another word, another run has taken the
    folder over, or this one has ended.
    """

    def __init__(self, folder: Path, name: str = WORD) -> None:
        self.folder, self.word = folder, secrets.token_hex(8)
        self.path = folder.absolute() / name  # whoever opens the folder clears such names away
        self.path.write_text(self.word, encoding="ascii")

    def is_here(self) -> bool:
        try:
            return self.path.read_text(encoding="ascii") == self.word
        except (OSError, ValueError):
            return False

    def check(self) -> None:
        if not self.is_here():
            raise FileError(f"Another collect has begun to write {self.folder}; this one stops. Let it finish.")

    def close(self) -> None:
        if self.is_here():
            self.path.unlink(missing_ok=True)


class FolderLock:
    """Holds a folder for one writer until it is closed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._handle: int | None = None
        try:
            import fcntl
        except ImportError:  # not on Windows
            return
        self._handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise FileError(f"Another collect is writing {folder} now; wait for it, or choose another name.") from error
        except OSError:  # some network file systems have no locks
            return

    def check(self) -> None:
        """Refuse to go on when the folder was removed, or another one stands in its place."""
        try:
            here = os.stat(self.folder)
            same = self._handle is None or os.path.samestat(here, os.fstat(self._handle))
        except OSError:
            same = False
        if not same:
            raise FileError(f"{self.folder} was removed or replaced while it was written. Run the same command again.")

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
