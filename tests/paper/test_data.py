from __future__ import annotations

import numpy as np
import pytest

from paper.training import data
from recal.errors import FileError, InputError


def same(one: data.Dataset, other: data.Dataset) -> bool:
    parts = ("train_images", "train_labels", "test_images", "test_labels")
    return all(np.array_equal(getattr(one, part), getattr(other, part)) for part in parts)


def test_the_binary_and_the_png_layout_of_cifar10_give_the_same_images(tmp_path, pictures):
    pictures.cifar10(tmp_path / "binary")
    pictures.cifar10_png(tmp_path / "png" / "cifar10")
    binary, png = (data.load("cifar10", tmp_path / one, verify=False) for one in ("binary", "png"))
    assert same(binary, png)
    images, labels = pictures.coloured(40, 10, seed=1)
    np.testing.assert_array_equal(binary.train_images[:40], images)
    np.testing.assert_array_equal(binary.train_labels[:40], labels)
    assert binary.train_images.shape == (200, 32, 32, 3)
    assert binary.n_classes == 10


def test_cifar100_takes_the_fine_label(tmp_path, pictures):
    pictures.cifar100(tmp_path)
    loaded = data.load("cifar100", tmp_path, verify=False)
    np.testing.assert_array_equal(loaded.test_labels, pictures.coloured(120, 100, seed=2)[1])
    assert loaded.n_classes == 100


def test_an_archive_with_another_checksum_is_refused(tmp_path, pictures):
    pictures.cifar100(tmp_path)
    with pytest.raises(FileError, match="03b5dce01913d631647c71ecec9e9cb8"):
        data.load("cifar100", tmp_path)


@pytest.mark.parametrize("layout", ["cifar10", "cifar10_png"])
def test_images_that_are_not_the_official_ones_are_refused(tmp_path, pictures, layout):
    getattr(pictures, layout)(tmp_path)
    with pytest.raises(FileError, match=r"data_batch_1.*5dd7e06a14cb22eb9f671a540d1b7c25"):
        data.load("cifar10", tmp_path)


def test_a_cut_batch_is_refused_with_its_size(tmp_path, pictures):
    pictures.cifar10(tmp_path)
    path = tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FileError, match=r"data_batch_3\.bin .*3073 bytes, got 122919"):
        data.load("cifar10", tmp_path, verify=False)


def test_mnist_is_read_from_plain_and_gzipped_idx_files(tmp_path, pictures):
    pictures.mnist(tmp_path / "fashion-mnist")
    loaded = data.load("fashion-mnist", tmp_path)
    images, labels = pictures.coloured(60, 10, side=28, channels=1, seed=2)
    np.testing.assert_array_equal(loaded.test_images, images)
    np.testing.assert_array_equal(loaded.test_labels, labels)


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (b"\x00\x00\x0d\x01\x00\x00\x00\x01\x00\x00\x00\x00", "no IDX file of bytes"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x05abc", "declares"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x03abc", r"\(n, height, width\), got the shape \(3,\)"),
    ],
)
def test_other_bytes_are_not_read_as_idx(tmp_path, pictures, blob, message):
    pictures.mnist(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(blob)  # read before the gzipped one
    with pytest.raises(FileError, match=rf"(?s)train-images-idx3-ubyte.*{message}"):
        data.load("mnist", tmp_path)


def test_an_image_folder_is_decoded_when_asked_with_the_usual_crop(tmp_path, pictures):
    pictures.imagenet(tmp_path)
    loaded = data.load("imagenet", tmp_path)
    assert len(loaded.train_labels) == 0
    assert loaded.n_classes == 3
    np.testing.assert_array_equal(loaded.test_labels, np.repeat([0, 1, 2], 8))
    assert loaded.test_images.read(range(2, 5)).shape == (3, 224, 224, 3)


def test_the_split_is_disjoint_complete_and_seeded(tmp_path, pictures):
    pictures.cifar10(tmp_path)
    loaded = data.load("cifar10", tmp_path, verify=False)
    split = data.split(loaded, seed=3)
    np.testing.assert_array_equal(
        np.sort(np.concatenate([split.train, split.validation])), np.arange(200)
    )
    assert len(split.validation) == 20
    np.testing.assert_array_equal(split.validation, data.split(loaded, seed=3).validation)
    assert not np.array_equal(split.validation, data.split(loaded, seed=4).validation)


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no data set 'cifar'.*cifar10"):
        data.load("cifar", tmp_path)
    with pytest.raises(FileError, match="nowhere"):
        data.load("cifar10", tmp_path / "nowhere", verify=False)
