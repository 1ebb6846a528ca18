"""Texts: a model guesses which package a sentence of documentation comes from; recal says when to
trust it.

Run it with `python examples/texts.py`, or cell by cell in an editor or a notebook. It takes about
20 seconds.
"""

# %% Sentences from the docstrings of numpy and scipy, and a trained model
import inspect

import numpy as np
import scipy.special
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.utils import shuffle

from recal import AutoCalibration, collect, decide


def sentences(package):
    texts = {
        (inspect.getdoc(getattr(package, name)) or "").split("\n\n")[0] for name in dir(package)
    }
    return [
        (text.replace("\n", " "), package.__name__.split(".")[0])
        for text in texts
        if 30 < len(text) < 300
    ]


pairs = sorted({pair for package in (np, np.ma, scipy.special) for pair in sentences(package)})
texts, packages = map(np.array, zip(*shuffle(pairs, random_state=0)))
model = make_pipeline(TfidfVectorizer(), LogisticRegression(C=1e3, max_iter=2000)).fit(
    texts[:150], packages[:150]
)

# %% Logits of the texts, and of copies in which words were dropped
views = collect(model, texts[150:], "tokendrop:0.2+cut:0.3", labels=packages[150:])
fit, rest = views[: len(views) // 2], views[len(views) // 2 :]
calibrator = AutoCalibration().fit(fit)
print(calibrator.reason_)

# %% Decide on the other half
correct = rest.logits.argmax(axis=1) == rest.labels
decision = decide(calibrator.predict_confidence(rest), correct, risk=0.1)
print(decision)
