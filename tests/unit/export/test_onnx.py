"""One ONNX file that answers with calibrated probabilities."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from recal import CalibratedModule, Plan, Step, save
from recal.cli.app import run
from recal.errors import FileError, InputError
from recal.export import export_onnx
from tests.unit.export.onnx_zoo import outputs_of

PLAN = Plan((Step("zoom:0.5", (0.7, 0.9, 0.8, 0.95)),))


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(400, 10)
    model = torch.nn.Sequential(*layers)
    with torch.no_grad():
        model[-1].weight.mul_(15)  # type: ignore[union-attr, operator]
    return model


JPEG = Plan((Step("jpeg:30", (0.9, 0.8, 0.7, 0.6)),))
EXAMPLE = torch.rand(1, 3, 12, 12)


@pytest.mark.parametrize(
    ("model", "example", "plan", "words"),
    [
        (network(), EXAMPLE, JPEG, "'jpeg:30' cannot be written.*calibration alone"),
        (network(), None, PLAN, "with an example"),
        (network(), torch.rand(5), PLAN, r"got the shape \(5,\)"),
        (network(), EXAMPLE, None, "A Plan or.*got NoneType"),
        (len, EXAMPLE, PLAN, "torch module or the path.*got builtin"),
        (CalibratedModule(network(), PLAN), EXAMPLE, PLAN, "its own plan"),
        (network(), torch.rand(1, 3, 9, 9), PLAN, "torch could not write this model"),
    ],
)
def test_what_cannot_be_exported_is_refused(
    model: Any, example: Any, plan: Any, words: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=words):
        export_onnx(model, example, tmp_path / "x.onnx", plan=plan)
    assert not (tmp_path / "x.onnx").exists()


def test_a_file_that_is_no_onnx_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"rubbish")
    with pytest.raises(FileError, match=r"broken\.onnx"):
        export_onnx(tmp_path / "broken.onnx", plan=PLAN)
    with pytest.raises(FileError, match=r"missing\.onnx"):
        export_onnx(tmp_path / "missing.onnx", plan=PLAN)


def test_the_command_line_writes_a_calibration_alone_or_with_a_torch_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calibration = save(PLAN, tmp_path / "plan.recal")

    def export(*typed: object) -> int:
        return run(["export", str(calibration), *map(str, typed)])

    assert export("--classes", 5, "--out", tmp_path / "replay.onnx") == 0
    session = onnxruntime.InferenceSession(str(tmp_path / "replay.onnx"))
    assert [value.name for value in session.get_inputs()] == ["logits", "transformed"]
    capsys.readouterr()

    shapes = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(network(), (torch.rand(2, 3, 12, 12),), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "net.pt2")
    out = tmp_path / "torch.onnx"
    model = ("--model", tmp_path / "net.pt2", "--trust", "pt2")
    assert export(*model, "--shape", "3,12,12", "--out", out, "--json") == 0
    assert json.loads(capsys.readouterr().out)["transforms"] == ["zoom:0.5"]
    batch = torch.rand(5, 3, 12, 12)
    with torch.no_grad():
        probs = CalibratedModule(network(), PLAN)(batch).softmax(1).numpy()
    np.testing.assert_allclose(outputs_of(out, batch.numpy())["probs"], probs, atol=1e-5)

    out = tmp_path / "other.onnx"
    assert export("--out", out, *model, "--shape", "3,x") == 2
    assert "got 3,x" in capsys.readouterr().err
    assert export("--out", out, "--model", tmp_path / "forest.skops") == 2
    refusal = " ".join(capsys.readouterr().err.split())
    for words in ("forest.skops", "skl2onnx", "leave out --model"):
        assert words in refusal
