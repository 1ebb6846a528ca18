"""What `collect` needs from a model, and an adapter for each kind of model."""
