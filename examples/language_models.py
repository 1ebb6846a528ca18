"""From the log of a language model to automated answers, in two commands. Runs without network, in about ten seconds.

The log is made up, in the format of lm-evaluation-harness (`--log_samples`): 2,000 questions with four options, asked
after reasoning, where the model is nearly always certain, and directly. With your own log, start at the first command.

    python examples/language_models.py [FOLDER]
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from recal.cli.app import run

OPTIONS = "ABCD"


def write_logs(folder: Path, n_questions: int = 2000, seed: int = 0) -> None:
    """Write two logs of the same questions."""
    rng = np.random.default_rng(seed)
    right = rng.integers(0, 4, n_questions)
    ease = rng.gamma(2.0, 0.7, n_questions)[:, None]
    evidence = ease * np.eye(4)[right] + 0.7 * rng.normal(size=(n_questions, 4))
    logits = {
        "reasoned": 12.0 * (evidence + 0.3 * rng.normal(size=evidence.shape)),  # saturated
        "direct": 1.5 * (evidence + 0.4 * rng.normal(size=evidence.shape)),
    }
    for name, scores in logits.items():
        with (folder / f"{name}.jsonl").open("w") as file:
            for number, (row, label) in enumerate(zip(scores, right.tolist())):
                line = {
                    "doc_id": number,
                    "doc_hash": f"question-{number}",
                    "target": str(label),
                    "arguments": {f"gen_args_{place}": {"arg_1": f" {one}"} for place, one in enumerate(OPTIONS)},
                    "filtered_resps": [[f"{value:.4f}", "False"] for value in row - np.logaddexp.reduce(row)],
                }
                file.write(json.dumps(line) + "\n")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    write_logs(folder)
    log, view, views = folder / "reasoned.jsonl", f"direct={folder / 'direct.jsonl'}", folder / "views.npz"
    commands = [
        ["collect", "--data", str(log), "--view", view, "--out", str(views), "--force"],
        ["calibrate", str(views), "--risk", "0.05", "--out", str(folder / "calibrated"), "--force"],
    ]
    for command in commands:
        print("\n$ recal", *command)
        if code := run(command):
            raise SystemExit(code)


if __name__ == "__main__":
    main()
