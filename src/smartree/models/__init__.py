"""Hugging Face models run as packed passes over the engine's own cache."""
