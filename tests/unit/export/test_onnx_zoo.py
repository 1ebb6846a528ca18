"""ONNX files as users have them: they run, export, and answer as in Python, or say in one sentence
why not.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from recal import Blend, Plan, Step, Views, save
from recal.collecting import OnnxModel
from recal.errors import FileError, InputError
from recal.export import export_onnx
from recal.maps.guard import answer_views
from tests.unit.export import onnx_zoo as zoo
from tests.unit.export.onnx_zoo import outputs_of

VIEWS = (("flip", 0.4), ("zoom:0.7", 0.5))


def batch_for(model: OnnxModel, n: int = 24) -> np.ndarray:
    """Random images of the model's shape and dtype; every third one dark, so that some answers are
    not sure.
    """
    values = np.random.default_rng(3).random((n, *model.shape[1:])) * np.resize(
        [1.0, 1.0, 0.1], (n, 1, 1, 1)
    )
    return (
        (values * 255).astype(np.uint8) if model.dtype is np.uint8 else values.astype(model.dtype)
    )


def plan_for(logits: np.ndarray) -> Plan:
    """A blend with a gate between the sure and the unsure ones, clear of both."""
    start = float(2 / logits.astype(np.float64).std())
    wide = np.exp(start * (logits - logits.max(1, keepdims=True)).astype(np.float64))
    confidence = np.sort(1 / wide.sum(1))
    below = int(np.argmax(np.diff(confidence[4:-4]))) + 4
    gate = float(confidence[below : below + 2].mean())
    return Blend(0.6, VIEWS, (), 1e-4, gate=gate, gated_own=1.2, start=start)


def agree(path: Path, model: OnnxModel, plan: Plan, batch: np.ndarray) -> None:
    # Half floats are rounded wherever a runtime's own optimisations end, so logits themselves
    # differ by that.
    near = 2e-3 if model.dtype is np.float16 else 1e-5
    logits = model.answer(batch).astype(np.float32)
    views = Views(logits, {t: model.answer(t(batch)).astype(np.float32) for t in plan.transforms})
    probs, confidence = answer_views(plan, views, kept=plan.keeps_answers)
    found = outputs_of(path, batch)
    np.testing.assert_allclose(found["probs"], probs, rtol=0, atol=near)
    np.testing.assert_allclose(found["confidence"], confidence, rtol=0, atol=near)
    np.testing.assert_array_equal(found["prediction"], probs.argmax(1))
    np.testing.assert_array_equal(
        found["passes"], 1 + len(plan.transforms) * plan.needs_views(logits)
    )


@pytest.mark.parametrize("name", zoo.IMAGES)
def test_files_of_every_exporter_agree_with_python(name: str, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(zoo.IMAGES[name](), path)
    model = OnnxModel(path)
    batch = batch_for(model)
    plan = plan_for(model.answer(batch).astype(np.float32))
    out = export_onnx(path, path=tmp_path / "out.onnx", plan=plan)
    onnx.checker.check_model(onnx.load(out), full_check=True)
    needed = plan.needs_views(model.answer(batch).astype(np.float32))
    assert 0 < needed.sum() < len(needed)
    for rows in (batch, batch[needed][:1], batch[~needed][:2]):
        agree(out, model, plan, rows)


def test_the_scores_of_a_quantised_model_tie_as_in_python(tmp_path: Path) -> None:
    """Steps sort samples by which confidence is larger, and such scores are often equal."""
    path = tmp_path / "net.onnx"
    onnx.save(zoo.quantised_operators(), path)
    model = OnnxModel(path)
    batch = batch_for(model, 60)
    rng = np.random.default_rng(0)
    specs = ("flip", "shift", "brightness:0.95")
    plan = Plan(
        tuple(Step(specs[i % 3], tuple(rng.uniform(0.7, 1.3, 4))) for i in range(12)), start=0.3
    )  # type: ignore[arg-type]
    logits = model.answer(batch)
    views = Views(logits, {t: model.answer(t(batch)) for t in plan.transforms})
    assert any((views.transformed(t).max(1) == logits.max(1)).any() for t in plan.transforms)
    found = outputs_of(export_onnx(path, path=tmp_path / "out.onnx", plan=plan), batch)
    np.testing.assert_allclose(
        found["probs"], answer_views(plan, views, kept=plan.keeps_answers)[0], rtol=0, atol=1e-5
    )


def test_a_model_that_cannot_take_an_empty_batch_computes_the_views_of_all_rows(
    tmp_path: Path,
) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(zoo.no_empty_batch(), path)
    model = OnnxModel(path)
    batch = batch_for(model)
    plan = plan_for(model.answer(batch))
    found = outputs_of(export_onnx(path, path=tmp_path / "out.onnx", plan=plan), batch)
    views = Views(model.answer(batch), {t: model.answer(t(batch)) for t in plan.transforms})
    expected = answer_views(plan, views, kept=True)[0]
    np.testing.assert_allclose(found["probs"], expected, rtol=0, atol=1e-5)
    assert set(found["passes"]) == {3}


def test_classifiers_of_scikit_learn(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(zoo.skl2onnx(zipmap=True), path)
    with pytest.raises(InputError, match="zipmap"):
        export_onnx(path, path=tmp_path / "out.onnx", plan=Plan(), outputs="probabilities")
    onnx.save(zoo.skl2onnx(zipmap=False), path)
    rows = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    probs = OnnxModel(path).answer(rows)
    assert probs.shape == (9, zoo.CLASSES)
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-5)
    out = export_onnx(
        path, path=tmp_path / "out.onnx", plan=Plan(start=0.5), outputs="probabilities"
    )
    expected = np.exp(0.5 * np.log(probs.astype(np.float64)))
    np.testing.assert_allclose(
        outputs_of(out, rows)["probs"], expected / expected.sum(1, keepdims=True), atol=1e-5
    )


def test_a_batch_that_cannot_be_opened_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(zoo.fixed_token(), path)
    answer = OnnxModel(path).answer(np.zeros((3, 3, 8, 8), np.float32))  # one after the other
    assert answer.shape == (3, 5)
    with pytest.raises(InputError, match=r"exactly 1 input at a time.*with an open batch"):
        export_onnx(path, path=tmp_path / "out.onnx", plan=Blend(0.6, VIEWS, (), 1e-4, start=0.5))
    assert not (tmp_path / "out.onnx").exists()


def test_an_onnx_model_with_views_is_exported_without_torch(tmp_path: Path) -> None:
    """In a process of its own, in which torch and onnxscript cannot be imported."""
    path = tmp_path / "net.onnx"
    onnx.save(zoo.paddle2onnx(), path)
    plan = Blend(0.6, VIEWS, (), 1e-4, gate=0.9, gated_own=1.2, start=0.5)
    save(plan, tmp_path / "plan.recal")
    typed = f"export {tmp_path}/plan.recal --model {path} --out {tmp_path}/out.onnx".split()
    program = (
        "import sys; sys.modules['torch'] = sys.modules['onnxscript'] = None; "
        f"from recal.cli.app import run; sys.exit(run({typed!r}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    agree(tmp_path / "out.onnx", OnnxModel(path), plan, batch_for(OnnxModel(path)))


def cycle() -> onnx.ModelProto:
    g = zoo.Graph()
    g.op("Add", "x", "later", to="sooner")
    g.op("Relu", "sooner", to="later")
    zoo.dense(g, g.op("Flatten", "later"))
    return g.model(["n", 4, 6, 6], {"scores": ["n", 5]})


def own_operation() -> onnx.ModelProto:
    g = zoo.Graph()
    zoo.dense(g, g.op("Flatten", g.op("Swirl", "x", domain="com.acme")))
    return g.model(["n", 4, 6, 6], {"scores": ["n", 5]}, domains={"com.acme": 1})


def weights_that_are_not_there() -> onnx.ModelProto:
    made = zoo.at_opset(18)
    for constant in made.graph.initializer:
        constant.dims[0], constant.raw_data = 10**15, b""
    return made


@pytest.mark.parametrize(
    "make", [cycle, own_operation, weights_that_are_not_there, zoo.paddle2onnx]
)
@pytest.mark.parametrize(
    "plan", [Plan(start=0.5), Blend(0.6, VIEWS, (), 1e-4, gate=0.9, start=0.5)]
)
def test_broken_models_are_refused_in_one_sentence_without_output(
    make: Any, plan: Plan, tmp_path: Path
) -> None:
    path, out = tmp_path / "net.onnx", tmp_path / "out.onnx"
    content = make().SerializeToString()
    for held in (
        (content[: len(content) // 2], content[:-3], b"") if make is zoo.paddle2onnx else (content,)
    ):
        path.write_bytes(held)
        for use in (OnnxModel, lambda path: export_onnx(path, path=out, plan=plan)):
            with pytest.raises((InputError, FileError)) as caught:
                use(path)
            assert "\n" not in str(caught.value)
            assert len(str(caught.value)) < 600
    assert not out.exists()


def test_weights_in_a_file_beside_the_model_are_put_into_the_one_file(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = folder / "net.onnx"
    onnx.save(
        zoo.at_opset(17), path, save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    model, plan = (OnnxModel(path), Blend(0.6, VIEWS, (), 1e-4, gate=0.9, gated_own=1.2, start=0.5))
    out = export_onnx(path, path=tmp_path / "out.onnx", plan=plan)
    agree(out, model, plan, batch_for(model))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model", "out.onnx"]
