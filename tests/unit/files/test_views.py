"""Views on disk: what is written comes back, big ones pass through in parts, and rubbish is
refused.
"""

from __future__ import annotations

import errno
import json
import os
import tracemalloc
import zipfile

import numpy as np
import pytest
import zarr

from recal import Plan, Views, load, read_views, save
from recal.cli.app import run
from recal.errors import FileError, InputError, RecalError
from recal.files import views as views_module

# zarr warns of texts of a fixed width.
pytestmark = pytest.mark.filterwarnings("ignore:The data type:FutureWarning")

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(6, 3)).astype(np.float32)
SPECS = ("zoom:0.5", "brightness:0.3", "my own")
WORDS = np.array(["ant", "bee", "zebu é"])


def make(dtype=np.float32, labels=(0, 1, 2, 2, 1, 0), classes=None, count=3) -> Views:
    transformed = {spec: (LOGITS * (i + 2)).astype(dtype) for i, spec in enumerate(SPECS[:count])}
    return Views(LOGITS.astype(dtype), transformed, labels, classes=classes)


def assert_same(a: Views, b: Views) -> None:
    assert a.transforms == b.transforms
    assert a.logits.dtype == b.logits.dtype
    np.testing.assert_array_equal(a.logits, b.logits)
    for transform in a.transforms:
        assert a.transformed(transform).dtype == b.transformed(transform).dtype
        np.testing.assert_array_equal(a.transformed(transform), b.transformed(transform))
    for x, y in ((a.labels, b.labels), (a.classes, b.classes)):
        assert (x is None) == (y is None)
        if x is not None:
            assert x.tolist() == y.tolist()


@pytest.fixture(params=["npz", "zarr"])
def target(request, tmp_path):
    return tmp_path / f"views.{request.param}"


@pytest.mark.parametrize(
    "views",
    [
        make(),
        make(np.float16),
        make(np.float64),
        make(labels=None),
        make(count=0, labels=None),
        make(classes=WORDS, labels=WORDS[[2, 0, 0, 1, 1, 1]]),
        make(classes=[10, 20, 30], labels=[10, 20, 30, 30, 20, 10]),
        make(classes=[2, 0, 1], labels=[2, 0, 1, 1, 0, 2]),
        make(classes=np.array(list("xyz"), dtype=object), labels=list("xyzzyx")),
        make(classes=[0.5, 1.5, 2.5], labels=[0.5, 2.5, 2.5, 0.5, 0.5, 0.5]),
        make()[::-2],
        Views(np.asfortranarray(LOGITS), {"a": np.asfortranarray(LOGITS * 2)}),
    ],
    ids=str,
)
def test_what_is_written_comes_back(views, target):
    assert views.write(target) == target
    assert_same(read_views(target), views)
    read_views(target).write(target)  # over itself
    assert_same(read_views(target), views)
    assert [p.name for p in target.parent.iterdir()] == [target.name]


def test_views_of_several_dtypes_lose_nothing(target):
    views = Views(LOGITS, {"a": LOGITS.astype(np.float16), "b": LOGITS.astype(np.float64) / 3})
    again = read_views(views.write(target))
    np.testing.assert_array_equal(again.logits, LOGITS)
    np.testing.assert_array_equal(again.transformed("b"), views.transformed("b"))
    np.testing.assert_array_equal(again.transformed("a"), views.transformed("a"))


def test_a_file_made_by_hand_is_read(tmp_path):
    arrays = {"logits": LOGITS, "transforms": ["a", "b"], "extra": [1], "labels": np.arange(6) % 3}
    np.savez_compressed(tmp_path / "v.npz", transformed=[LOGITS, LOGITS * 2], **arrays)
    views = read_views(tmp_path / "v.npz")
    assert [str(t) for t in views.transforms] == ["a", "b"]
    np.testing.assert_array_equal(views.transformed("b"), LOGITS * 2)
    assert views.labels.tolist() == [0, 1, 2, 0, 1, 2]


def test_equal_views_give_equal_bytes(tmp_path):
    one, other = (make().write(tmp_path / name).read_bytes() for name in ("a.npz", "b.npz"))
    assert one == other


@pytest.mark.parametrize("suffix", ["npz", "zarr"])
def test_big_views_pass_through_in_parts(tmp_path, suffix):
    logits = np.zeros((200_000, 10), dtype=np.float32)
    views = Views(logits, {f"v{i}": logits for i in range(10)})  # 8 MB each, 80 MB in all
    tracemalloc.start()
    views.write(tmp_path / f"v.{suffix}")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40e6


def test_a_name_without_a_known_ending_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"\.npz or \.zarr, got 'v\.txt'"):
        make().write(tmp_path / "v.txt")


def test_a_folder_of_zarr_that_is_not_views_is_not_replaced(tmp_path):
    folder = tmp_path / "mine.zarr"
    folder.mkdir()
    (folder / "zarr.json").write_text(json.dumps({"attributes": {"recal": "notes", "of": "recal"}}))
    with pytest.raises(FileError, match="did not write"):
        make().write(folder)
    assert "notes" in (folder / "zarr.json").read_text()


def test_a_full_disk_leaves_the_old_views(target, monkeypatch):
    make(count=1).write(target)

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(views_module, "_write_array", full)
    monkeypatch.setattr("recal.files.zarr_views._describe_array", full)
    with pytest.raises(FileError, match=r"No space left on device\. No files were written"):
        make(count=3).write(target)
    assert_same(read_views(target), make(count=1))
    assert [p.name for p in target.parent.iterdir()] == [target.name]


def write_npz(path, **arrays):
    np.savez(path, **{"logits": LOGITS, **arrays})
    return path


def lying(path, shape, descr="<f4"):
    """An array that declares another shape than it has."""
    with zipfile.ZipFile(path, "w") as archive, archive.open("logits.npy", "w") as member:
        np.lib.format.write_array_header_1_0(
            member, {"descr": descr, "fortran_order": False, "shape": shape}
        )
        member.write(LOGITS.tobytes())
    return path


NPZ = {
    "says-less": (lambda p: lying(p, (2, 3)), "declares 24 bytes and has 72"),
    "says-more": (lambda p: lying(p, (10**9, 3)), "declares 12,000,000,000 bytes and has 72"),
    "no-width": (lambda p: lying(p, (10**12,), "<U0"), "declares 1,000,000,000,000 bytes"),
    "no-characters": (
        lambda p: write_npz(p, labels=np.full(6, -1, "i4").view("<U1")),
        "is damaged",
    ),
    "text": (lambda p: p.write_text("logits") and p, "not a complete .npz file"),
    "empty": (lambda p: p.write_bytes(b"") or p, "not a complete .npz file"),
    "no-logits": (lambda p: np.savez(p, probs=LOGITS) or p, "holds: probs"),
    "objects": (lambda p: write_npz(p, logits=np.array([[{}, 1]], dtype=object)), "objects"),
    "ints-as-specs": (lambda p: write_npz(p, transforms=[1], transformed=[LOGITS]), "int64"),
    "twice": (lambda p: write_npz(p, transforms=["a"] * 2, transformed=[LOGITS] * 2), "twice"),
    "no-stack": (lambda p: write_npz(p, transforms=["a"]), r"\(1, 6, 3\); got .*\(0, 6, 3\)"),
    "three-axes": (lambda p: write_npz(p, logits=LOGITS[None]), r"got \(1, 6, 3\)"),
    "nan": (lambda p: write_npz(p, logits=LOGITS * np.nan), "row 0, column 0 is nan"),
    "probabilities": (lambda p: write_npz(p, logits=np.full((20, 4), 0.25)), "probabilities"),
    "labels": (lambda p: write_npz(p, labels=[0] * 5), "6 samples but 5 labels"),
    "strength": (lambda p: write_npz(p, transforms=["zoom:9"], transformed=[LOGITS]), "zoom"),
}


@pytest.mark.parametrize("name", NPZ)
def test_a_bad_file_is_refused_in_one_sentence(name, tmp_path):
    build, words = NPZ[name]
    path = build(tmp_path / f"{name}.npz")
    with pytest.raises(RecalError, match=words) as refused:
        read_views(path)
    assert str(path) in str(refused.value)


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(FileError, match="no file or folder"):
        read_views(tmp_path / "nothing.npz")
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(FileError, match="not a regular file"):
        read_views(tmp_path / "pipe.npz")


def test_a_url_is_refused(tmp_path, capsys):
    url = "s3://bucket/views.zarr"
    views = make()
    for use in (read_views, views.write, load, lambda path: save(Plan(), path)):
        with pytest.raises(InputError, match=r"s3://bucket/views\.zarr is a URL"):
            use(url)
    assert run(["fit", url, "--out", str(tmp_path / "c.recal")]) == 2
    assert "is a URL" in capsys.readouterr().err


# --- zarr groups of other programs


@pytest.fixture
def group(tmp_path):
    group = zarr.open_group(tmp_path / "own.zarr", mode="w")
    arrays = {"logits": LOGITS, "transformed": np.stack([LOGITS, LOGITS * 2]), "labels": [0] * 6}
    arrays |= {"transforms": ["flip", "b"], "classes": WORDS, "extra": [1]}
    for name, values in arrays.items():
        group.create_array(name, data=np.asarray(values), compressors=None)
    return tmp_path / "own.zarr"


def test_a_zarr_group_made_by_hand_is_read(group):
    views = read_views(group)
    assert [str(transform) for transform in views.transforms] == ["flip", "b"]
    np.testing.assert_array_equal(views.logits, LOGITS)
    np.testing.assert_array_equal(views.transformed("b"), LOGITS * 2)
    assert views.labels.tolist() == [0] * 6
    assert views.classes.tolist() == WORDS.tolist()


def packed(group, **options):
    zarr.open_group(group).create_array("logits", data=LOGITS, overwrite=True, **options)


def declaring(group, **changes):
    path = group / "labels" / "zarr.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def outside(group):
    chunk = group / "logits/c/0/0"
    chunk.rename(group.parent / "secret")
    chunk.symlink_to(group.parent / "secret")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (packed, "packed by 'zstd'"),
        (lambda group: zarr.open_group(group).create_array("ids", shape=6, dtype=str), "`ids`"),
        (lambda group: packed(group, chunks=(2, 3), shards=(6, 3)), "packed by 'sharding_indexed'"),
        (lambda group: declaring(group, shape=[10**9]), "claim to hold"),
        (lambda group: declaring(group, codecs=[{"name": "numcodecs.pickle"}]), "pickle"),
        (lambda group: (group / "logits/c/0/0").unlink(), "lacks chunks"),
        (outside, "outside"),
        (lambda group: (group / "zarr.json").write_text("[" * 100_000), "cannot be used"),
        (lambda group: (group / "zarr.json").unlink(), "without views"),
    ],
)
def test_a_hostile_zarr_group_is_refused(group, damage, words):
    damage(group)
    with pytest.raises(FileError, match=words) as refused:
        read_views(group)
    assert str(group) in str(refused.value)
