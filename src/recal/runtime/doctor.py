"""What this installation can do: packages, extras, threads, and where compiled code is kept."""

from __future__ import annotations

import importlib
import os
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import chain
from pathlib import Path
from typing import Any

_DISTRIBUTION = "recal-calibration"
# Where the import's name is not the distribution's.
_IMPORTS = {"scikit-learn": "sklearn", "pillow": "PIL"}
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def examine() -> dict[str, Any]:
    """Return what is installed and works. Every package is really imported, since installed is not yet working.

    Examples
    --------
    >>> from recal.runtime.doctor import check_package
    >>> check_package("numpy")["works"]
    True
    """
    required, extras = _requirements()
    checked = {name: check_package(name) for name in dict.fromkeys(chain(required, *extras.values()))}
    return {
        "recal": _version(_DISTRIBUTION),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "packages": {name: checked[name] for name in required},
        "extras": {
            extra: {"works": all(checked[name]["works"] for name in names), "packages": {n: checked[n] for n in names}}
            for extra, names in extras.items()
        },
        "threads": _threads(),
        "numba_cache": numba_cache(),
    }


def check_package(name: str) -> dict[str, Any]:
    """Return a package's version, whether it can be imported, and why not."""
    found = _version(name)
    if found is None:
        return {"version": None, "works": False, "problem": "not installed"}
    try:
        importlib.import_module(_IMPORTS.get(name, name.replace("-", "_")))
    except Exception as error:  # a package may fail in any way when it meets another
        return {"version": found, "works": False, "problem": f"{type(error).__name__}: {error}"}
    return {"version": found, "works": True, "problem": None}


def _requirements() -> tuple[list[str], dict[str, list[str]]]:
    """What recal's own metadata say it needs: always, and for each extra."""
    required: list[str] = []
    extras: dict[str, list[str]] = {}
    try:
        lines = requires(_DISTRIBUTION) or []
    except PackageNotFoundError:
        return required, extras
    for line in lines:
        name = re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0].lower()
        found = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if name == _DISTRIBUTION:  # the extra `all` names the others
            continue
        (extras.setdefault(found[1], []) if found else required).append(name)
    return required, extras


def _threads() -> dict[str, Any]:
    import numba
    from threadpoolctl import threadpool_info

    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    pools = {f"{pool['user_api']} ({pool['internal_api']})": pool["num_threads"] for pool in threadpool_info()}
    set_by_hand = {name: os.environ[name] for name in _THREAD_VARIABLES if name in os.environ}
    return {"cpus": available, "numba": numba.get_num_threads(), "pools": pools, "environment": set_by_hand}


def numba_cache() -> dict[str, Any]:
    """Return where compiled kernels are kept; where nothing is writable, every start compiles them anew."""
    import numba

    from recal.engine import kernels

    chosen = numba.config.CACHE_DIR
    folder = Path(chosen) if chosen else Path(kernels.__path__[0]) / "__pycache__"
    if not chosen and not _writable(folder):
        folder = Path.home() / ".cache" / "numba"  # numba's own second choice
    return {"folder": str(folder), "writable": _writable(folder), "set_by": "NUMBA_CACHE_DIR" if chosen else None}


def _writable(folder: Path) -> bool:
    """Whether files can be made in a folder, or in the nearest one above that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
