"""A `.pt2` file (torch.export) made safe before torch sees it.

`torch.export.load` runs what it reads: it unpickles weights, constants and sample inputs that say so, loads compiled
libraries, evaluates the text of symbolic sizes and guards, imports what the structure of inputs names, and calls any
function under ``torch`` that a node of the graph names. Here the archive is read without torch, all of that is refused
or left out, and a new archive is made in memory of the tensors' bytes and the graph alone: torch parses nothing that
was not checked, however the file was built.
"""

from __future__ import annotations

import ast
import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

from recal.errors import FileError

_MAX_JSON_BYTES = 256 * 2**20
_MAX_DEPTH = 60
_PICKLE = re.compile(rb"\x80[\x02-\x05]|PK\x03\x04")  # a pickle, or what torch.save wraps around one

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Names of weights, devices and versions: nothing that could end a name in the code that torch writes from a graph.
_NAME = re.compile(r"[A-Za-z0-9_.+:\-]*")
_OPERATOR = re.compile(r"torch\.ops\.(aten|prims|quantized_decomposed|torchvision)\.([a-z_][a-zA-Z0-9_]*)\.(\w+)")
# These write, or open, a file that the graph names.
_FILE_OPERATORS = ("save", "from_file", "from_file_out")
_DUNDER = re.compile(r"__i?(and|or|xor|lshift|rshift)__")
_FUNCTION = re.compile(
    r"torch\.ops\.higher_order\.(wrap_with_set_grad_enabled|wrap_with_autocast|cond)|"
    r"torch\.sym_(int|float|max|min|not|ite|sum)|math\.(ceil|floor|trunc|sqrt|prod)|"
    r"_operator\.(getitem|add|sub|mul|truediv|floordiv|mod|neg|pos|pow|eq|ne|lt|le|gt|ge|and_|or_|not_|lshift|rshift)"
)
_CALL = re.compile(
    r"Symbol|Integer|Float|Rational|Add|Mul|Pow|Max|Min|Abs|Eq|Ne|Lt|Le|Gt|Ge|Equality|Unequality|StrictLessThan|"
    r"LessThan|StrictGreaterThan|GreaterThan|And|Or|Not|Piecewise|ExprCondPair|floor|ceiling|FloorDiv|ModularIndexing|"
    r"Where|PythonMod|Mod|CleanDiv|CeilToInt|FloorToInt|CeilDiv|LShift|RShift|PowByNatural|FloatPow|FloatTrueDiv|"
    r"IntTrueDiv|IsNonOverlappingAndDenseIndicator|TruncToFloat|TruncToInt|RoundToInt|RoundDecimal|ToFloat|Identity"
)
_CALCULATIONS = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.keyword, ast.Name, ast.Load, ast.Constant,
    ast.operator, ast.unaryop, ast.cmpop,
)  # fmt: skip
_CONTAINERS = frozenset([None, "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"])


def checked_archive(path: Path) -> io.BytesIO:
    """Return an archive of the tensors and the graph in `path`, and nothing else; refuse what could run."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            return _rebuild(_members(archive), archive)
    except zipfile.BadZipFile as error:
        raise FileError(f"{path} cannot be read as a torch.export file: {error}.") from error
    except FileError as error:
        raise FileError(f"{path} is not opened: {error}.") from None
    except Exception as error:  # zipfile, json and the description's own shape each break in ways of their own
        raise FileError(f"{path} cannot be read as a torch.export file: {error!r}.") from error


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the archive's files by their names below its one folder."""
    found: dict[str, zipfile.ZipInfo] = {}
    if "serialized_exported_program.json" in archive.namelist():
        raise FileError(
            "it was written by torch before 2.8, which pickled the weights; write it again with a newer one"
        )
    roots = {info.filename.partition("/")[0] for info in archive.infolist()}
    for info in archive.infolist():
        name = info.filename.partition("/")[2]
        if len(roots) != 1 or name in found or info.compress_type != zipfile.ZIP_STORED:
            raise FileError("its archive is not one that torch.export.save writes")
        found[name] = info
    return found


def _rebuild(members: dict[str, zipfile.ZipInfo], archive: zipfile.ZipFile) -> io.BytesIO:
    for name, info in members.items():
        if name.startswith("data/aotinductor/"):
            raise FileError("it holds compiled code (AOTInductor); write it with torch.export.save instead")
        if re.fullmatch(r"data/(weights|constants)/[^/]*\.pt", name):
            raise FileError(f"{name} is a pickle, which may run any code; write the file again with a newer torch")
        if name.startswith(("extra/", "data/extra/")) and _PICKLE.match(archive.open(info).read(4)):
            raise FileError(f"its extra file {name} is a pickle, which may run any code")
    kept = {
        "models/model.json": json.dumps(_checked_program(_json(members, archive, "models/model.json"))).encode(),
        "data/sample_inputs/model.pt": b"",  # pickled in every file, and needed by nobody
    }
    for folder, prefix in (("weights", "weight_"), ("constants", "tensor_")):
        config = f"data/{folder}/model_{folder}_config.json"
        payloads = _json(members, archive, config)
        for file in _checked_payloads(payloads, prefix):
            kept[f"data/{folder}/{file}"] = archive.read(members[f"data/{folder}/{file}"])
        kept[config] = json.dumps(payloads).encode()
    for name in ("archive_format", "archive_version", ".data/version", "byteorder"):
        if name in members:
            kept[name] = archive.read(members[name])
            if not re.fullmatch(rb"[a-z0-9]{1,8}\n?", kept[name]):
                raise FileError(f"its {name} was not written by torch")
    rebuilt = io.BytesIO()
    with zipfile.ZipFile(rebuilt, "w", zipfile.ZIP_STORED) as made:
        for name, content in kept.items():
            made.writestr(f"archive/{name}", content)
    rebuilt.seek(0)
    return rebuilt


def _json(members: dict[str, zipfile.ZipInfo], archive: zipfile.ZipFile, name: str) -> dict[str, Any]:
    if name not in members:
        raise FileError(f"it holds no {name}; a file of torch.export.save does")
    if members[name].file_size > _MAX_JSON_BYTES:
        raise FileError(f"its {name} has {members[name].file_size:,} bytes; at most {_MAX_JSON_BYTES:,} are read")
    value = json.loads(archive.read(members[name]))
    if not isinstance(value, dict):
        raise FileError(f"its {name} is not an object")
    return value


def _checked_payloads(payloads: dict[str, Any], prefix: str) -> set[str]:
    """Return the files that hold the tensors; refuse any that is to be unpickled."""
    files = set()
    for name, payload in payloads["config"].items():
        path = payload["path_name"]
        if payload["use_pickle"] is not False:
            raise FileError(f"its {name!r} is stored as a pickle, which may run any code when opened")
        if not isinstance(path, str) or not re.fullmatch(rf"{prefix}\d+", path):
            raise FileError(f"its {name!r} is not stored as a plain tensor, but as {path!r}")
        files.add(path)
    _check(payloads, ())
    return files


def _checked_program(program: dict[str, Any]) -> dict[str, Any]:
    """Return the graph without what only people read; refuse what could run."""
    module = program["graph_module"]
    if module.get("treespec_namedtuple_fields"):
        raise FileError("its inputs or outputs are named tuples; export a module from one tensor to one tensor")
    module["metadata"] = {}
    # Guards are Python code; what they say about the inputs' sizes, the operators say again.
    program["guards_code"] = []
    module["module_call_graph"] = [entry for entry in module["module_call_graph"] if entry["fqn"] == ""]
    for entry in module["module_call_graph"]:
        for key in ("in_spec", "out_spec"):
            _check_structure(json.loads(entry["signature"][key])[1])
    _check(program, ())
    return program


def _check(value: Any, where: tuple[str, ...]) -> None:
    """Walk through a description, with the rule for each string by the key that it stands under."""
    if len(where) > _MAX_DEPTH:
        raise FileError(f"its description is nested more than {_MAX_DEPTH} deep")
    key = where[-1] if where else ""
    if isinstance(value, list):
        for item in value:
            _check(item, (*where, key))
    elif isinstance(value, dict):
        if "target" in value and "metadata" in value:
            value["metadata"] = {}  # stack traces and the like
        if "custom_obj" in value or "as_custom_obj" in value or value.get("custom_obj_values"):
            raise FileError("it holds custom objects, which are pickles")
        for name, item in value.items():
            if key == "range_constraints":
                _check_expression(name)
            elif not _NAME.fullmatch(name):
                raise FileError(f"it holds the name {name!r}")
            _check(item, (*where, name))
    elif isinstance(value, str):
        _check_text(value, key)


def _check_text(text: str, key: str) -> None:
    if key in ("as_string", "as_strings", "in_spec", "out_spec"):  # the first are quoted, the others were read before
        return
    if key in ("target", "as_operator"):
        _check_operator(text)
    elif key == "expr_str":
        _check_expression(text)
    elif not (_IDENTIFIER if key in ("name", "as_name") else _NAME).fullmatch(text) and text:
        raise FileError(f"it holds the name {text!r}")


def _check_operator(target: str) -> None:
    found = _OPERATOR.fullmatch(target)
    known = found and not found[3].startswith("_") and (not found[2].startswith("__") or _DUNDER.fullmatch(found[2]))
    if not _FUNCTION.fullmatch(target) and (not known or (found and found[2] in _FILE_OPERATORS)):
        raise FileError(f"its graph calls {target!r}, which is no calculation on tensors that recal knows")


def _check_expression(text: str) -> None:
    """Refuse the text of a symbolic size that is more than arithmetic: torch gives it to `eval`."""
    try:
        nodes = list(ast.walk(ast.parse(text, mode="eval")))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        nodes = []
    fine = bool(nodes) and len(text) <= 10_000 and all(isinstance(node, _CALCULATIONS) for node in nodes)
    for node in nodes:
        if isinstance(node, ast.Call):
            fine = fine and isinstance(node.func, ast.Name) and bool(_CALL.fullmatch(node.func.id))
        elif isinstance(node, ast.Name):
            fine = fine and bool(_CALL.fullmatch(node.id) or re.fullmatch(r"[a-z]{1,6}\d+|oo|int_oo|nan", node.id))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            fine = fine and bool(_IDENTIFIER.fullmatch(node.value))
    if not fine:
        raise FileError(f"one of its sizes is {text[:80]!r}, which is no arithmetic")


def _check_structure(spec: dict[str, Any]) -> None:
    """Refuse inputs and outputs whose structure would import something."""
    context = spec["context"]
    plain = context is None or _is_plain(json.loads(context) if isinstance(context, str) else context)
    if spec["type"] not in _CONTAINERS or not plain:
        raise FileError(
            f"its inputs or outputs come in a {spec['type']}; export a module from one tensor to the logits alone"
        )
    for child in spec["children_spec"]:
        _check_structure(child)


def _is_plain(context: Any) -> bool:
    return context is None or (isinstance(context, list) and all(isinstance(key, str | int) for key in context))
