"""Measures policies on the real engine: suites x batch sizes x temperatures x policies, in one process."""
