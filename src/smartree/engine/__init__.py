"""The embedded engine: continuous batching with speculation."""
