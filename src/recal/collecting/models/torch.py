"""torch modules, torch.export files, and Hugging Face classifiers with their processors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from recal.checks import MULTI_LABEL
from recal.collecting.fingerprint import digest, digest_array, digest_file, digest_texts
from recal.collecting.models.base import Model, as_numpy, in_pieces, to_numpy, with_channel
from recal.errors import FileError, InputError, needs_extra
from recal.files.paths import read_json

with needs_extra("torch", "Running a torch model"):
    import torch


class TorchModel(Model):
    """A torch module, run in evaluation mode and without gradients. Its modes and device are
    restored afterwards.

    The module is moved to `device`, if one is given. Batches are moved to the module's device
    before they are transformed. After `preprocess`, floats and uint8 are cast to the dtype of the
    weights; other integers, such as token ids, stay as they are.
    """

    def __init__(self, module: torch.nn.Module, *, device: Any = None) -> None:
        self.module = module
        self.name = type(module).__name__
        self.device, self.dtype = _home(module)
        self.requested = device  # checked when the model runs: another machine may have it

    def fingerprint(self) -> str:
        texts = [repr(self.module)]
        for key, value in sorted(self.module.state_dict().items()):
            texts.append(key)
            if isinstance(value, torch.Tensor):
                tensor = value.detach().cpu().contiguous()
                texts.append(f"{tensor.dtype}{tuple(tensor.shape)}")
                is_plain = tensor.numel() and not tensor.is_sparse and not tensor.is_quantized
                values = tensor.reshape(-1).view(torch.uint8).numpy() if is_plain else None
                texts.append(repr(tensor) if values is None else digest_array(values))
        return digest_texts(texts)

    @contextmanager
    def running(self) -> Iterator[None]:
        modes = {module: module.training for module in self.module.modules()}
        home = self.device
        try:
            if self.requested is not None and (away := as_device(self.requested)) != home:
                self.module.to(away)
                self.device = away
            self.module.eval()
            with torch.no_grad():
                yield
        finally:
            for module, mode in modes.items():
                # train() would also change submodules that the user has set by hand.
                module.training = mode
            if self.device != home:
                self.module.to(home)
                self.device = home

    def prepare(self, inputs: Any) -> torch.Tensor:
        return as_tensor(inputs).to(self.device)

    def answer(self, batch: Any) -> NDArray[Any]:
        tensor = with_channel(as_tensor(batch).to(self.device), self.shape)
        if self.dtype is not None and (tensor.is_floating_point() or tensor.dtype == torch.uint8):
            tensor = tensor.to(self.dtype)
        return in_pieces(lambda piece: as_numpy(self.module(piece), self.name), tensor, self.fixed)


class ExportedModel(TorchModel):
    """A program of `torch.export`: the program, or the path of a file that the caller trusts."""

    def __init__(self, program: Path | torch.export.ExportedProgram, *, device: Any = None) -> None:
        self.origin, self.requested = program, device
        self.name = program.name if isinstance(program, Path) else type(program).__name__
        self._open()

    def _open(self) -> None:
        program: Any = self.origin
        if isinstance(program, Path):
            try:
                program = torch.export.load(program)
            except Exception as error:
                first = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
                rule = f"{self.origin} cannot be read as a torch.export file: {first}."
                raise FileError(rule) from error
        self.module = program.module()
        self.device, self.dtype = _home(self.module)
        names = program.graph_signature.user_inputs
        if len(names) != 1:
            raise InputError(f"{self.name} takes {len(names)} inputs; recal passes one, the batch.")
        (batch,) = [node for node in program.graph.nodes if node.name == names[0]]
        shape = batch.meta["val"].shape
        self.shape = tuple(size if isinstance(size, int) else None for size in shape)
        self.fixed = self.shape[0] if self.shape else None

    def __getstate__(self) -> dict[str, Any]:
        return {"origin": self.origin, "requested": self.requested, "name": self.name}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def fingerprint(self) -> str:
        return digest_file(self.origin) if isinstance(self.origin, Path) else super().fingerprint()

    @contextmanager
    def running(self) -> Iterator[None]:
        if self.requested is not None:  # exported modules have no training mode to restore
            self.device = as_device(self.requested)
            self.module.to(self.device)
        with torch.no_grad():
            yield


def as_device(device: Any) -> torch.device:
    """Return a device of this machine; refuse any other."""
    try:
        usable = torch.device(device)
        torch.empty(1, device=usable)  # fails if this build of torch, or this machine, lacks it
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        rule = f"The device {device!r} cannot be used here ({reason})"
        raise InputError(rule, remedy="Use 'cpu'") from error
    return usable


def as_tensor(values: Any) -> torch.Tensor:
    """Return an array or tensor as a tensor, without a copy if possible."""
    if isinstance(values, torch.Tensor):
        return values
    array = np.asarray(values)
    if array.dtype.kind not in "biufc":
        rule = f"A torch model takes numbers, and this batch has dtype {array.dtype}"
        raise InputError(rule, remedy="Convert it in the preprocessing")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    # Copy read-only arrays: torch warns about them and may write to them.
    return torch.from_numpy(np.ascontiguousarray(array) if array.flags.writeable else array.copy())


def _home(module: torch.nn.Module) -> tuple[torch.device, torch.dtype | None]:
    """Return the device of the first weight and the dtype of the first floating-point weight."""
    weights = [*module.parameters(), *module.buffers()]
    floats = [weight.dtype for weight in weights if weight.is_floating_point()]
    return (weights[0].device if weights else torch.device("cpu")), (floats[0] if floats else None)


class HuggingFaceModel(TorchModel):
    """A model for images, texts or sounds, with the processor that it was trained with.

    The processor resizes, normalises or tokenizes, so it runs after the transformation. It takes
    images as uint8 with channels first or last, texts as strings, and sounds as floats of one rate.
    Transformations run in numpy.

    Texts are sorted by length and run in small batches, so that short texts are not padded to the
    longest one. Sounds are batched only with others of the same length.
    """

    _AT_A_TIME = 32

    def __init__(self, model: Any, processor: Any, *, device: Any = None) -> None:
        if not callable(processor) or not hasattr(model, "state_dict"):
            raise InputError(
                "A pair must be (model, processor or tokenizer) from transformers, got "
                f"{type(model).__name__}, {type(processor).__name__}."
            )
        super().__init__(model, device=device)
        self.processor = processor
        self.takes = "audio" if hasattr(processor, "sampling_rate") else "image"
        if hasattr(processor, "convert_tokens_to_ids"):
            self.takes = "text"
        self.classes = _class_names(model)

    def fingerprint(self) -> str:
        settings = self.processor.to_dict() if hasattr(self.processor, "to_dict") else {}
        texts = {key: repr(value) for key, value in settings.items()}
        return digest([super().fingerprint(), texts])

    def prepare(self, inputs: Any) -> Any:
        if self.takes == "text" and isinstance(inputs, list):
            return inputs
        return to_numpy(inputs)

    def answer(self, batch: Any) -> NDArray[Any]:
        if self.takes == "image":
            encoded = self.processor(images=list(batch), return_tensors="pt")
            return super().answer(encoded["pixel_values"])
        items = list(batch)
        if self.takes == "audio":
            items = [np.asarray(item, dtype=np.float32) for item in items]
        order = np.argsort([len(item) for item in items], kind="stable")
        pieces = self._pieces(order, [len(item) for item in items])
        answers = np.concatenate([self._ask([items[row] for row in piece]) for piece in pieces])
        return answers[np.argsort(order)]

    def _pieces(self, order: NDArray[np.intp], lengths: list[int]) -> list[NDArray[np.intp]]:
        """Split the sorted samples into batches. Sounds in a batch have one length: padding changes
        many outputs.
        """
        starts = np.flatnonzero(np.diff(np.array(lengths)[order])) + 1
        runs, size = [order] if self.takes == "text" else np.split(order, starts), self._AT_A_TIME
        return [run[start : start + size] for run in runs for start in range(0, len(run), size)]

    def _ask(self, items: list[Any]) -> NDArray[Any]:
        own: dict[str, Any] = {"truncation": True}
        if self.takes == "audio":
            own = {"sampling_rate": self.processor.sampling_rate}
        encoded = self.processor(items, return_tensors="pt", padding=True, **own)
        tensors = {}
        for name, value in encoded.items():
            is_cast = self.dtype is not None and value.is_floating_point()
            tensors[name] = value.to(self.device, self.dtype if is_cast else value.dtype)
        return as_numpy(self.module(**tensors), self.name)


def _class_names(model: Any) -> NDArray[Any] | None:
    """Return the names of the columns from the model's configuration (`id2label`), or None if they
    are numbers.
    """
    config = getattr(model, "config", None)
    if getattr(config, "problem_type", None) == "multi_label_classification":
        rule = f"{type(model).__name__} was trained for several labels per input"
        raise InputError(rule, remedy=MULTI_LABEL)
    names = getattr(config, "id2label", None) or {}
    ordered = [str(names[key]) for key in sorted(names, key=int)]
    generic = all(re.fullmatch(r"LABEL_\d+", name) for name in ordered)
    if generic or len(ordered) < 2 or len(set(ordered)) < len(ordered):
        return None
    return np.array(ordered)


def open_pretrained(path: Path, *, device: Any = None) -> HuggingFaceModel:
    """Open a folder written by `save_pretrained`: only safetensors weights are read, and none of
    its code is run.
    """
    with needs_extra("huggingface", f"Opening the folder {path}"):
        import transformers
    check_folder(path)
    safely: Any = {"local_files_only": True, "trust_remote_code": False}
    settings, what = _settings(path / "preprocessor_config.json"), "image"
    models, processors = "AutoModelForImageClassification", "AutoImageProcessor"
    is_extractor = "feature_extractor_type" in settings and "image_processor_type" not in settings
    if is_extractor and "sampling_rate" in settings:
        what, models = "audio", "AutoModelForAudioClassification"
        processors = "AutoFeatureExtractor"
    elif not settings and (path / "tokenizer_config.json").exists():
        what, models, processors = "text", "AutoModelForSequenceClassification", "AutoTokenizer"
    try:
        model = getattr(transformers, models).from_pretrained(path, use_safetensors=True, **safely)
        processor = getattr(transformers, processors).from_pretrained(path, **safely)
    except Exception as error:  # safetensors has errors of its own
        rule = f"{path} is not a Hugging Face {what} classifier with its processor: {error}"
        raise FileError(rule) from error
    return HuggingFaceModel(model, processor, device=device)


def check_folder(path: Path) -> None:
    """Refuse a folder with pickled weights only, code of its own, or files elsewhere."""

    def refuse(why: str) -> NoReturn:
        remedy = "If you trust it, load it yourself and pass (model, processor)"
        raise FileError(f"{path} is not opened: {why}", remedy=remedy)

    weights = "model.safetensors"
    if not (path / weights).is_file() and not (path / f"{weights}.index.json").is_file():
        refuse(f"it holds no {weights}, and other weights (.bin) are pickles that may run any code")
    if (path / "adapter_config.json").exists():
        refuse("it is an adapter to another model; merge the two, and save the result")
    processors = ("preprocessor_config.json", "processor_config.json", "tokenizer_config.json")
    for name in ("config.json", *processors, f"{weights}.index.json"):
        settings = _settings(path / name)
        for key in ("auto_map", "transformers_weights", "custom_pipelines"):
            if key in settings:
                refuse(f"`{key}` in its {name} asks for code or files of its own")
        for shard in settings.get("weight_map", {}).values():
            if Path(str(shard)).name != shard:
                refuse(f"its {name} keeps weights in {shard!r}, outside the folder")
        for key, value in settings.items():
            if "attn_implementation" in key and value is not None and "/" in str(value):
                refuse(f"its {name} asks for code from elsewhere, {value!r}")


def _settings(path: Path) -> dict[str, Any]:
    settings = read_json(path) if path.exists() else {}
    if not isinstance(settings.get("weight_map", {}), dict):
        raise FileError(f"{path} has a weight_map that is no object.")
    return settings
