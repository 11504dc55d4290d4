"""Lossless verification: the target's own tokens along the tree."""
