"""Tables: gradient boosting on 64 columns, with views in which some columns are missing or
replaced.

Run it with `python examples/tables.py`, or cell by cell in an editor or a notebook. It takes about
20 seconds.
"""

# %% A trained model and rows that it has not seen
from sklearn.datasets import load_digits
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import train_test_split

from recal import AutoCalibration, collect, compare, decide, pool

frame, y = load_digits(return_X_y=True, as_frame=True)
train, held_out, y_train, y_held_out = train_test_split(
    frame, y, train_size=400, random_state=0, stratify=y
)
model = HistGradientBoostingClassifier(max_iter=50, random_state=0).fit(train, y_train)

# %% Logits of the rows and of changed copies; medians come from the training rows
transforms = pool("median:0.2+median:0.4+missing:0.2+missing:0.4", data=train)
views = collect(model, held_out, transforms, labels=y_held_out.to_numpy())
fit, rest = views[:700], views[700:]
print(views)

# %% Compare the default with temperature scaling
print(compare(["ts", "auto"], fit, rest, bootstrap=200).to_markdown())

# %% Decide
calibrator = AutoCalibration().fit(fit)
print(calibrator.reason_)
probs, confidence = calibrator.predict_both(rest)
decision = decide(probs, rest.labels, risk=0.05, confidences=confidence, calibrator=calibrator)
print(decision)
