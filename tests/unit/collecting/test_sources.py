"""Every kind of input arrives whole and in order, with its labels, and what cannot be read is
named.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

from recal import collect, read_views
from recal.collecting import as_source
from recal.collecting.sources import Subset
from recal.errors import FileError, InputError, RecalError


def gather(source, size=7):
    batches = list(source.batches(size))
    assert [batch.index for batch in batches] == list(range(len(batches)))
    assert [len(batch) for batch in batches[:-1]] == [size] * (len(batches) - 1)
    return np.concatenate([np.asarray(batch.inputs) for batch in batches])


class Pairs(torch.utils.data.Dataset):
    def __init__(self, images, labels):
        self.images, self.labels, self.read = images, labels, []

    def __len__(self):
        return len(self.images)

    def __getitem__(self, row):
        self.read.append(row)
        return self.images[row], int(self.labels[row])


# --- arrays, datasets, loaders


@pytest.mark.parametrize("kind", ["dataset", "pairs"])
def test_torch_inputs_bring_their_labels(kind, images, labels, model):
    tensors = TensorDataset(torch.from_numpy(images), torch.from_numpy(labels))
    inputs = {"dataset": tensors, "pairs": Pairs(images, labels)}[kind]
    views = collect(model, inputs, "zoom:0.5", batch_size=7)
    expected = collect(model, images, "zoom:0.5", labels=labels, batch_size=7)
    np.testing.assert_array_equal(views.logits, expected.logits)
    np.testing.assert_array_equal(views.transformed("zoom:0.5"), expected.transformed("zoom:0.5"))
    np.testing.assert_array_equal(views.labels, labels)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (np.empty((0, 8, 8)), r"at least one sample.*\(0, 8, 8\)"),
        (object(), "got object"),
        ((np.zeros((3, 8, 8)), np.zeros(3)), "tuple of 2.*`labels`"),
        (iter([np.zeros((3, 8, 8))]), "got list_iterator"),
        (torch.utils.data.Subset([{"pixels": 1}], [0]), "got a dict of 1"),
        (torch.utils.data.Subset([(1, 2, 3)], [0]), "got a tuple of 3"),
        (DataLoader(np.zeros((5, 8))), "loader.dataset"),
    ],
)
def test_what_holds_no_samples_is_refused(inputs, message, model):
    with pytest.raises(InputError, match=message):
        collect(model, inputs, None)


def test_items_of_different_shapes_are_refused(model):
    items = Pairs([np.zeros((8, 8)), np.zeros((9, 8))], [0, 1])
    with pytest.raises(InputError, match=r"different shapes \[\(8, 8\), \(9, 8\)\]"):
        collect(model, items, None)


# --- folders of images


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("ant", "bee", "cat"):
        for number in range(3):
            path = tmp_path / "images" / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (12, 10, 3), dtype=np.uint8)).save(path)
    return tmp_path / "images"


def test_a_folder_is_read_in_the_order_of_its_names(folder, model):
    source = as_source(folder)
    pixels = gather(source, 4)
    assert pixels.shape == (9, 12, 10, 3)
    np.testing.assert_array_equal(pixels[4], np.asarray(Image.open(folder / "bee" / "1.png")))
    views = collect(model, folder, None)
    assert views.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert views.classes.tolist() == ["ant", "bee", "cat"]


def test_folders_are_matched_by_name_where_the_models_columns_are_given(folder, model):
    views = collect(model, folder, None, classes=["cat", "bee", "ant"])
    assert views.labels.tolist() == [2, 2, 2, 1, 1, 1, 0, 0, 0]


def test_a_missing_class_folder_does_not_shift_columns(folder, model):
    for path in (folder / "ant").iterdir():
        path.unlink()
    (folder / "ant").rmdir()
    with pytest.raises(InputError, match=r"2 classes and the model has 3.*classes="):
        collect(model, folder, None)
    views = collect(model, folder, None, classes=["ant", "bee", "cat"])
    assert views.labels.tolist() == [1, 1, 1, 2, 2, 2]


def test_resize_and_crop(folder):
    assert gather(as_source(folder, resize=20)).shape == (9, 24, 20, 3)
    cropped = gather(as_source(folder, crop=4))
    np.testing.assert_array_equal(cropped, gather(as_source(folder))[:, 4:8, 3:7])


def test_images_of_different_sizes_are_named(folder):
    Image.new("RGB", (7, 7)).save(folder / "ant" / "9.png")
    with pytest.raises(InputError, match=r"9\.png is \(7, 7\).*resize="):
        gather(as_source(folder))
    with pytest.raises(InputError, match=r"`crop` 8 .*9\.png, which is 7x7"):
        gather(as_source(folder, crop=8))


@pytest.mark.parametrize("damage", [b"", b"not an image", "half"])
def test_a_corrupt_image_is_named_or_skipped(folder, model, damage):
    path = folder / "bee" / "1.png"
    path.write_bytes(path.read_bytes()[:100] if damage == "half" else damage)
    with pytest.raises(FileError, match=r"bee.1\.png cannot be read.*on_error='skip'"):
        collect(model, folder, None)
    source = as_source(folder, on_error="skip")
    assert source.skipped == ("bee/1.png",)
    views = collect(model, source, None)
    assert views.labels.tolist() == [0, 0, 0, 1, 1, 2, 2, 2]
    with pytest.warns(UserWarning, match=r"1 files .*, such as bee/1\.png"):
        collect(model, folder, None, on_error="skip")


def test_a_nan_names_the_image(folder):
    def model(batch):
        return np.where(np.arange(len(batch))[:, None] == 4, np.nan, np.ones((len(batch), 3)))

    with pytest.raises(InputError, match=r"sample 4 \(bee/1\.png\), class 0, in the original"):
        collect(model, folder, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resize": 0}, "`resize` must be"),
        ({"crop": (1, 2)}, "`crop` must be"),
        ({"on_error": "hope"}, "'stop', 'skip', got 'hope'"),
    ],
)
def test_bad_options_of_a_folder_are_refused(folder, options, message):
    with pytest.raises(InputError, match=message):
        as_source(folder, **options)


# --- files


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "named.npz"])
def test_numpy_files(tmp_path, images, labels, model, name):
    path = tmp_path / name
    if name == "x.npy":
        np.save(path, images)
    elif name == "x.npz":
        np.savez(path, images=images, y=labels)
    else:
        np.savez(path, whatever=images, labels=labels)
    views = collect(model, path, None)
    np.testing.assert_array_equal(views.logits, collect(model, images, None).logits)
    assert views.labels is None if name == "x.npy" else (views.labels == labels).all()


def test_labels_may_be_a_file(tmp_path, images, labels, model):
    np.save(tmp_path / "y.npy", labels)
    np.testing.assert_array_equal(
        collect(model, images, None, labels=tmp_path / "y.npy").labels, labels
    )
    (tmp_path / "y.npy").write_bytes(b"rubbish")
    with pytest.raises(FileError, match=r"y\.npy cannot be read as labels"):
        collect(model, images, None, labels=tmp_path / "y.npy")


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("x.npy", lambda p: p.write_bytes(b"rubbish"), r"x\.npy cannot be read"),
        ("x.npz", lambda p: p.write_bytes(b"rubbish"), r"x\.npz cannot be read"),
        ("two.npz", lambda p: np.savez(p, a=[1], b=[2]), "holds a, b. Call the inputs `inputs`"),
        ("x.csv", lambda p: p.write_text("1,2"), r"A table must hold at least one row"),
    ],
)
def test_files_that_cannot_be_read_are_refused(tmp_path, name, make, message):
    make(tmp_path / name)
    with pytest.raises(RecalError, match=message):
        as_source(tmp_path / name)


@pytest.mark.parametrize("name", [None, "views.npz", "views.zarr"])
def test_every_row_can_be_traced_to_its_input(tmp_path, name):
    for file in ("cat/a.txt", "cat/b.txt", "dog/c.txt"):
        (tmp_path / "in" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / file).write_bytes(file.encode())
    out = None if name is None else tmp_path / name

    def model(batch):
        return np.array([[len(item), 1.5] for item in batch])

    views = collect(model, Subset(as_source(tmp_path / "in"), np.array([2, 0])), None, out=out)
    assert views.ids.tolist() == ["dog/c.txt", "cat/a.txt"]
    rows = collect(lambda batch: batch, Subset(as_source(np.eye(5) * 9), np.array([4, 1])), None)
    written = rows.write(tmp_path / f"rows{Path(name or 'x.npz').suffix}")
    assert read_views(written)[::-1].ids.tolist() == ["1", "4"]
    assert rows[1:].ids.tolist() == ["1"]
