"""What kind of file is it? Magika's network, trained by Google on 214 types, on the files of this Python installation.

Needs: pip install magika 'recal-calibration[onnx]'
Run:   python examples/file_types.py
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from ending import end_in_a_decision, parser

from recal import collect

# The type that a name's end stands for, in Magika's words.
TYPES = {
    ".py": "python", ".pyi": "python", ".pyc": "pythonbytecode", ".c": "c", ".h": "c", ".hpp": "cpp", ".cpp": "cpp",
    ".cc": "cpp", ".js": "javascript", ".ts": "typescript", ".css": "css", ".html": "html", ".json": "json",
    ".md": "markdown", ".rst": "rst", ".txt": "txt", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".csv": "csv",
    ".svg": "svg", ".png": "png", ".jpg": "jpeg", ".gif": "gif", ".so": "elf", ".zip": "zip", ".gz": "gzip",
    ".ttf": "ttf", ".xml": "xml", ".sh": "shell", ".ini": "ini", ".f90": "fortran", ".f": "fortran", ".npy": "npy",
    ".npz": "npz", ".whl": "zip", ".exe": "pebin", ".tex": "latex", ".diff": "diff", ".sql": "sql", ".pdf": "pdf",
    ".proto": "proto", ".cmake": "cmake", ".el": "lisp", ".ipynb": "ipynb", ".wav": "wav", ".bat": "batch",
}  # fmt: skip
MOST = 30  # files of each type
ENDS, PADDING = 1024, 256


def main() -> None:
    options = parser(__doc__).parse_args()
    try:
        import magika
        import onnx
        import onnxruntime
    except ImportError:
        sys.exit("This example needs magika, and recal's extra onnx: pip install magika 'recal-calibration[onnx]'")
    home = Path(magika.__file__).parent / "models"
    folder = next(path.parent for path in sorted(home.glob("*/model.onnx")))
    types = json.loads((folder / "config.min.json").read_text())["target_labels_space"]
    network = onnx.load(folder / "model.onnx")
    logits = before_softmax(network)
    network.graph.output.append(onnx.ValueInfoProto(name=logits))
    session = onnxruntime.InferenceSession(network.SerializeToString())

    def model(files: np.ndarray) -> np.ndarray:
        return session.run([logits], {"bytes": np.array([features(body) for body in files], dtype=np.int32)})[0]

    bodies, labels = read_files(types)
    views = collect(
        model,
        bodies,
        # Files cut short, or with bytes zeroed: as after a broken download. A pass costs 20 ms, so three views.
        "cut:0.3:side=start+cut:0.5+tokenmask:0.2:mask_id=0",
        labels=labels,
        classes=types,
    )
    end_in_a_decision(views, what="files", record=options.record)


def before_softmax(network) -> str:  # type: ignore[no-untyped-def]
    """The network ends in exp(x) / sum; x are the logits, where the probabilities would be rounded to 0 and 1."""
    *_, divide = network.graph.node
    return next(node.input[0] for node in network.graph.node if node.output[0] == divide.input[0])


def features(body: bytes) -> list[int]:
    """The first and the last 1024 bytes without blanks around them, as Magika takes them."""
    start, end = body[:4096].lstrip()[:ENDS], body[-4096:].rstrip()[-ENDS:]
    return [*start, *[PADDING] * (ENDS - len(start)), *[PADDING] * (ENDS - len(end)), *end]


def read_files(types: list[str]) -> tuple[list[bytes], list[str]]:
    """Return up to 30 files of each type, cut to 64 kB, and the types that their names tell."""
    found: dict[str, set[Path]] = {}
    for root in {Path(np.__file__).parents[1], Path(json.__file__).parents[1]}:
        for path in root.rglob("*"):
            if TYPES.get(path.suffix) in types and path.is_file() and path.stat().st_size >= 32:
                found.setdefault(TYPES[path.suffix], set()).add(path)
    rng = np.random.default_rng(0)
    chosen = []
    for kind, paths in sorted(found.items()):
        listed = sorted(paths)
        chosen += [(listed[place], kind) for place in rng.permutation(len(listed))[:MOST]]
    counts = Counter(kind for _, kind in chosen)
    print(f"{len(chosen)} files of {len(counts)} types, such as {', '.join(kind for kind, _ in counts.most_common(5))}")
    return [path.read_bytes()[:65536] for path, _ in chosen], [kind for _, kind in chosen]


if __name__ == "__main__":
    main()
