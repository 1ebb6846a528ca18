"""One writer at a time: a folder is locked by its own handle, which leaves no file behind and dies with the process."""

from __future__ import annotations

import os
from pathlib import Path

from recal.errors import FileError


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
