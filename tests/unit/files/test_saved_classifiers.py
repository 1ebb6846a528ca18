"""A classifier in a file: all but its model and its code, which are given again."""

from __future__ import annotations

import json

import numpy as np
import pytest

from recal import CalibratedClassifier, ReCal, TemperatureScaling, load, save
from recal.errors import FileError, InputError, NotFittedError
from recal.transforms import Named

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (60, 8, 8), dtype=np.uint8)
WEIGHTS = RNG.normal(size=(64, 3))
LABELS = RNG.integers(0, 3, 60)


def model(batch):
    return np.asarray(batch).reshape(len(batch), -1) @ WEIGHTS


def halve(batch):
    return batch / 510


def fitted(**changes) -> CalibratedClassifier:
    calibrator = ReCal(max_iter=5, random_state=0)
    settings = {"calibrator": calibrator, "pool": "zoom:0.5-0.9:3", "preprocess": halve, **changes}
    return CalibratedClassifier(model, **settings).fit(IMAGES, LABELS)


@pytest.mark.filterwarnings("ignore:.*have the same effect:UserWarning")
def test_a_classifier_answers_the_same_with_its_model_given_again(tmp_path):
    before = fitted(batch_size=7, random_state=3)
    after = load(save(before, tmp_path / "c.recal"), model=model, preprocess=halve)
    np.testing.assert_array_equal(after.predict_proba(IMAGES), before.predict_proba(IMAGES))
    assert (after.batch_size, after.random_state, after.pool) == (7, 3, "zoom:0.5-0.9:3")
    assert after.pool_ == before.pool_
    np.testing.assert_array_equal(
        after.fit(IMAGES, LABELS).predict_proba(IMAGES), before.predict_proba(IMAGES)
    )


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
def test_what_is_missing_is_named(tmp_path):
    path = save(fitted(), tmp_path / "c.recal")
    with pytest.raises(InputError, match="model=your_model"):
        load(path, preprocess=halve)
    with pytest.raises(InputError, match=":halve'"):
        load(path, model=model).predict_proba(IMAGES)
    path = save(TemperatureScaling().fit([[0.0, 2.0], [3.0, 1.0]], [0, 1]), tmp_path / "t")
    with pytest.raises(InputError, match="holds a calibrator, which has no use for a model"):
        load(path, model=model)
    with pytest.raises(NotFittedError):
        save(CalibratedClassifier(model), tmp_path / "x")


def test_own_transformations_get_their_code_back(tmp_path):
    darker = Named("darker", lambda batch: batch // 2)
    before = fitted(pool=["zoom:0.5", darker])
    path = save(before, tmp_path / "c")
    after = load(
        path, transforms={"darker": lambda batch: batch // 2}, model=model, preprocess=halve
    )
    np.testing.assert_array_equal(after.predict_proba(IMAGES), before.predict_proba(IMAGES))


SYSTEM = {"$": "calibrator", "class": "os.system"}


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("settings", {"model": "x"}, "cannot come from a file"),
        ("settings", {"batch_size": "many"}, "got 'many'"),
        ("settings", {"danger": 1}, "no parameter 'danger'"),
        ("settings", None, "must be objects"),
        ("pool", ["zoom:0.5"], "list of transformations"),
        ("calibrator", {**SYSTEM, "params": {}, "state": {}}, "a calibrator 'os.system'"),
        ("calibrator", {"$": "transform", "spec": "zoom:0.5"}, "must be a fitted calibrator"),
    ],
)
def test_a_file_that_lies_is_refused(key, value, words, tmp_path):
    path = save(fitted(), tmp_path / "c")
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    outer = json.loads(raw[8 : 8 + length])
    inner = json.loads(outer["__metadata__"]["recal"])
    inner[key] = value
    outer["__metadata__"]["recal"] = json.dumps(inner)
    header = json.dumps(outer).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + raw[8 + length :])
    with pytest.raises(FileError, match=words):
        load(path, model=model, preprocess=halve)
