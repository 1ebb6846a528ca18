"""Models that were built to run code, to read other files or to write them: nothing of it happens."""

from __future__ import annotations

import io
import json
import pickle
import zipfile

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from recal import CalibratedClassifier, Plan, TemperatureScaling, load, save
from recal.collecting.models.base import as_model
from recal.collecting.models.onnx import external_files
from recal.errors import FileError, InputError


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.register_buffer("scale", torch.tensor(2.0))
        self.shift = torch.arange(3.0)

    def forward(self, batch):
        return torch.nn.functional.gelu(self.linear(batch.flatten(1)), approximate="tanh") * self.scale + self.shift


class Trap:
    """Unpickling it makes the file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    torch.manual_seed(0)
    network = Network().eval()
    batch = torch.export.Dim("batch")
    program = torch.export.export(network, (torch.zeros(3, 2, 2),), dynamic_shapes=({0: batch},))
    path = tmp_path_factory.mktemp("model") / "net.pt2"
    torch.export.save(program, path, extra_files={"note.txt": "made by hand"})
    return path, network


@pytest.fixture
def mark(tmp_path):
    return tmp_path / "it-ran"


def rewritten(honest, tmp_path, changes, *, compress=zipfile.ZIP_STORED):
    """The honest file with some members changed: a function of the JSON value, or bytes to put there."""
    path = tmp_path / "net.pt2"
    with zipfile.ZipFile(honest[0]) as old, zipfile.ZipFile(path, "w", compress) as new:
        root = old.namelist()[0].partition("/")[0]
        held = {name.partition("/")[2]: old.read(name) for name in old.namelist()}
        for name, change in changes.items():
            if isinstance(change, bytes):
                held[name] = change
            else:
                value = json.loads(held[name])
                change(value)
                held[name] = json.dumps(value).encode()
        for name, content in held.items():
            new.writestr(f"{root}/{name}", content)
    return path


def pickled(mark):
    """A pickle that makes the file, as torch.save writes it."""
    held = io.BytesIO()
    torch.save(Trap(mark), held)
    return held.getvalue()


def unpickle_weight(mark):
    def change(config):
        config["config"]["linear.weight"]["use_pickle"] = True

    return {"data/weights/model_weights_config.json": change, "data/weights/weight_0": pickled(mark)}


def unpickle_constant(mark):
    def change(config):
        config["config"]["shift"]["use_pickle"] = True

    return {"data/constants/model_constants_config.json": change, "data/constants/tensor_0": pickled(mark)}


def opaque_object(mark):
    def change(config):
        config["config"]["shift"].update(path_name="opaque_obj_0", use_pickle=True)

    return {
        "data/constants/model_constants_config.json": change,
        "data/constants/opaque_obj_0": pickle.dumps(Trap(mark)),
    }


def opaque_object_that_says_it_is_none(mark):
    def change(config):
        config["config"]["shift"].update(path_name="opaque_obj_0", use_pickle=False)

    return {
        "data/constants/model_constants_config.json": change,
        "data/constants/opaque_obj_0": pickle.dumps(Trap(mark)),
    }


def old_weights(mark):
    return {"data/weights/model.pt": pickled(mark)}


def old_constants(mark):
    return {"data/constants/model.pt": pickled(mark)}


def pickled_extra_file(mark):
    return {"extra/notes": pickle.dumps(Trap(mark))}


def size_that_is_code(mark):
    def change(program):
        size = program["graph_module"]["graph"]["tensor_values"]["batch"]["sizes"][0]
        size["as_expr"]["expr_str"] = f"__import__('pathlib').Path({str(mark)!r}).touch()"

    return {"models/model.json": change}


def range_that_is_code(mark):
    def change(program):
        ranges = program["range_constraints"]
        ranges[f"open({str(mark)!r}, 'w')"] = ranges.pop(next(iter(ranges)))

    return {"models/model.json": change}


def guard_that_is_code(mark):
    def change(program):
        program["guards_code"] = [f"__import__('pathlib').Path({str(mark)!r}).touch() or True"]

    return {"models/model.json": change}


def calls(target, mark):
    def change(program):
        node = program["graph_module"]["graph"]["nodes"][0]
        argument = {"name": "", "arg": {"as_string": f"touch {mark}"}, "kind": 1}
        node.update(target=target, inputs=[argument])

    return {"models/model.json": change}


def structure_that_imports(mark):
    def change(program):
        signature = program["graph_module"]["module_call_graph"][0]["signature"]
        context = {"default_factory_module": "this", "default_factory_name": "x", "dict_context": []}
        spec = {"type": "collections.defaultdict", "context": context, "children_spec": []}
        signature["out_spec"] = json.dumps([1, spec])

    return {"models/model.json": change}


def enum_that_imports(mark):
    def change(program):
        signature = program["graph_module"]["module_call_graph"][0]["signature"]
        context = json.dumps([{"__enum__": True, "fqn": "this:x", "name": "y"}])
        signature["out_spec"] = json.dumps([1, {"type": "builtins.dict", "context": context, "children_spec": []}])

    return {"models/model.json": change}


def name_that_is_code(mark):
    def change(program):
        text = json.dumps(program).replace('"batch"', json.dumps(f"batch=open({str(mark)!r}, 'w')"))
        program.clear()
        program.update(json.loads(text))

    return {"models/model.json": change}


def compiled_library(mark):
    return {"data/aotinductor/model/model.so": b"\x7fELF"}


REFUSED = {
    unpickle_weight: "'linear.weight' is stored as a pickle",
    unpickle_constant: "'shift' is stored as a pickle",
    opaque_object: "'shift' is stored as a pickle",
    opaque_object_that_says_it_is_none: "not stored as a plain tensor, but as 'opaque_obj_0'",
    old_weights: "data/weights/model.pt is a pickle",
    old_constants: "data/constants/model.pt is a pickle",
    pickled_extra_file: "extra file extra/notes is a pickle",
    size_that_is_code: "which is no arithmetic",
    range_that_is_code: "which is no arithmetic",
    structure_that_imports: "come in a collections.defaultdict",
    enum_that_imports: "come in a builtins.dict",
    name_that_is_code: "it holds the name .batch=open",
    compiled_library: "compiled code",
}


@pytest.mark.parametrize("attack", REFUSED, ids=lambda attack: attack.__name__)
def test_a_pt2_file_that_would_run_something_is_refused(attack, honest, tmp_path, mark):
    path = rewritten(honest, tmp_path, attack(mark))
    with pytest.raises(FileError, match=REFUSED[attack]):
        as_model(path)
    assert not mark.exists()


@pytest.mark.parametrize(
    "target",
    [
        "torch.os.system",
        "torch.ops.load_library",
        "torch.ops.aten.save.default",
        "torch.ops.aten.from_file.default",
        "torch.ops.aten.__class__.mro",
        "torch.ops.inductor.x.default",
        "torch.hub.load",
        "_operator.attrgetter",
        "math.__loader__.load_module",
        "#torch.x",
        "builtins.open",
    ],
)
def test_a_graph_may_call_calculations_alone(target, honest, tmp_path, mark):
    with pytest.raises(FileError, match="which is no calculation on tensors"):
        as_model(rewritten(honest, tmp_path, calls(target, mark)))
    assert not mark.exists()


def test_what_only_people_read_is_left_out_unread(honest, tmp_path, mark):
    """Sample inputs are pickled in every file; guards are code in every file that has some."""
    changes = {"data/sample_inputs/model.pt": pickled(mark), **guard_that_is_code(mark)}
    model = as_model(rewritten(honest, tmp_path, changes))
    model.answer(np.zeros((2, 2, 2), np.float32))
    assert not mark.exists()


def test_an_honest_file_gives_the_networks_own_answers(honest):
    path, network = honest
    batch = torch.randn(7, 2, 2)
    with torch.no_grad():
        np.testing.assert_array_equal(as_model(path).answer(batch), network(batch).numpy())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"models/model.json": b"[" * 100_000}, "cannot be read as a torch.export file"),
        ({"models/model.json": b"[]"}, "is not an object"),
        ({"models/model.json": b"{}"}, "cannot be read as a torch.export file"),
        ({"archive_format": b"__import__"}, "was not written by torch"),
    ],
)
def test_rubbish_is_refused(change, words, honest, tmp_path):
    with pytest.raises(FileError, match=words):
        as_model(rewritten(honest, tmp_path, change))


def test_a_packed_archive_is_refused(honest, tmp_path):
    with pytest.raises(FileError, match=r"not one that torch\.export\.save writes"):
        as_model(rewritten(honest, tmp_path, {}, compress=zipfile.ZIP_DEFLATED))


def test_two_files_of_one_name_are_refused(honest, tmp_path):
    path = rewritten(honest, tmp_path, {})
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr(archive.namelist()[0], b"other")
    with pytest.raises(FileError, match=r"not one that torch\.export\.save writes"):
        as_model(path)


def test_files_of_older_torch_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "net.pt2", "w") as archive:
        archive.writestr("serialized_exported_program.json", "{}")
    with pytest.raises(FileError, match=r"before 2\.8"):
        as_model(tmp_path / "net.pt2")


# --- a calibrator's file that names a model


def test_load_opens_no_model_that_a_file_names(honest, tmp_path, mark):
    network = as_model(honest[0])
    classifier = CalibratedClassifier(network, TemperatureScaling())
    classifier.fit(np.random.default_rng(0).normal(size=(30, 2, 2)).astype(np.float32), np.arange(30) % 3)
    classifier.model = str(rewritten(honest, tmp_path, unpickle_weight(mark)))
    path = save(classifier, tmp_path / "c.recal")
    with pytest.raises(InputError, match=r"names the model '.*net\.pt2', and recal does not open a model because"):
        load(path)
    given = load(path, model=honest[0])
    assert given.model == honest[0]
    named = load(path, model=classifier.model)  # by the user's own word, and still not run
    with pytest.raises(FileError, match="stored as a pickle"):
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
        branch = helper.make_graph([constant], "branch", [], [helper.make_tensor_value_info("w", 1, [4, 3])])
        nodes = [helper.make_node("If", ["yes"], ["w"], then_branch=branch, else_branch=branch)]
        stored = [helper.make_tensor("yes", TensorProto.BOOL, [], [True])]
    else:
        weights.name, nodes, stored = "w", [], [weights]
    nodes.append(helper.make_node("MatMul", ["x", "w"], ["logits"]))
    ends = [helper.make_tensor_value_info(name, 1, ["n", size]) for name, size in (("x", 4), ("logits", 3))]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    (tmp_path / "model").mkdir()
    path = tmp_path / "model" / "net.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("location", ["../secret.bin", "/etc/hostname", "link.bin", "", "missing.bin", "../model"])
def test_onnx_weights_outside_the_models_folder_are_refused(tmp_path, location, inside):
    (tmp_path / "secret.bin").write_bytes(bytes(48))
    path = external(tmp_path, location, inside=inside)
    (tmp_path / "model" / "link.bin").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(FileError, match=r"keeps weights in '.*', which is no file in its own folder"):
        as_model(path)
    from recal.export import export_onnx

    with pytest.raises(FileError, match="no file in its own folder"):
        export_onnx(path, np.zeros((1, 4), np.float32), tmp_path / "out.onnx", plan=Plan())


def test_onnx_weights_beside_the_model_are_read(tmp_path):
    path = external(tmp_path, "weights.bin")
    held = np.arange(12, dtype=np.float32).reshape(4, 3)
    (tmp_path / "model" / "weights.bin").write_bytes(held.tobytes())
    np.testing.assert_array_equal(as_model(path).answer(np.eye(4, dtype=np.float32)), held)


def test_the_names_are_those_that_onnx_itself_finds(tmp_path):
    path = external(tmp_path, "a.bin", inside=True)
    model = onnx.load(path, load_external_data=False)
    found = {e.value for t in onnx.external_data_helper._get_all_tensors(model) for e in t.external_data}
    assert external_files(path) == found == {"a.bin"}


# --- Hugging Face folders


@pytest.fixture
def folder(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=8, patch_size=8,
        num_labels=3,
    )  # fmt: skip
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "net")
    # From release 5 on the plain name stands for one that needs torchvision.
    kind = getattr(transformers, "ViTImageProcessorPil", None) or transformers.ViTImageProcessor
    kind(size={"height": 8, "width": 8}).save_pretrained(tmp_path / "net")
    return tmp_path / "net"


def set_in(path, **settings):
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **settings}))


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
    set_in(folder / "model.safetensors.index.json", metadata={}, weight_map={"a": "../../secret.safetensors"})


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
