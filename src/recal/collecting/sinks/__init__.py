"""Where logits and probabilities go: memory, one file, or a store that can be resumed."""
