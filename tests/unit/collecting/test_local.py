"""collect in memory: what comes out, and what is refused before work begins."""

from __future__ import annotations

import numpy as np
import pytest

from recal import collect, load, save
from recal.calibrators import ViewAveraging
from recal.collecting import Normalize, apply
from recal.errors import FileError, InputError
from recal.transforms import Named, ZoomOut


def test_each_view_is_the_models_answer_to_the_preprocessed_transformed_input(
    images, labels, model
):
    how = {"labels": labels, "preprocess": lambda x: 255.0 - x}
    views = collect(model, images, "zoom:0.5+brightness:0.3", **how)
    np.testing.assert_array_equal(views.logits, model(255.0 - images))
    zoomed = model(255.0 - ZoomOut(0.5)(images))
    np.testing.assert_array_equal(views.transformed("zoom:0.5"), zoomed)
    assert [str(t) for t in views.transforms] == ["zoom:0.5", "brightness:0.3"]
    assert views.labels.tolist() == labels.tolist()


@pytest.mark.parametrize("batch_size", [1, 7, 19, 20, 1000])
def test_the_size_of_batches_does_not_matter_to_a_model_that_works_by_sample(
    images, model, batch_size
):
    views = collect(model, images, "zoom:0.5", batch_size=batch_size)
    expected = collect(model, images, "zoom:0.5")
    np.testing.assert_array_equal(views.logits, expected.logits)
    np.testing.assert_array_equal(views.transformed("zoom:0.5"), expected.transformed("zoom:0.5"))


def test_code_that_works_in_place_spoils_neither_the_inputs_nor_other_views(images, model):
    def darkened(batch):
        batch //= 2
        return batch

    def hasty(batch):
        answer = model(batch)
        batch[:] = 0
        return answer

    before = images.copy()
    views = collect(hasty, images, [darkened, "zoom:0.5"])
    np.testing.assert_array_equal(images, before)
    clean = collect(model, images, [Named("darkened", lambda batch: batch // 2), "zoom:0.5"])
    np.testing.assert_array_equal(views.logits, clean.logits)
    for transform in clean.transforms:
        np.testing.assert_array_equal(views.transformed(transform), clean.transformed(transform))


def test_your_own_transformations_are_given_again_as_functions_or_by_name(
    tmp_path, images, labels, model
):
    def flipped(batch):
        return batch[:, :, ::-1]

    views = collect(model, images, [flipped], labels=labels)
    save(ViewAveraging().fit(views), tmp_path / "own.recal")
    calibrator = load(tmp_path / "own.recal")  # which knows the transformation by its name only
    expected = calibrator.predict_proba(views)
    for given in ([flipped], {"flipped": flipped}, [Named("flipped", flipped)]):
        found = apply(calibrator, model, images, transforms=given)
        np.testing.assert_array_equal(found.probs, expected)
    with pytest.raises(InputError, match=r"'flipped' is known by .*transforms=\{'flipped'"):
        apply(calibrator, model, images)
    with pytest.raises(InputError, match=r"as \{name: function\}"):
        apply(calibrator, model, images, transforms=flipped)


def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path, images):
    (tmp_path / "file").touch()

    def never(batch):
        raise AssertionError("the work began")

    with pytest.raises(FileError, match="Cannot write"):
        collect(never, images, None, out=tmp_path / "file" / "views.npz")


def test_another_number_of_classes_is_refused(images):
    def growing(batch):
        return batch.reshape(len(batch), -1)[:, : 2 + (len(batch) < 8)].astype(float)

    with pytest.raises(InputError, match=r"gave 2 columns of .* and 3 of float64 for batch 2"):
        collect(growing, images, None, batch_size=8)


def test_a_nan_names_the_sample_and_the_view(images, model):
    def broken(batch):
        logits = model(batch)
        return np.where((batch.reshape(len(batch), -1).max(1) < 130)[:, None], np.inf, logits)

    with pytest.raises(InputError, match=r"inf for sample 0, class 0, in the view .brightness"):
        collect(broken, images, "zoom:0.9+brightness:0.5")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "`batch_size` must be a whole number of at least 1, got 0"),
        ({"batch_size": 2.5}, "got 2.5"),
        ({"engine": "spark"}, "`engine` must be .*, got 'spark'"),
        ({"out": "views.csv"}, r"must end in \.zarr .* or \.npz .*, got 'views.csv'"),
        ({"batchsize": 5}, "no option `batchsize`.*resize, crop, pixels"),
        ({"resize": 5}, "resize: only inputs read from a file or folder"),
        ({"labels": [0, 1]}, "20 samples but 2 labels"),
        ({"classes": ["a", "b"], "labels": ["a"] * 20}, "each of the 3 columns"),
    ],
)
def test_bad_options_are_refused(images, model, options, message):
    with pytest.raises(InputError, match=message):
        collect(model, images, None, **options)


@pytest.mark.parametrize("shape", [(2, 5, 6), (2, 5, 6, 3), (2, 3, 5, 6)])
@pytest.mark.parametrize("channels", ["first", "last"])
def test_normalize_agrees_between_arrays_and_tensors(shape, channels):
    import torch

    batch = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    n = 1 if len(shape) == 3 else 3
    normalize = Normalize(mean=[0.1, 0.2, 0.3][:n], std=[0.5, 0.6, 0.7][:n], channels=channels)
    result = normalize(batch)
    assert result.shape == ((2, n, 5, 6) if channels == "first" else (2, 5, 6, n))
    np.testing.assert_allclose(normalize(torch.from_numpy(batch)).numpy(), result, atol=1e-6)
    last = n - 1
    plane = batch if len(shape) == 3 else batch[..., last] if shape[-1] == 3 else batch[:, last]
    expected = (plane / 255 - normalize.mean[last]) / normalize.std[last]
    np.testing.assert_allclose(
        result[:, last] if channels == "first" else result[..., last], expected, atol=1e-5
    )


def test_normalize_refuses_what_it_cannot_place():
    with pytest.raises(InputError, match="one of 'first', 'last', 'keep', got 'middle'"):
        Normalize(channels="middle")
    with pytest.raises(InputError, match="must not be 0"):
        Normalize(std=0)
    with pytest.raises(InputError, match=r"got \(2, 3\)"):
        Normalize()(np.zeros((2, 3)))
    with pytest.raises(InputError, match="each of 3 channels, got 2"):
        Normalize(mean=[1, 2])(np.zeros((2, 3, 9, 9)))
