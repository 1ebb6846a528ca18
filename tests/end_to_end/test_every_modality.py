"""One walk for folders of sounds and for videos: collect, fit, save, apply to new inputs, decide; by
public names. The pages on images, texts, tables and series are walked by tests/docs.

No package brings labelled recordings of sound, or videos: sounds are computed here, and videos are
real digits that move.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
from scipy.signal import lfilter
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from recal import ReCal, collect, decide, load, metrics, save
from recal.collecting import apply, as_source

# Sets are small so that the tests are quick, and ReCal says so.
pytestmark = pytest.mark.filterwarnings("ignore::recal.errors.FewSamplesWarning")


def shuffled(inputs, labels, seed=0):
    order = np.random.default_rng(seed).permutation(len(labels))
    return [inputs[row] for row in order], np.asarray(labels)[order]


def walk(folder: Path, model, held_out, new, pool, *, risk=0.1, **options):
    """Take a model from held-out inputs to a decision on new ones, and hold each step to what it
    promises.

    `held_out` and `new` are (inputs, labels), or paths of folders that tell the labels.
    """
    views = collect(model, held_out[0], pool, labels=held_out[1], progress=False, **options)
    assert views.labels is not None
    # A start at the temperature of these samples, and few iterations: they are some hundreds.
    calibrator = load(
        save(
            ReCal(start="temperature", max_iter=20, random_state=0).fit(views), folder / "fit.recal"
        )
    )
    assert calibrator.needed_transforms(), "no view is used, so nothing of the walk was tried"
    applied = apply(calibrator, model, new[0], labels=new[1], progress=False, **options)
    plain = collect(model, new[0], None, labels=new[1], progress=False, **options)
    y = plain.labels
    assert (applied.labels == y).all()
    assert (applied.probs.argmax(1) == plain.logits.argmax(1)).all(), "an answer was changed"
    raw = np.exp(plain.logits - plain.logits.max(1, keepdims=True))
    raw /= raw.sum(1, keepdims=True)
    assert metrics.nll(applied.probs, y) < metrics.nll(raw, y), "calibration did harm"
    assert applied.passes_per_answer == pytest.approx(1 + len(calibrator.needed_transforms()))
    seen = collect(
        model, new[0], calibrator.needed_transforms(), labels=new[1], progress=False, **options
    )
    np.testing.assert_allclose(applied.probs, calibrator.predict_proba(seen), atol=1e-9)
    # Half of the new samples set the threshold; on the others mistakes stay near what was promised.
    first = np.arange(len(y)) % 2 == 0
    decision = decide(applied.probs[first], y[first], risk=risk)
    assert decision.possible, str(decision)
    accepted = decision.accept(applied.probs[~first])
    assert accepted.mean() > 0.1
    assert metrics.error_rate(applied.probs[~first][accepted], y[~first][accepted]) < 2 * risk
    return views


def overconfident(*steps, c=1e3):
    return make_pipeline(*steps, LogisticRegression(C=c, max_iter=2000))


def pluck(rng, kind, n=3000):
    """A plucked string: a burst of noise in a damped delay line, of which metal rings longer than
    gut and nylon.
    """
    period = int(rng.integers(40, 120))
    feedback = np.zeros(period + 2)
    feedback[0], feedback[-2:] = 1.0, {"metal": -0.5, "gut": -0.485, "nylon": -0.46}[kind]
    sound = lfilter([1.0], feedback, np.append(rng.uniform(-1, 1, period), np.zeros(n)))
    return sound[: int(rng.integers(n // 2, n))]


def loudness(batch):
    """Loudness in 4 bands and 8 stretches, for sounds of any length."""
    rows = []
    for sound in batch:
        power = [
            np.abs(np.fft.rfft(part, 256))
            for part in np.array_split(np.asarray(sound, dtype=float), 8)
        ]
        rows.append(
            np.log([band.mean() + 1e-3 for part in power for band in np.array_split(part, 4)])
        )
    return np.array(rows)


def test_sounds_in_folders_of_wav_and_flac(tmp_path):
    rng = np.random.default_rng(0)
    kinds = ["gut", "metal", "nylon"]
    made = [(pluck(rng, kinds[row % 3]), kinds[row % 3]) for row in range(640)]
    sounds = [(sound + rng.normal(0, 0.2, len(sound)), kind) for sound, kind in made]
    model = overconfident(FunctionTransformer(loudness), StandardScaler())
    model.fit([sound for sound, _ in sounds[:90]], [kind for _, kind in sounds[:90]])
    for row, (sound, kind) in enumerate(sounds[90:]):
        path = (
            tmp_path
            / ("held-out" if row % 2 else "new")
            / kind
            / f"{row}.{'flac' if row % 3 else 'wav'}"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, np.clip(sound / 4, -1, 1), 8000)
    views = walk(
        tmp_path,
        lambda batch: model.decision_function([4 * np.asarray(sound) for sound in batch]),
        (tmp_path / "held-out", None),
        (tmp_path / "new", None),
        "noise:10-30:2+lowpass:0.5+timemask:0.2+quieter:0.5+bits:6",
        risk=0.2,
    )
    assert views.classes.tolist() == kinds


def test_videos_as_frames(tmp_path):
    """A digit that drifts through six frames with noise: which one is it?"""
    images, y = shuffled(load_digits().images, load_digits().target)
    rng = np.random.default_rng(1)
    still = np.repeat(np.pad(np.array(images), ((0, 0), (2, 2), (2, 2)))[:, None], 6, axis=1)
    moved = np.stack([np.roll(still[:, t], rng.integers(-2, 3), axis=2) for t in range(6)], axis=1)
    video = np.clip(16 * moved + rng.normal(0, 60, moved.shape), 0, 255).astype(np.uint8)[..., None]
    flat = FunctionTransformer(
        lambda batch: np.asarray(batch, dtype=float).mean(1).reshape(len(batch), -1) / 255
    )
    model = overconfident(flat).fit(video[:300], y[:300])
    assert as_source(video).n_samples == 1797
    walk(
        tmp_path,
        lambda batch: model.decision_function(batch),
        (video[300:1000], y[300:1000]),
        (video[1000:], y[1000:]),
        "frames:0.2-0.7:3+zoom:0.8+shift:1",
        risk=0.15,
    )
