"""EAGLE-3 heads: one decoder layer that reads the target's hidden states (arXiv 2503.01840)."""
