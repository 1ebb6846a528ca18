"""The main job on real images."""
