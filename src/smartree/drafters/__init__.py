"""Drafters: cheap proposals of likely tokens."""
