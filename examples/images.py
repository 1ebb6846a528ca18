"""Images: calibrate a classifier of handwritten digits, and find the answers that can be automated.

Run it with `python examples/images.py`, or cell by cell in an editor or a notebook. It takes about
15 seconds.
"""

# %% A trained model and images that it has not seen
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.utils import shuffle

from recal import CalibratedClassifier, decide, evaluate

images, labels = shuffle(load_digits().images.astype("uint8"), load_digits().target, random_state=0)
trained = LogisticRegression(C=1e4, max_iter=3000).fit(images[:300].reshape(300, -1), labels[:300])


def model(batch):
    return trained.decision_function(batch.reshape(len(batch), -1))


# %% Fit: the model runs on the images and on shifted and enlarged copies
classifier = CalibratedClassifier(model, pool="shift+shift:1:direction=right+zoomin:1.1").fit(
    images[300:900], labels[300:900]
)
print(classifier.calibrator_.reason_)

# %% Decide on other labelled images
confidence = classifier.predict_confidence(images[900:1500])
correct = classifier.predict(images[900:1500]) == labels[900:1500]
decision = decide(confidence, correct, risk=0.05)
print(decision)

# %% Answer new images
new = images[1500:]
accepted = decision.accept(classifier.predict_confidence(new))
print(f"{accepted.sum()} of {len(new)} new images are answered without a person.")
print(evaluate(classifier.predict_proba(new), labels[1500:], bootstrap=200))
