"""Randomness that belongs to a sample: drawn from a seed and the sample's own content.

A sample therefore meets the same fate alone, in any batch, at any position, today and tomorrow. Nothing here is shared
state: a digest of the sample's bytes is the key, and number j of its stream is a mix of key and j.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def content_keys(samples: NDArray[Any], kind: str, seed: int) -> Keys:
    """Return one 64-bit key per sample, from its bytes, the kind of transformation and the seed."""
    rows = np.ascontiguousarray(samples)
    salt = f"{kind}:{seed}:{rows.dtype.str}:{rows.shape[1:]}".encode()
    return np.array([key_of(row.tobytes(), salt) for row in rows], dtype=np.uint64)


def key_of(content: bytes, salt: bytes) -> int:
    digest = blake2b(content, digest_size=8, key=blake2b(salt, digest_size=32).digest()).digest()
    return int.from_bytes(digest, "little")


def uniforms(keys: Keys, count: int, stream: int = 0) -> NDArray[np.float64]:
    """Return (n_keys, count) numbers in [0, 1); each row depends on its key alone."""
    return uniforms_at(keys, np.arange(count, dtype=np.uint64), stream)


def uniforms_at(keys: Keys, places: NDArray[np.uint64], stream: int = 0) -> NDArray[np.float64]:
    """Return the numbers at these places of each key's stream, (n_keys, n_places); keys may each have their own."""
    with np.errstate(over="ignore"):  # wrapping round is what the mix is made of
        start = np.uint64(stream) * np.uint64(1 << 40) + np.uint64(1)
        mixed = keys[:, None] + (places + start) * _GOLDEN
        mixed ^= mixed >> np.uint64(30)
        mixed *= _MIX_1
        mixed ^= mixed >> np.uint64(27)
        mixed *= _MIX_2
        mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def choose(keys: Keys, size: int, share: float) -> NDArray[np.bool_]:
    """Mark ``round(share * size)`` of `size` places in each row, at least one and never all: (n_keys, size)."""
    chosen = np.zeros((len(keys), size), dtype=bool)
    count = min(max(round(share * size), 1), size - 1)
    if count > 0 and len(keys):
        places = np.argsort(uniforms(keys, size), axis=1, kind="stable")[:, :count]
        np.put_along_axis(chosen, places, True, axis=1)
    return chosen
