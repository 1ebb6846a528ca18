"""Tables reach a model by the names of their columns, with the types of the fit."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

import recal
from recal import CalibratedClassifier, TemperatureScaling, collect
from recal.collecting import apply, as_model
from recal.collecting.files import clusters_by_name, open_path
from recal.collecting.tables import TableSource, arrange_columns, open_table
from recal.errors import InputError

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(RNG.normal(size=(300, 4)), columns=["age", "height", "weight", "dose"])
Y = (FRAME.to_numpy() @ [2.0, -1.0, 0.5, 0.0] + RNG.normal(size=300) > 0).astype(int)
BY_POSITION = LogisticRegression().fit(FRAME.to_numpy(), Y)


class Named(LogisticRegression):
    """Reads by position and knows the names of its columns, as LightGBM's class does."""

    @property
    def feature_name_(self):
        return list(FRAME.columns)

    def decision_function(self, rows):
        return super().decision_function(np.asarray(rows))


def fitted_by_name():
    model = Named()
    model.__dict__.update(BY_POSITION.__dict__)
    return model


@pytest.mark.parametrize("model", [BY_POSITION, fitted_by_name()], ids=["array", "names"])
def test_columns_in_another_order_give_the_same_answers(model, tmp_path):
    calibrator = TemperatureScaling().fit(collect(model, FRAME, None, labels=Y))
    calibrator = recal.load(recal.save(calibrator, tmp_path / "calibration.recal"))
    classifier = CalibratedClassifier(model, TemperatureScaling()).fit(FRAME, Y)
    expected = apply(calibrator, model, FRAME).probs
    swapped = FRAME[["dose", "weight", "height", "age"]]
    assert np.array_equal(apply(calibrator, model, swapped).probs, expected)
    assert np.array_equal(classifier.predict_proba(swapped), classifier.predict_proba(FRAME))
    assert np.array_equal(classifier.predict(swapped), BY_POSITION.predict(FRAME.to_numpy()))
    for other, named in [
        (FRAME.rename(columns={"age": "years"}), "age"),
        (FRAME.assign(extra=1.0), "extra"),
    ]:
        with pytest.raises(InputError, match=named):
            apply(calibrator, model, other)


def test_a_model_that_knows_its_columns_gets_them_in_order_before_any_fit():
    swapped = collect(fitted_by_name(), FRAME[FRAME.columns[::-1]], None)
    assert np.array_equal(swapped.logits, collect(BY_POSITION, FRAME, None).logits)


def test_codes_of_categories_do_not_depend_on_the_file(tmp_path):
    fit = TableSource(pd.DataFrame({"ward": ["01", "1", "2", "x"]}))
    (tmp_path / "new.csv").write_text("ward\n2\n1\n01\n\n")
    new = open_table(tmp_path / "new.csv")
    assert isinstance(new, TableSource)
    ward = new.arranged(["ward"], fit.reading["levels"]).values["ward"]
    assert ward.dropna().tolist() == ["2", "1", "01"]
    assert ward.cat.codes.tolist() == [2, 1, 0, -1]


def test_a_group_column_stays_an_input_if_the_model_was_fitted_on_it(tmp_path):
    FRAME.assign(age=FRAME["age"].round(), who=range(300), label=Y).to_csv(tmp_path / "t.csv")
    frame = pd.read_csv(tmp_path / "t.csv", index_col=0)
    frame.to_csv(tmp_path / "t.csv", index=False)
    source = open_path(tmp_path / "t.csv", group_column="age", cluster_column="who")
    model = as_model(LogisticRegression().fit(FRAME, Y))
    arranged = arrange_columns(source, model)
    assert arranged.reading["columns"] == tuple(FRAME.columns)
    assert arranged.groups[0] == str(frame["age"][0])
    assert collect(model, source, None).groups is not None


@pytest.mark.parametrize("known", ["body mass", "body_mass"])
def test_a_message_names_only_the_columns_that_are_missing(known):
    table = TableSource(pd.DataFrame({"body mass": [1.0], "age": [2.0]}))
    with pytest.raises(InputError, match="no column 'heart rate', which"):
        table.arranged([known, "heart rate"])


def test_clusters_are_text_as_written_and_never_missing(tmp_path):
    (tmp_path / "t.csv").write_text("a,who\n1,007\n2,7\n3,NA\n")
    source = open_path(tmp_path / "t.csv", cluster_column="who")
    assert source.clusters.tolist() == ["007", "7", "NA"]
    (tmp_path / "t.csv").write_text("a,who\n1,x\n2,\n")
    with pytest.raises(InputError, match="row 2"):
        open_path(tmp_path / "t.csv", cluster_column="who")


def test_a_pattern_of_clusters_matches_the_file_name_alone():
    names = ["cat/anna_1.png", "dog/anna_2.png", "dog/ben_1.png"]
    assert clusters_by_name(names, r"(.+)_\d+").tolist() == ["anna", "anna", "ben"]
    with pytest.raises(InputError, match=r"not dog/ben_1\.png"):
        clusters_by_name(names, "anna")


def test_clusters_of_files_are_not_their_classes(tmp_path):
    for name in ("cat/film1/1.txt", "cat/film1/2.txt", "dog/film2/1.txt", "dog/film3/1.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("words")
    assert len(set(open_path(tmp_path, cluster_by="parent").clusters)) == 3
    (tmp_path / "dog/film3/1.txt").rename(tmp_path / "dog/film2/2.txt")
    with pytest.raises(InputError, match="classes"):
        open_path(tmp_path, cluster_by="parent")
