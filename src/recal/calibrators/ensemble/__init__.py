"""The ensemble of calibrators: its members, their weights, and the stack of the mixture with views."""
