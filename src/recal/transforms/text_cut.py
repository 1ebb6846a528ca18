"""Text cut at one end: what remains is as it was written, in its order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from recal.transforms.content import Keys
from recal.transforms.text import DropTokens, TokenTransform


@dataclass(frozen=True, slots=True)
class Cut(TokenTransform):
    """Leave out the last, or first, ``round(share * tokens)`` tokens: at least one, never all.

    Words keep their order and their neighbours, so a sentence stays a sentence up to the cut. Ids are filled up with
    `pad` as by `DropTokens`.

    Examples
    --------
    >>> from recal.transforms import Cut
    >>> Cut(0.3)(["a small cat on the mat"]), Cut(0.3, side="start")(["a small cat on the mat"])
    (['a small cat on'], ['cat on the mat'])
    """

    kind: ClassVar[str] = "cut"
    assumes: ClassVar[str] = "the words at that end alone do not make the label"
    keeps_information: ClassVar[bool] = True
    strengths: ClassVar[tuple[float, float]] = (0.05, 0.3)
    choices: ClassVar[dict[str, tuple[str, ...]]] = {"side": ("end", "start")}
    seed: ClassVar[int] = 0  # type: ignore[misc]  # nothing is drawn

    share: float
    side: str = "end"
    pad: int = 0
    special: tuple[float, ...] = ()

    def _hit(self, keys: Keys, size: int) -> NDArray[np.bool_]:
        count = min(max(round(self.share * size), 1), size - 1)
        hit = np.zeros((len(keys), size), dtype=bool)
        hit[:, size - count :] = self.side == "end"
        hit[:, :count] |= self.side == "start"
        return hit

    def _words(self, words: list[str], hit: NDArray[np.bool_]) -> list[str]:
        return [word for word, lost in zip(words, hit) if not lost]

    def _row(self, row: NDArray[Any], hit: NDArray[np.intp]) -> None:
        DropTokens._row(self, row, hit)  # type: ignore[arg-type]
