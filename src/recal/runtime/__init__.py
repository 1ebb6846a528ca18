"""What runs after a fit: probabilities from a plan, in numpy (the reference), torch and ONNX."""
