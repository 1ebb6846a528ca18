"""Models that were built to run code, or to read or write other files: none of them does."""

from __future__ import annotations

import io
import json
import zipfile

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

from recal import CalibratedClassifier, Plan, TemperatureScaling, collect, load, save
from recal.cli.app import run
from recal.collecting.models import as_model
from recal.errors import FileError, InputError


class Trap:
    """Unpickling it makes the file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.fixture
def mark(tmp_path):
    return tmp_path / "it-ran"


def pickled(mark):
    """A pickle that makes the file, as torch.save writes it."""
    content = io.BytesIO()
    torch.save(Trap(mark), content)
    return content.getvalue()


@pytest.fixture
def trapped(tmp_path, mark):
    """A .pt2 file whose pickled weights make a file when they are opened."""
    path = tmp_path / "net.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("weights", "constants", "sample_inputs"):
            archive.writestr(f"net/data/{name}/model.pt", pickled(mark))
    return path


def test_a_pt2_file_is_opened_only_if_it_is_trusted(trapped, mark, capsys):
    with pytest.raises(InputError, match=r"can run code.*torch\.export\.load"):
        as_model(trapped)
    place = trapped.parent
    assert run(f"collect --model {trapped} --data {place} --out {place}/v.npz".split()) == 2
    assert "--trust pt2" in capsys.readouterr().err
    assert not mark.exists()


# --- a calibrator's file that names a model


def test_load_opens_no_model_that_a_file_names(trapped, tmp_path, mark):
    program = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    classifier = CalibratedClassifier(program, TemperatureScaling())
    classifier.fit(
        np.random.default_rng(0).normal(size=(30, 2, 2)).astype(np.float32), np.arange(30) % 3
    )
    classifier.model = str(trapped)
    path = save(classifier, tmp_path / "c.recal")
    assert b"net.pt2" not in path.read_bytes()
    with pytest.raises(InputError, match="without its model"):
        load(path)
    assert load(path, model=program).model is program
    named = load(path, model=classifier.model)  # the user named it, and it is still not run
    with pytest.raises(InputError, match="can run code"):
        named.predict_proba(np.zeros((2, 2, 2), np.float32))
    assert not mark.exists()


# --- ONNX weights in other files


def external(tmp_path, location, *, inside=False):
    """A model with the weights in a file beside it; deep inside a branch, where asked."""
    weights = TensorProto(name="weights", dims=[4, 3], data_type=TensorProto.FLOAT)
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value=location)
    constant = helper.make_node("Constant", [], ["w"], value=weights)
    if inside:
        shape = helper.make_tensor_value_info("w", 1, [4, 3])
        branch = helper.make_graph([constant], "branch", [], [shape])
        nodes = [helper.make_node("If", ["yes"], ["w"], then_branch=branch, else_branch=branch)]
        stored = [helper.make_tensor("yes", TensorProto.BOOL, [], [True])]
    else:
        weights.name, nodes, stored = "w", [], [weights]
    nodes.append(helper.make_node("MatMul", ["x", "w"], ["logits"]))
    ends = [
        helper.make_tensor_value_info(name, 1, ["n", size])
        for name, size in (("x", 4), ("logits", 3))
    ]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    (tmp_path / "model").mkdir()
    path = tmp_path / "model" / "net.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(
    "location", ["../secret.bin", "/etc/hostname", "link.bin", "", "missing.bin", "../model"]
)
def test_onnx_weights_outside_the_models_folder_are_refused(tmp_path, location, inside):
    (tmp_path / "secret.bin").write_bytes(bytes(48))
    path = external(tmp_path, location, inside=inside)
    (tmp_path / "model" / "link.bin").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(FileError, match="no file in its own folder"):
        as_model(path)
    from recal.export import export_onnx

    with pytest.raises(FileError, match="no file in its own folder"):
        export_onnx(path, np.zeros((1, 4), np.float32), tmp_path / "out.onnx", plan=Plan())


# --- Hugging Face folders


@pytest.fixture
def folder(tmp_path, vision):
    for part in vision:
        part.save_pretrained(tmp_path / "net")
    return tmp_path / "net"


def set_in(path, **settings):
    path.write_text(
        json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **settings})
    )


def bin_weights(folder, mark):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickled(mark))


def own_code(folder, mark):
    (folder / "own.py").write_text(f"open({str(mark)!r}, 'w')\nclass Config: pass\n")
    set_in(folder / "config.json", model_type="own", auto_map={"AutoConfig": "own.Config"})


def own_processor(folder, mark):
    (folder / "own.py").write_text(f"open({str(mark)!r}, 'w')\nclass Processor: pass\n")
    set_in(folder / "preprocessor_config.json", auto_map={"AutoImageProcessor": "own.Processor"})


def named_weights(folder, mark):
    (folder / "adapter_model.bin").write_bytes(pickled(mark))
    set_in(folder / "config.json", transformers_weights="adapter_model.bin")


def adapter(folder, mark):
    set_in(folder / "adapter_config.json", base_model_name_or_path="../other")


def weights_elsewhere(folder, mark):
    set_in(
        folder / "model.safetensors.index.json",
        metadata={},
        weight_map={"a": "../../secret.safetensors"},
    )


def kernels_from_elsewhere(folder, mark):
    set_in(folder / "config.json", _attn_implementation="someone/kernel")


FOLDERS = {
    bin_weights: "holds no model.safetensors",
    own_code: "`auto_map` in its config.json asks for code",
    own_processor: "`auto_map` in its preprocessor_config.json asks for code",
    named_weights: "`transformers_weights` in its config.json",
    adapter: "an adapter to another model",
    weights_elsewhere: "outside the folder",
    kernels_from_elsewhere: "code from elsewhere, 'someone/kernel'",
}


@pytest.mark.parametrize("attack", FOLDERS, ids=lambda attack: attack.__name__)
def test_a_hugging_face_folder_runs_nothing_of_its_own(attack, folder, mark):
    attack(folder, mark)
    with pytest.raises(FileError, match=FOLDERS[attack]):
        as_model(folder)
    assert not mark.exists()


def test_a_pipe_in_place_of_a_model_is_refused(tmp_path):
    import os

    os.mkfifo(tmp_path / "net.onnx")
    with pytest.raises(InputError, match="not a regular file"):
        as_model(tmp_path / "net.onnx")


def test_a_model_may_write_all_its_answers_into_one_buffer():
    buffer = np.empty((4, 2))

    def model(batch):
        np.stack([batch[:, 0], -batch[:, 0]], axis=1, out=buffer[: len(batch)])
        return buffer[: len(batch)]

    rows = np.random.default_rng(0).normal(size=(10, 3))
    views = collect(model, rows, None, batch_size=4)
    assert np.array_equal(views.logits[:, 0], rows[:, 0])
