"""Watching new inputs without labels: have they changed, and which accuracy and temperature do they
have now?

Read the modules in this order. `profile` keeps a few numbers of each sample of a fit. `shift` tests
whether new inputs differ from them. Each view of the labelled samples is a damaged set with known
labels: `learning` collects such sets, and `following` learns to predict temperature and accuracy
from nine statistics of their logits. `class_mix` handles the other explanation of a change: the
same inputs in other class shares. `result` holds what a watch found and applies it to
probabilities.
"""
