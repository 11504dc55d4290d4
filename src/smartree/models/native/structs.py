"""The structures that `kernels.cpp` reads, field by field."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_float, c_int32, c_int64, c_void_p


class Matrix(ctypes.Structure):
    """A packed linear layer."""

    _fields_ = (
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("scale", c_void_p),
        ("offset", c_void_p),
        ("inputs", c_int32),
        ("outputs", c_int32),
        ("streamed", c_int32),
    )


class Layer(ctypes.Structure):
    """A decoder layer."""

    _fields_ = (
        *((name, Matrix) for name in ("q", "k", "v", "o", "gate", "up", "down")),
        *((name, c_void_p) for name in ("norm_in", "norm_post", "norm_q", "norm_k", "norm_hidden")),
        ("eps", c_float),
        ("scale", c_float),
        ("window", c_int32),
        ("normed_residual", c_int32),
    )


class Model(ctypes.Structure):
    """A stack of decoder layers, the norm behind them and the output rows."""

    _fields_ = (
        *((name, c_int32) for name in ("hidden", "heads", "kv_heads", "head_dim", "layers")),
        ("layer", POINTER(Layer)),
        ("norm_out", c_void_p),
        ("eps", c_float),
        ("head", Matrix),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("positions", c_int64),
    )


class Cache(ctypes.Structure):
    """Where keys and values lie, an address for each layer."""

    _fields_ = (("keys", POINTER(c_void_p)), ("values", POINTER(c_void_p)), ("rows", c_int64))


class Group(ctypes.Structure):
    """Requests and the rows that each of them feeds (`RowGroup`)."""

    _fields_ = (
        *((name, c_int32) for name in ("requests", "causal", "width", "columns")),
        *((name, c_void_p) for name in ("slot", "base", "cached", "size", "depth", "above", "mask")),
    )


class Gathered(ctypes.Structure):
    """Chosen rows of a table."""

    _fields_ = (("table", c_void_p), ("rows", c_void_p), ("size", c_int64))
