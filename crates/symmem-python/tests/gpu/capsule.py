"""Reads a DLPack capsule, without taking it."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple


class Tensor(NamedTuple):
    versioned: bool
    data: int
    device: tuple[int, int]
    code: int
    bits: int
    lanes: int
    shape: list[int]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


def read(capsule: Any) -> Tensor:
    api = ctypes.pythonapi
    api.PyCapsule_IsValid.argtypes = api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    versioned = bool(api.PyCapsule_IsValid(capsule, b"dltensor_versioned"))
    name = b"dltensor_versioned" if versioned else b"dltensor"
    address = api.PyCapsule_GetPointer(capsule, name)
    tensor = _Versioned.from_address(address).tensor if versioned else _Tensor.from_address(address)
    shape = [tensor.shape[dimension] for dimension in range(tensor.ndim)]
    data = (tensor.data or 0) + tensor.byte_offset
    device = (tensor.device_type, tensor.device_id)
    return Tensor(versioned, data, device, tensor.code, tensor.bits, tensor.lanes, shape)
