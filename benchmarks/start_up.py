"""CPU seconds of processes from start to end: python -m benchmarks.start_up [--small]"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from benchmarks.measuring import Ratio, show

# Sharp logits, as many as need compiled code.
_FIRST_FIT = """
import numpy as np
from recal import ReCal, Views
rng, k, n = np.random.default_rng(0), 10, 12_000
y = rng.integers(0, k, n)
logits = (rng.normal(size=(n, k)) * 9 + 9 * np.eye(k)[y]).astype("f4")
views = Views(logits, {"zoom:0.5": logits * np.float32(0.9)}, y)
ReCal(random_state=0, max_iter=20, tol=0).fit(views).predict_proba(views)
"""


def cpu(*command: str, cache: str | None = None) -> float:
    environment = {**os.environ, **({"NUMBA_CACHE_DIR": cache} if cache else {})}
    before = os.times()
    subprocess.run(
        [sys.executable, *command], check=True, stdout=subprocess.DEVNULL, env=environment
    )
    after = os.times()
    user, system = (
        after.children_user - before.children_user,
        after.children_system - before.children_system,
    )
    return user + system


def ratios(small: bool) -> Iterator[Ratio]:
    turns = range(1 if small else 3)
    sklearn = min(cpu("-c", "import sklearn.calibration") for _ in turns)
    part, beside = "Start-up", "import sklearn.calibration"
    commands = {"import recal": ("-c", "import recal"), "recal --help": ("-m", "recal", "--help")}
    for what, command in commands.items():
        yield Ratio(part, what, beside, min(cpu(*command) for _ in turns), sklearn)
    with tempfile.TemporaryDirectory() as fresh:
        first = cpu("-c", _FIRST_FIT, cache=fresh)
        again = min(cpu("-c", _FIRST_FIT, cache=fresh) for _ in turns)
    yield Ratio(part, "first fit and answer of ReCal, empty cache", "5 s", first, 5.0)
    yield Ratio(part, "the same in a further process", beside, again, sklearn)


if __name__ == "__main__":
    show(ratios, __doc__)
