"""Packed passes in one native call: kernels compiled on the user's machine, for bfloat16 on a CPU."""
