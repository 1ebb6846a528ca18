"""What `collect` did to inputs is kept with views and calibrators: nothing need be said again, or
can be said wrong.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recal import (
    CalibratedClassifier,
    CalibratedModule,
    TemperatureScaling,
    Views,
    collect,
    load,
    read_views,
    save,
)
from recal.cli.app import run
from recal.collecting import Normalize, apply
from recal.errors import FileError, InputError
from recal.files.probabilities import read_probs
from recal.transforms.preprocessing import Preprocessing
from tests.unit.export.onnx_zoo import linear, with_views

# These tests are about other things than the warnings of small fits.
pytestmark = pytest.mark.filterwarnings("ignore::recal.errors.DoubtfulLabelsWarning")

NORMALIZE = Normalize(mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
TYPED = ["--mean", "0.4,0.5,0.6", "--std", "0.2,0.25,0.3"]


def images(n: int = 160, grey: bool = False) -> np.ndarray:
    return np.random.default_rng(1).integers(
        0, 256, (n, 8, 8) if grey else (n, 8, 8, 3), dtype=np.uint8
    )


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """collect and fit on the command line: the only place where preprocessing is typed."""
    folder = tmp_path_factory.mktemp("kept")
    linear(folder / "net.onnx", (3, 8, 8), 4)
    labels = np.random.default_rng(2).integers(0, 4, 160)
    np.savez(folder / "data.npz", images=images(), labels=labels)
    typed = ["--model", str(folder / "net.onnx"), "--data", str(folder / "data.npz"), *TYPED]
    typed += ["--pool", "zoom:0.8+brightness:0.7+flip"]
    assert run(["collect", *typed, "--out", str(folder / "views.zarr")]) == 0
    out = str(folder / "it.recal")
    method = ["--method", "recal", "--max-iter", "6", "--tol", "0"]
    assert run(["fit", str(folder / "views.zarr"), *method, "--out", out]) == 0
    return folder


def test_collect_fit_and_export_give_what_collect_fit_and_apply_give(
    fitted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(fitted / "new.npz", images=images(40))
    model, calibration = str(fitted / "net.onnx"), str(fitted / "it.recal")
    applied = ["apply", calibration, "--model", model, "--data", str(fitted / "new.npz")]
    assert run([*applied, "--out", str(fitted / "probs.npz")]) == 0
    assert run(["export", calibration, "--model", model, "--out", str(fitted / "whole.onnx")]) == 0
    pixels, found = with_views(fitted / "whole.onnx", images(40))
    np.testing.assert_allclose(found["probs"], read_probs(fitted / "probs.npz").probs, atol=1e-6)
    transforms = load(calibration).plan_.transforms
    assert transforms
    np.testing.assert_array_equal(
        pixels, np.concatenate([transform(images(40)) for transform in transforms])
    )
    capsys.readouterr()
    assert run(["plan", calibration]) == 0
    assert "8x8x3, with --divide 255 --mean 0.4,0.5,0.6" in capsys.readouterr().out


def test_a_contradiction_is_refused_and_a_repetition_is_not(
    fitted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, calibration = str(fitted / "net.onnx"), str(fitted / "it.recal")
    applied = ["apply", calibration, "--model", model, "--data", str(fitted / "data.npz")]
    applied += ["--out", str(fitted / "other.npz"), "--force"]
    exported = ["export", calibration, "--model", model, "--out", str(fitted / "other.onnx")]
    for command in (applied, exported):
        assert run([*command, "--outputs", "probabilities"]) == 2
        told = " ".join(capsys.readouterr().err.split())
        assert "--outputs 'probabilities' contradicts the calibration" in told
    assert run([*exported, "--dtype", "float32"]) == 2
    assert "uint8, as for the fit, got float32" in capsys.readouterr().err


def test_torch_modules_and_classifiers_take_the_normalisation_of_the_views(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 4))
    labels = np.arange(160) % 4
    calibrator = TemperatureScaling().fit(
        collect(network, images(), None, preprocess=NORMALIZE, labels=labels)
    )
    expected = apply(calibrator, network, images(7)).probs
    module = CalibratedModule(network, calibrator)
    with torch.no_grad():
        probs = module(torch.from_numpy(images(7))).softmax(1).numpy()
    np.testing.assert_allclose(probs, expected, atol=1e-6)
    with pytest.raises(InputError, match="contradicts the calibration"):
        CalibratedModule(network, calibrator, preprocess=Normalize(mean=0.5))
    classifier = CalibratedClassifier(
        network, TemperatureScaling(), pool="flip", preprocess=NORMALIZE
    )
    classifier.fit(images(), labels)
    again = load(save(classifier, tmp_path / "it.recal"), model=network)
    np.testing.assert_array_equal(
        again.predict_proba(images(7)), classifier.predict_proba(images(7))
    )


def doubled(batch: Any) -> Any:
    return batch * 2


def test_a_function_of_ones_own_must_be_given_again() -> None:
    logits = np.random.default_rng(0).normal(size=(60, 3))
    views = collect(lambda batch: batch, logits, None, preprocess=doubled, labels=np.arange(60) % 3)
    calibrator = TemperatureScaling().fit(views)
    with pytest.raises(InputError, match=r"with the function '.*:doubled'"):
        apply(calibrator, lambda batch: batch, logits)
    assert apply(calibrator, lambda batch: batch, logits, preprocess=doubled).probs.shape == (60, 3)


@pytest.mark.parametrize(
    ("fit", "new", "words"),
    [
        (
            {"normalize": Normalize(mean=0.1)},
            {"normalize": Normalize(mean=0.2)},
            "--mean 0.2 --std 1 --channels first, and the views of the fit with --divide 255",
        ),
        ({"model": "one"}, {"model": "two"}, "fitted for another model"),
        ({"model": "one"}, {"model": "one"}, ""),
    ],
)
def test_views_of_another_model_or_preprocessing_are_reported(
    fit: Any, new: Any, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logits, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 3
    fitted = TemperatureScaling().fit(Views(logits, labels=y, preprocessing=Preprocessing(**fit)))
    calibration = str(save(fitted, tmp_path / "ts.recal"))
    path = str(Views(logits, preprocessing=Preprocessing(**new)).write(tmp_path / "new.npz"))
    assert run(["apply", calibration, path, "--out", str(tmp_path / "probs.npz")]) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert words in told
    assert ("another model" in told) == ("another model" in words)


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
@pytest.mark.parametrize("name", ["views.npz", "views.zarr"])
def test_views_and_calibrators_keep_it_in_files_and_rows(tmp_path: Path, name: str) -> None:
    kept = Preprocessing(
        NORMALIZE, outputs="probabilities", pixels="rgb", resize=256, crop=224, shape=(2, 2)
    )
    views = Views([[1.0, 2.0], [2.0, 1.0], [0.0, 1.0]], labels=[0, 0, 1], preprocessing=kept)
    read = read_views(views.write(tmp_path / name))
    assert read.preprocessing == kept
    assert read[1:].preprocessing == kept
    calibrator = TemperatureScaling().fit(read)
    assert load(save(calibrator, tmp_path / "ts.recal")).preprocessing_ == kept
    calibrator.fit(read.logits, read.labels)
    assert not hasattr(calibrator, "preprocessing_")
    assert read_views(Views([[1.0, 2.0]]).write(tmp_path / f"old{name}")).preprocessing is None


def test_a_file_that_says_nonsense_is_refused(tmp_path: Path) -> None:
    views = Views([[1.0, 2.0]], preprocessing=Preprocessing(NORMALIZE))
    path = views.write(tmp_path / "views.npz")
    arrays = dict(np.load(path))
    for told in ("[1]", "{", '{"normalize": {"std": 0}}'):
        np.savez(path, **{**arrays, "preprocessing": np.array(told)})
        with pytest.raises((FileError, InputError), match="preprocessing"):
            read_views(path)
    folder = views.write(tmp_path / "views.zarr")
    described = json.loads((folder / "zarr.json").read_text())
    described["attributes"]["recal"]["preprocessing"]["normalize"]["divide"] = 1.0
    (folder / "zarr.json").write_text(json.dumps(described))
    with pytest.raises(FileError, match="not what was written"):
        read_views(folder)
