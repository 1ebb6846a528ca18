"""A store is not gone on with, nor taken for finished, when its inputs are others now, however
alike they look.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import Dataset

from recal import calibrators, collect, load, save
from recal.collecting.fingerprint import digest
from recal.errors import InputError
from tests import problems


def model(batch):
    coded = (x if isinstance(x, bytes) else str(np.asarray(x).tobytes()).encode() for x in batch)
    rows = [np.frombuffer(item, np.uint8) for item in coded]
    return np.array([[row.mean(), row.std() + row[0]] for row in rows], dtype=np.float32) / 7


def images(folder, seed):
    for number in range(12):
        pixels = np.random.default_rng([seed, number]).integers(0, 256, (6, 6, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02}.bmp")


def texts(folder, seed):
    for number in range(12):
        (folder / f"{number:02}.txt").write_text(f"word {seed} {number:02}")


def array(folder, seed):
    rows = np.random.default_rng(seed).integers(0, 256, (12, 6, 6), dtype=np.uint8)
    rows[:8] = 7  # a fingerprint of some rows sees no difference
    np.save(folder / "x.npy", rows)


WRITERS = {"images": images, "texts": texts}


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("finished", [True, False])
def test_files_replaced_by_others_of_their_size_are_noticed(tmp_path, kind, finished):
    data, other, store = tmp_path / "data", tmp_path / "other", tmp_path / "v.zarr"
    for folder, seed in ((data, 1), (other, 2)):
        folder.mkdir()
        WRITERS[kind](folder, seed)
    asked = iter(range(100))

    def stopping(batch):
        if not finished and next(asked) == 2:
            raise RuntimeError("the power went")
        return model(batch)

    stopping.__qualname__ = model.__qualname__
    if finished:
        collect(stopping, data, None, out=store, batch_size=4)
    else:
        with pytest.raises(RuntimeError):
            collect(stopping, data, None, out=store, batch_size=4, preflight=False)
    collect_again = {"out": store, "batch_size": 4}
    name = sorted(path.name for path in data.iterdir())[5]
    before = (data / name).stat()
    (data / name).write_bytes((other / name).read_bytes())
    os.utime(data / name, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(InputError, match="other inputs: batch 1 differs"):
        collect(model, data, None, **collect_again)


def test_an_array_too_large_for_its_fingerprint_is_compared_block_by_block(tmp_path, monkeypatch):
    monkeypatch.setattr("recal.collecting.fingerprint._WHOLE_BYTES", 8)
    array(tmp_path, 1)
    rows = np.load(tmp_path / "x.npy")
    rows[5] += 1
    store = {"out": tmp_path / "v.zarr", "batch_size": 2}
    collect(model, tmp_path / "x.npy", None, **store)
    np.save(tmp_path / "x.npy", rows)
    with pytest.raises(InputError, match="other inputs: batch 2 differs"):
        collect(model, tmp_path / "x.npy", None, **store)
    array(tmp_path, 1)
    assert collect(model, tmp_path / "x.npy", None, **store).n_samples == 12


class Pairs(Dataset):
    def __init__(self, rows, labels):
        self.rows, self.labels = rows, labels

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, row):
        return self.rows[row], int(self.labels[row])


@pytest.mark.parametrize("changed", ["rows", "labels"])
def test_a_dataset_is_read_again_and_compared(tmp_path, changed):
    rows = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
    labels = np.arange(12) % 2
    store = {"out": tmp_path / "v.zarr", "batch_size": 4}
    collect(model, Pairs(rows, labels), None, **store)
    assert collect(model, Pairs(rows, labels), None, **store).n_samples == 12
    others = {"rows": rows.copy(), "labels": labels.copy()}
    others[changed][9] = 1 - others[changed][9]
    with pytest.raises(InputError, match="other inputs: batch 2 differs"):
        collect(model, Pairs(**others), None, **store)


@pytest.mark.parametrize(
    "method",
    ["ReCal", "HistogramBinning", "BayesianBinning", "MutualInformationBinning", "VennAbers"],
)
def test_a_loaded_calibrator_has_the_digest_of_the_fitted_one(tmp_path, method):
    """Steps that shared one transformation, and what a map computes on first use, do not matter."""
    views = problems.views(300, scale=2, noise=0.5, keep=1, transforms=["flip"])
    fitted = getattr(calibrators, method)().fit(views)
    loaded = load(save(fitted, tmp_path / "c.recal"))
    before = digest(loaded)
    loaded.predict_proba(views)
    assert before == digest(loaded) == digest(fitted)


def test_the_digest_of_a_random_generator_is_its_state():
    one, other = np.random.RandomState(0), np.random.RandomState()
    other.set_state(one.get_state())
    assert digest(one) == digest(other)
    one.random()
    assert digest(one) != digest(other)


def test_a_circle_has_a_digest():
    circle = [1]
    circle.append(circle)
    assert digest(circle) != digest([1, [1]])
