"""A table: scikit-learn's gradient boosting on 64 measured features, its views by median, permuted or missing features.

Run:   python examples/tables.py
"""

from __future__ import annotations

from ending import end_in_a_decision, parser
from sklearn.datasets import load_digits
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import train_test_split

from recal import collect, pool


def main() -> None:
    options = parser(__doc__).parse_args()
    frame, y = load_digits(return_X_y=True, as_frame=True)
    train, held_out, y_train, y_held_out = train_test_split(frame, y, train_size=400, random_state=0, stratify=y)
    model = HistGradientBoostingClassifier(max_iter=100, random_state=0).fit(train, y_train)
    # Medians and levels come from the training rows; missing values are what boosted trees know by themselves.
    views = pool("median:0.1-0.6:4+permute:0.05-0.4:4+missing:0.1-0.6:4", data=train)
    found = collect(model, held_out, views, labels=y_held_out.to_numpy())
    end_in_a_decision(found, what="rows", record=options.record)


if __name__ == "__main__":
    main()
