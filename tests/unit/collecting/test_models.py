"""Each kind of model gives its logits, is left as it was, and is refused with a remedy where it
does not fit.
"""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

from recal import CalibratedClassifier, TemperatureScaling, Views, collect
from recal.collecting import Normalize, OnnxModel, apply, as_model
from recal.collecting.models import import_model
from recal.errors import FileError, InputError, RecalError
from recal.transforms import ZoomOut
from recal.transforms.preprocessing import Preprocessing
from tests.unit.export.onnx_zoo import Graph, linear


def rows(n=60, k=3, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % k
    return rng.normal(size=(n, 4)) + y[:, None], y


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(64, 3), torch.nn.Dropout(0.5)
        )
        self.norm = torch.nn.BatchNorm1d(3)

    def forward(self, x):
        assert not torch.is_grad_enabled()
        assert not self.training
        return self.norm(self.body(x))


def net(seed=0):
    torch.manual_seed(seed)
    return Net()


# --- scikit-learn


def test_a_binary_score_becomes_two_columns_whose_softmax_is_the_models_own():
    X, y = rows(k=2)
    model = LogisticRegression().fit(X, y)
    logits = collect(model, X, None).logits
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(probs, model.predict_proba(X), rtol=1e-12)


def test_zeros_of_a_forest_are_floored_and_said_to_be():
    X, y = rows()
    model = RandomForestClassifier(10, random_state=0).fit(X, y)
    probs = model.predict_proba(X)
    assert probs.min() == 0
    floor = 0.01 / 3
    for said in ({}, {"outputs": "probabilities"}):
        with pytest.warns(UserWarning, match=rf"RandomForestClassifier.* of 0.* {floor:g}"):
            views = collect(model, X, None, **said)
        np.testing.assert_allclose(np.exp(views.logits), np.maximum(probs, floor), rtol=1e-9)


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
@pytest.mark.parametrize("wrap", [lambda m: m, lambda m: make_pipeline(StandardScaler(), m)])
@pytest.mark.parametrize("model", [KNeighborsClassifier(3), DecisionTreeClassifier(), GaussianNB()])
@pytest.mark.filterwarnings("ignore:.*probabilities of 0")
def test_what_votes_is_known_and_kept_with_the_views(model, wrap):
    X, y = rows()
    fitted = wrap(model).fit(X, y)
    views = collect(fitted, X, None, labels=y)
    is_vote = not isinstance(model, GaussianNB)
    assert views.preprocessing.outputs == ("votes" if is_vote else "logits")
    calibrator = TemperatureScaling().fit(views)
    expected = calibrator.predict_proba(views)
    for outputs in (None, "logits", *(["probabilities"] if is_vote else [])):
        found = apply(calibrator, fitted, X, outputs=outputs)
        np.testing.assert_array_equal(found.probs, expected)
    classifier = CalibratedClassifier(fitted, TemperatureScaling()).fit(X, y)
    np.testing.assert_array_equal(classifier.predict_proba(X), expected)


@pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")
@pytest.mark.filterwarnings("ignore:.*probabilities of 0")
def test_a_calibration_of_a_forest_from_before_votes_keeps_its_floor():
    """Its file says "logits", or "probabilities": both had 1e-12."""
    X, y = rows()
    forest = RandomForestClassifier(10, random_state=0).fit(X[:100], y[:100])
    for said in ("logits", "probabilities"):
        logits = np.log(np.maximum(forest.predict_proba(X), 1e-12))
        views = Views(logits, labels=y, preprocessing=Preprocessing(outputs=said))
        calibrator = TemperatureScaling().fit(views)
        expected = calibrator.predict_proba(logits)
        np.testing.assert_array_equal(apply(calibrator, forest, X).probs, expected)


def test_nothing_is_said_where_nothing_was_floored():
    X, y = rows()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        collect(GaussianNB().fit(X, y), X, None)
        collect(LogisticRegression().fit(X, y), X, None)


def test_probabilities_can_be_asked_of_a_classifier_that_has_both():
    X, y = rows()
    model = LogisticRegression().fit(X, y)
    logits = collect(model, X, None, outputs="probabilities").logits
    np.testing.assert_allclose(np.exp(logits), model.predict_proba(X), rtol=1e-12)


def test_images_are_flattened_for_a_classifier_of_rows(images, labels):
    model = LogisticRegression().fit(images.reshape(20, -1), labels)
    views = collect(model, images, "zoom:0.5")
    np.testing.assert_array_equal(views.logits, model.decision_function(images.reshape(20, -1)))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (SVC(decision_function_shape="ovo"), "decision_function_shape='ovr'"),
        (LinearRegression(), "got LinearRegression"),
    ],
)
def test_what_gives_no_score_per_class_is_refused(model, message):
    with pytest.raises(InputError, match=message):
        as_model(model.fit(*rows(k=4)))
    with pytest.raises(InputError, match=r"LogisticRegression is not fitted.*fit it"):
        as_model(LogisticRegression())


# --- torch


def test_a_module_is_put_back_as_it_was(images):
    module = net().train()
    module.body[2].eval()  # set by hand: eval() followed by train() would lose it
    before = {name: value.clone() for name, value in module.state_dict().items()}
    collect(module, images, "zoom:0.5-0.9:2", preprocess=Normalize())
    modes = [part.training for part in (module, module.body, module.body[2], module.norm)]
    assert modes == [True, True, False, True]
    assert torch.is_grad_enabled()
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


def test_floats_and_bytes_are_cast_to_the_weights_dtype(images):
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
    as_bytes = collect(module, images, None).logits
    np.testing.assert_array_equal(as_bytes, collect(module, images.astype(np.float64), None).logits)
    assert collect(module.double(), images, None).logits.dtype == np.float64
    assert collect(module.half(), images / 255, None).logits.dtype == np.float32


@pytest.mark.parametrize("device", ["meta:9:9", "nonsense", "cuda:99"])
def test_a_device_that_is_not_there_is_named(images, device):
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
    with pytest.raises(InputError, match=device):
        collect(module, images, None, device=device)


def test_another_weight_gives_another_fingerprint():
    first, again, other = as_model(net(0)), as_model(net(0)), as_model(net(1))
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()


# --- files


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A module, and the folder of its files with a free and with a fixed size of batches."""
    folder = tmp_path_factory.mktemp("exported")
    _, weights = linear(folder / "net.onnx", (1, 8, 8), 3)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3, bias=False)).eval()
    module[1].weight.data = torch.from_numpy(weights.T.copy())
    for name, shapes in {"free": ({0: torch.export.Dim("n")},), "fixed": None}.items():
        program = torch.export.export(module, (torch.zeros(8, 1, 8, 8),), dynamic_shapes=shapes)
        torch.export.save(program, folder / f"{name}.pt2")
    return module, folder


@pytest.mark.parametrize("file", ["free.pt2", "fixed.pt2", "net.onnx"])
def test_exported_files_agree_with_the_module(exported, images, file):
    module, folder = exported
    expected = collect(module, images, "zoom:0.5", preprocess=Normalize())
    path = folder / file
    models = [path, str(path)]
    if path.suffix == ".pt2":
        models = [torch.export.load(path), import_model(str(path), trusted=["pt2"])]
    for model in models:
        views = collect(model, images, "zoom:0.5", preprocess=Normalize(), batch_size=7)
        np.testing.assert_allclose(views.logits, expected.logits, atol=1e-5)
        wanted = expected.transformed("zoom:0.5")
        np.testing.assert_allclose(views.transformed("zoom:0.5"), wanted, atol=1e-5)


def test_an_open_session_is_a_model(exported, images):
    import onnxruntime

    path = exported[1] / "net.onnx"
    session, expected = (
        collect(model, images, None, preprocess=Normalize()).logits
        for model in (onnxruntime.InferenceSession(str(path)), path)
    )
    np.testing.assert_array_equal(session, expected)


def test_onnx_names_the_shape_it_wants(exported, images):
    with pytest.raises(InputError, match=r"(?s)net\.onnx .*1, 8, 8.*\(20, 1, 8, 4\).*preprocess"):
        collect(exported[1] / "net.onnx", images[:, :, :4], None)


def test_onnx_with_several_outputs_asks_which(tmp_path):
    graph = Graph()
    ends = {graph.op(kind, "x", to=to): [None, 3] for kind, to in (("Identity", "a"), ("Neg", "b"))}
    onnx.save(graph.model([None, 3], ends), tmp_path / "two.onnx")
    with pytest.raises(InputError, match=r"the outputs a, b, and none is called logits.*output="):
        as_model(tmp_path / "two.onnx")
    X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    second = OnnxModel(tmp_path / "two.onnx", output="b")
    np.testing.assert_array_equal(collect(second, X, None).logits, -X)
    with pytest.raises(InputError, match="the outputs a, b, and no output 'c'"):
        OnnxModel(tmp_path / "two.onnx", output="c")


@pytest.mark.parametrize("name", ["net.pt", "net.pth", "net.pkl", "net.joblib", "net.ckpt"])
def test_pickles_are_refused_unopened(tmp_path, name):
    with pytest.raises(InputError, match=rf"{name} is a pickle.*torch\.export\.save"):
        as_model(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("net.onnx", b"rubbish", "cannot be read as an ONNX model"),
        ("net.onnx", b"", "cannot be read as an ONNX model: it is empty"),
        ("net.pt2", b"rubbish", "can run code"),
        ("net.txt", b"", "ends in .onnx, .pt2"),
        ("missing.onnx", None, "There is no model file"),
    ],
)
def test_files_that_hold_no_model_are_refused(tmp_path, name, content, message, capfd, caplog):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(RecalError, match=message):
        as_model(tmp_path / name)
    assert "Traceback" not in capfd.readouterr().err + caplog.text


# --- Hugging Face


@pytest.mark.parametrize("shape", [(6, 20, 20, 3), (6, 3, 20, 20)])
def test_a_hugging_face_pair_runs_its_processor_after_the_transformation(vision, shape):
    model, processor = vision
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    views = collect((model, processor), images, "zoom:0.5", batch_size=4)
    zoomed = ZoomOut(0.5)(images)
    for seen, logits in ((images, views.logits), (zoomed, views.transformed("zoom:0.5"))):
        pixels = processor(images=list(seen), return_tensors="pt")["pixel_values"]
        with torch.no_grad():
            expected = model.eval()(pixels).logits.numpy()
        np.testing.assert_allclose(logits, expected, atol=1e-5)


def test_a_hugging_face_folder_is_opened(vision, tmp_path):
    model, processor = vision
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    images = np.random.default_rng(0).integers(0, 256, (3, 20, 20, 3), dtype=np.uint8)
    views = collect(tmp_path, images, None)
    np.testing.assert_allclose(views.logits, collect(vision, images, None).logits, atol=1e-6)
    (tmp_path / "model.safetensors").write_bytes(b"rubbish")
    with pytest.raises(FileError, match="not a Hugging Face image classifier"):
        as_model(tmp_path)


# --- what no model may do


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda x: x[:, :, :, None], r"shape \(20, 8, 8, 1\)"),
        (lambda x: np.ones((20, 2)) * [1.0, np.nan], "nan for sample 0, class 1, in the original"),
        (lambda x: (np.ones((20, 2)), 1), "returned a tuple"),
    ],
)
def test_answers_that_are_no_logits_are_refused(images, answer, message):
    with pytest.raises(InputError, match=message):
        collect(answer, images, None)


def test_an_unknown_kind_of_outputs_is_refused(images, model):
    for outputs in ("scores", "probabilities:0", 3):
        with pytest.raises(InputError, match=f"got {outputs!r}"):
            collect(model, images, None, outputs=outputs)
