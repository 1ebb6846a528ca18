"""Binary models with one output: log-odds or the probability of the second class, wherever they
come from.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnx
import pytest

import recal
from recal import Views, collect
from recal.calibrators import TemperatureScaling
from recal.collecting import apply
from recal.collecting.models import as_model
from recal.errors import InputError
from recal.files.probabilities import read_prob_table, read_probs
from tests.unit.export.onnx_zoo import Graph, outputs_of


def scores(n=600, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    return (2 * y - 1) * 1.5 + rng.normal(0, 2, n), y


def sigmoid(s):
    return 1 / (1 + np.exp(-s))


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_log_odds_are_two_columns_everywhere(shape, tmp_path):
    s, y = scores()
    columns = np.stack([np.zeros_like(s), s], axis=1)
    expected = TemperatureScaling().fit(columns, y)
    one = s.reshape(shape)
    np.testing.assert_array_equal(Views(one).logits, columns)
    fitted = TemperatureScaling().fit(one, y)
    np.testing.assert_array_equal(fitted.predict_proba(one), expected.predict_proba(columns))
    np.testing.assert_array_equal(fitted.predict(one), expected.predict(columns))
    stored = {"logits": one, "labels": y, "transforms": ["zoom:0.5"], "transformed": one[None]}
    np.savez(tmp_path / "v.npz", **stored)
    views = recal.read_views(tmp_path / "v.npz")
    np.testing.assert_array_equal(views.logits, columns)
    np.testing.assert_array_equal(views.transformed("zoom:0.5"), columns)
    model = collect(lambda batch: batch.reshape(shape), s, None, labels=y)
    np.testing.assert_array_equal(model.logits, columns)


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_probabilities_are_those_of_the_second_class(shape, tmp_path):
    s, y = scores()
    p = sigmoid(s)
    expected = np.log(np.stack([1 - p, p], axis=1))
    views = collect(lambda batch: batch.reshape(shape), p, None, labels=y, outputs="probabilities")
    np.testing.assert_allclose(views.logits, expected, atol=1e-12)
    np.savez(tmp_path / "p.npz", probs=p.reshape(shape), labels=y)
    np.testing.assert_allclose(read_probs(tmp_path / "p.npz").probs, np.exp(expected), atol=1e-12)


def test_torch_and_scikit_learn_models_with_one_output():
    torch = pytest.importorskip("torch")
    linear_model = pytest.importorskip("sklearn.linear_model")
    s, y = scores()
    x = s[:, None].astype(np.float32)
    net = torch.nn.Linear(1, 1)  # random weights can give outputs that all lie in [0, 1]
    torch.nn.init.constant_(net.weight, 2.0)
    torch.nn.init.constant_(net.bias, -0.5)
    views = collect(net, x, None, labels=y)
    assert views.logits.shape == (len(y), 2)
    np.testing.assert_array_equal(views.logits[:, 0], 0)
    np.testing.assert_allclose(views.logits[:, 1], 2 * s - 0.5, rtol=1e-5, atol=1e-5)
    estimator = linear_model.LogisticRegression().fit(x, y)
    np.testing.assert_allclose(
        collect(estimator, x, None).logits[:, 1], estimator.decision_function(x), rtol=1e-6
    )
    fitted = TemperatureScaling().fit(s, y)
    np.testing.assert_allclose(
        fitted.predict_proba(torch.tensor(s)).numpy(), fitted.predict_proba(s), atol=1e-12
    )


def test_what_is_no_log_odds_is_refused():
    s, _ = scores()
    with pytest.raises(InputError, match=r"values in \[0, 1\].*outputs='probabilities'"):
        collect(lambda batch: batch, sigmoid(s), None)
    with pytest.raises(InputError, match=r"must lie in \[0, 1\].*If these are logits"):
        collect(lambda batch: batch, s, None, outputs="probabilities")


def test_answers_with_a_confidence_and_several_labels_are_pointed_elsewhere():
    s, _ = scores()
    for model in (
        lambda batch: (batch > 0, np.abs(batch)),
        lambda batch: [{"label": "a", "score": 0.9}] * len(batch),
    ):
        with pytest.raises(InputError, match=r"recal calibrate graded\.csv --correct"):
            collect(model, s, None)

    def several(batch):
        return np.tile([0.9, 0.8, 0.1], (len(batch), 1))

    with pytest.raises(InputError, match=r"multi-label.*each label as a model of two classes"):
        collect(several, s, None, outputs="probabilities")


def test_a_table_with_one_probability_per_row(tmp_path):
    s, y = scores(300)
    p = sigmoid(s)
    (tmp_path / "a.csv").write_text("\n".join(["p,label", *map("{},{}".format, p, y)]))
    table = read_prob_table(tmp_path / "a.csv")
    np.testing.assert_allclose(table.probs[:, 1], p)
    assert table.labels.tolist() == y.tolist()


def test_hugging_face_names_its_columns():
    pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    net = torch.nn.Linear(2, 2)
    net.config = SimpleNamespace(id2label={0: "BAD", 1: "GOOD"}, problem_type=None)
    pair = net, lambda images, return_tensors: images
    assert as_model(pair).classes.tolist() == ["BAD", "GOOD"]
    net.config.id2label = {0: "LABEL_0", 1: "LABEL_1"}
    assert as_model(pair).classes is None
    net.config.problem_type = "multi_label_classification"
    with pytest.raises(InputError, match="several labels per input"):
        as_model(pair)


@pytest.mark.parametrize("outputs", ["logits", "probabilities"])
def test_an_onnx_file_with_one_output_is_exported_as_it_is_applied(outputs, tmp_path):
    graph, net = Graph(), tmp_path / "net.onnx"
    last = graph.op("MatMul", "x", graph.weight([[1.0], [-0.5], [0.2]], np.float32))
    if outputs == "probabilities":
        last = graph.op("Sigmoid", last)
    onnx.save(graph.model(["n", 3], {last: ["n", 1]}), net)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(900, 3)).astype(np.float32)
    y = (x @ [1.0, -0.5, 0.2] + rng.normal(0, 0.7, 900) > 0).astype(int)
    fitted = TemperatureScaling().fit(collect(net, x, None, labels=y, outputs=outputs))
    path = recal.export_onnx(net, path=tmp_path / "ready.onnx", plan=fitted)
    np.testing.assert_allclose(outputs_of(path, x)["probs"], apply(fitted, net, x).probs, atol=1e-5)
