"""The whole job in one call: parts kept apart, a folder that holds all, and a run that resumes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from recal import AutoCalibration, Views, load, read_views
from recal.calibrators import TemperatureScaling
from recal.errors import FileError, InputError
from recal.workflow.folder import calibration_in
from recal.workflow.job import calibrate, calibrate_views
from recal.workflow.run import Settings, split, today


def overconfident(batch):
    """Sees the left half of each picture only, and is far too sure of it."""
    score = np.asarray(batch, dtype=float)[:, :, :4].sum((1, 2)) / 200
    return np.stack([-score, score], axis=1)


@pytest.fixture(scope="module", name="problem")
def bright_and_dark_images():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 800)
    images = 128 + 40 * rng.normal(size=(800, 8, 8)) + np.where(y == 1, 10, -10)[:, None, None]
    return np.clip(images, 0, 255).astype(np.uint8), y


def centred(batch):
    return np.asarray(batch, dtype=float) - 128


@pytest.fixture(scope="module")
def done(problem, tmp_path_factory):
    folder = tmp_path_factory.mktemp("job") / "calibrated"
    told = []
    how = {"labels": problem[1], "preprocess": centred, "progress": False}
    settings = Settings(risk=0.1, say=told.append)
    found = calibrate(
        overconfident, problem[0], folder, settings, pool="flip+shift", pilot=300, **how
    )
    return found, folder, told


def test_the_three_parts_hold_every_row_once():
    parts = split(1001, 0)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(1001))
    assert [len(rows) for rows in parts] == [500, 301, 200]
    assert np.array_equal(split(1001, 0)[0], parts[0])
    assert not np.array_equal(split(1001, 1)[0], parts[0])
    with pytest.raises(InputError, match="2 clusters, too few"):
        split(200, 0, np.repeat(["a", "b"], 100))


def test_confidence_improves_and_no_answer_changes(done):
    found, _, _ = done
    assert found.scores["after"]["nll"] < found.scores["before"]["nll"]
    assert found.scores["after"]["error_rate"] == found.scores["before"]["error_rate"]
    assert found.decision.coverage > 0.9


def test_the_folder_holds_a_calibration_that_knows_its_rule(done, problem):
    found, folder, _ = done
    again = load(calibration_in(folder))
    assert again.decision_ == found.decision.rule
    judged = read_views(folder / "check.zarr")
    assert again.accept(judged).sum() == found.n_accepted
    wrong = again.predict(judged) != judged.labels
    assert (again.accept(judged) & wrong).sum() == found.n_errors
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["parts"] == {"fit": 400, "decide": 240, "check": 160}
    assert summary["decision"]["coverage"] == found.decision.coverage
    assert "<html" in (folder / "report.html").read_text()


def test_cross_fitting_decides_on_all_but_the_judging_inputs(done, problem, tmp_path, recwarn):
    told = []
    how = {"labels": problem[1], "preprocess": centred, "progress": False}
    settings = Settings(risk=0.1, calibrator=TemperatureScaling(), cross_fit=True, say=told.append)
    found = calibrate(overconfident, problem[0], tmp_path, settings, **how)
    assert found.sizes == (640, 640, 160)
    assert found.decision.n_samples == 640
    assert found.decision.n_fitted == 0
    assert "Split 800 labelled inputs: 640 to fit and to decide, 160 to check." in told[0]
    assert not [warning for warning in recwarn if "guarantee" in str(warning.message)]
    again = load(calibration_in(tmp_path))
    assert again.decision_ == found.decision.rule
    judged = read_views(tmp_path / "cross-fit" / "check.zarr")
    assert np.array_equal(
        judged.labels, read_views(done[1] / "check.zarr").labels
    )  # the same inputs judge
    assert again.accept(judged).sum() == found.n_accepted


def test_page_and_terminal_use_the_checking_inputs_and_name_them(done, monkeypatch):
    result, folder, _ = done
    page, lines = (folder / "report.html").read_text(), " ".join(result.lines())
    share = 100 * result.n_accepted / 160
    assert f"{share:.1f}\u00a0% of the answers can be automated" in page
    assert f"{share:.1f}% of the answers can be automated" in lines
    counts = f"{result.n_accepted} of the 160 checking inputs accepted, {result.n_errors} wrong"
    assert counts in lines
    assert f'for="threshold">{result.decision.threshold:.6g}</output>' in page
    accuracy = 100 * (1 - result.scores["after"]["error_rate"])
    assert f"{accuracy:.1f}\u00a0% on 160 checking inputs" in page
    assert f"Accuracy {accuracy:.1f}%" in lines
    assert f"{result.scores['after']['nll']:.4f}" in page
    assert f"{result.scores['after']['nll']:.4f}" in lines
    assert "<small>160 checking inputs</small>" in page


def test_the_date_of_the_page_can_be_fixed(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1000000000")
    assert today() == "2001-09-09"


def test_a_pilot_tries_the_whole_pool_on_some_of_the_fitting_inputs(done):
    _, folder, told = done
    assert read_views(folder / "fit.pilot.zarr").n_samples == 300
    assert any("On 300 inputs it chose" in line for line in told)


def test_the_same_command_resumes_what_was_interrupted(problem, tmp_path):
    asked = []

    def counted(batch):
        asked.append(len(batch))
        if len(asked) == 9:  # the first batch is the check before the work
            raise KeyboardInterrupt
        return overconfident(batch)

    how = {"labels": problem[1], "preprocess": centred, "progress": False, "classes": [0, 1]}
    how |= {"pool": None, "batch_size": 50}
    settings = Settings(calibrator=TemperatureScaling())
    with pytest.raises(KeyboardInterrupt):
        calibrate(counted, problem[0], tmp_path / "out", settings, **how)
    with pytest.raises(FileError, match="run the same recal calibrate command again"):
        calibration_in(tmp_path / "out")
    asked.extend([0] * 10)
    before = len(asked)
    calibrate(counted, problem[0], tmp_path / "out", settings, **how)
    assert sum(asked[before:]) < 800
    assert calibration_in(tmp_path / "out").is_file()


@pytest.mark.parametrize(
    ("name", "wrong"), [("risk", 2.0), ("confidence", 1.0), ("random_state", -1)]
)
def test_impossible_settings_are_refused(name, wrong):
    with pytest.raises(InputError, match=f"`{name}` must be"):
        Settings(**{name: wrong})


def test_warnings_reach_the_page_and_a_summary_that_is_valid_json(tmp_path):
    rng = np.random.default_rng(0)
    y = np.repeat(rng.integers(0, 2, 100), 3)
    score = (2 * y - 1) + np.repeat(rng.normal(size=100), 3)
    settings = Settings(risk=0.2, calibrator=TemperatureScaling())
    with pytest.warns(UserWarning, match="cop"):
        result = calibrate_views(
            Views(np.column_stack([-score, score]), labels=y), tmp_path / "out", settings
        )
    text = (tmp_path / "out" / "summary.json").read_text()
    summary = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert any("cop" in line for line in summary["warnings"])
    assert result.to_dict()["warnings"] == summary["warnings"]
    html = (tmp_path / "out" / "report.html").read_text()
    assert html.index('id="warnings"') < html.index('id="headline"')


def test_the_accuracy_is_that_of_the_model_and_of_the_calibrated_answers(tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 1000)
    logits = 3 * np.eye(3)[y] + rng.normal(size=(1000, 3)) + [3, 0, 0]  # class 0 too often
    settings = Settings(risk=0.2, calibrator=AutoCalibration(answers="free"))
    result = calibrate_views(Views(logits, labels=y), tmp_path / "out", settings)
    before, after = (1 - result.scores[name]["error_rate"] for name in ("before", "after"))
    assert f"Accuracy {before:.1%} -> {after:.1%}, NLL" in " ".join(result.lines())
    assert after > before + 0.1
