"""What collect needs of a model, and an adapter for each kind."""
