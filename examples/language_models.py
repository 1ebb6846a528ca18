"""Language models: from a log, or from graded answers, to answers that can be automated. Runs
without network.

The data are simulated: a log in the format of lm-evaluation-harness (`--log_samples`) and a table
of graded answers. With your own files, start at the commands. Run it with `python
examples/language_models.py`, or cell by cell in an editor or a notebook. It takes about 20 seconds
and writes into a temporary folder.
"""

# %% 2,000 questions with four options, asked after reasoning (saturated) and directly
import json
import os
import tempfile

import numpy as np

from recal import SignalCalibration, decide
from recal.cli.app import run

os.chdir(tempfile.mkdtemp())
rng = np.random.default_rng(0)
right = rng.integers(0, 4, 2000)
evidence = rng.gamma(2.0, 0.7, 2000)[:, None] * np.eye(4)[right] + 0.7 * rng.normal(size=(2000, 4))
scores = {
    "reasoned": 12.0 * (evidence + 0.3 * rng.normal(size=evidence.shape)),
    "direct": 1.5 * (evidence + 0.4 * rng.normal(size=evidence.shape)),
}
for name, logits in scores.items():
    with open(f"{name}.jsonl", "w") as file:
        for number, row in enumerate(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)):
            line = {
                "doc_id": number,
                "doc_hash": f"question-{number}",
                "target": str(right[number]),
                "arguments": {
                    f"gen_args_{place}": {"arg_1": f" {one}"} for place, one in enumerate("ABCD")
                },
                "filtered_resps": [[f"{value:.4f}", "False"] for value in row],
            }
            file.write(json.dumps(line) + "\n")

# %% The same as typing `recal collect ...` and `recal calibrate ...`
assert (
    run(
        [
            "collect",
            "--data",
            "reasoned.jsonl",
            "--view",
            "direct=direct.jsonl",
            "--out",
            "views.npz",
        ]
    )
    == 0
)
assert run(["calibrate", "views.npz", "--risk", "0.05", "--out", "calibrated"]) == 0

# %% Graded answers: each has signals, and a person said whether it was right
ease = rng.normal(size=1500)
correct = rng.random(1500) < 1 / (1 + np.exp(-1 - 2 * ease))
signals = {
    "stated": np.clip(0.85 + 0.05 * ease + 0.1 * rng.normal(size=1500), 0, 1),
    "logprob": -np.exp(-ease + 0.5 * rng.normal(size=1500)),
    "length": np.round(80 - 10 * ease + 20 * rng.normal(size=1500)),
}
subject = rng.choice(["history", "law"], 1500)
first, second = slice(0, 800), slice(800, None)
calibrator = SignalCalibration().fit(
    {k: v[first] for k, v in signals.items()}, correct[first], groups=subject[first]
)
print(calibrator.reason_)

# %% Decide, with a guarantee for each subject
confidence = calibrator.predict_confidence(
    {k: v[second] for k, v in signals.items()}, groups=subject[second]
)
decision = decide(confidence, correct[second], risk=0.2, groups=subject[second])
print(decision)
