"""Trains drafter heads: texts from the target itself, features, training, checkpoints."""
