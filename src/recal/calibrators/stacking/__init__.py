"""Stacking: logits of a few chosen views blended: `estimator.py` is the method, `view_choice.py` its search."""
