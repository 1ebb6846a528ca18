"""From a trained model to calibrated probabilities, in the steps that every use of recal has.

Run it with `python examples/first_steps.py`; it needs nothing but recal and takes a few seconds.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.utils import shuffle

from recal import Plan, ReCal, TemperatureScaling, collect, evaluate, load, save
from recal.maps.plan import calibrated_probs


def prepare(images: NDArray) -> NDArray:
    """What your model wants of its inputs. It runs after the transformations, which want plain pixels."""
    return images.reshape(len(images), -1) / 16


def main() -> None:
    # 1. A model that is already trained, here with nothing to hold it back, and data that it was not trained on.
    images, labels = shuffle(load_digits().images, load_digits().target, random_state=0)
    model = LogisticRegression(C=1e4, max_iter=3000).fit(prepare(images[:300]), labels[:300])

    # 2. Its logits for those data, as they are and zoomed out in ten ways: the only part that asks the model.
    views = collect(model, images[300:], "zoom:0.7-0.9:10", labels=labels[300:], preprocess=prepare)
    held_out, new = views[:700], views[700:]

    # 3. Learn the correction on one part.
    temperature, recal = TemperatureScaling().fit(held_out), ReCal(random_state=0).fit(held_out)

    # 4. Judge it on the other. One split of 797 samples proves little, mind the intervals; and pictures of 8 x 8 pixels
    #    have little to lose: here temperature scaling does as well as ReCal. `recal demo` has larger ones.
    answers = {
        "as trained": calibrated_probs(Plan(), new),
        "temperature scaling": temperature.predict_proba(new),
        "ReCal": recal.predict_proba(new),
    }
    for name, probs in answers.items():
        found = evaluate(probs, new.labels, bootstrap=500)
        low, high = found.intervals["ece"]
        print(f"{name:<20} ECE {found['ece']:.3f} ({low:.3f} to {high:.3f})   NLL {found['nll']:.3f}")

    # 5. Keep it: a file of data, without a line of code in it.
    with tempfile.TemporaryDirectory() as folder:
        again = load(save(recal, Path(folder) / "digits.recal"))
    print(f"Saved and loaded, the plan of {len(again.plan_.steps)} steps is the same: {again.plan_ == recal.plan_}")


if __name__ == "__main__":
    main()
