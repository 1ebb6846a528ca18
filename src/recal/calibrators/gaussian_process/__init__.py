"""A latent Gaussian process over logits: `estimator.py` is the method, `latent_process.py` its inference."""
