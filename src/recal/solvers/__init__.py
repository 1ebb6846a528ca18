"""Numerical problems that several fits share: smooth convex ones, isotonic ones, temperatures."""
