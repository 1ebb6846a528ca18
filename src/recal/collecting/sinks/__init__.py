"""Destinations of logits: memory, one file, or a store that can be resumed."""
