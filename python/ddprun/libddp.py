"""libddp's C interface, include/ddp/ddp.h, by ctypes: as much of it as this package uses.

The library is DDP_LIBRARY, if that is set; else the one in this package's folder; else the loader's.
Functions release the GIL. A status other than DDP_OK is raised as Error.
"""

import ctypes
import os
import pathlib

OK, INVALID_ARGUMENT, TIMEOUT, STORE_ERROR = 0, 1, 3, 9  # ddp_status
FLOAT32, FLOAT64, INT64, FLOAT16, BFLOAT16, INT32, UINT8, INT8, BOOLEAN, FLOAT8_E4M3FN, FLOAT8_E5M2 = range(11)
SUM, AVERAGE, PRODUCT, MIN, MAX, PREMUL_SUM = range(6)
_NAME = "libddp.so.0.1"


class Error(Exception):
    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class _Struct(ctypes.Structure):
    """Sets struct_size, which is the first field of each struct."""

    def __init__(self, **fields):
        super().__init__(struct_size=ctypes.sizeof(self), **fields)


_status, _text, _milliseconds = ctypes.c_int32, ctypes.c_char_p, ctypes.c_int64
_set = ctypes.CFUNCTYPE(_status, ctypes.c_void_p, _text, ctypes.c_void_p, ctypes.c_size_t, _milliseconds)
_get = ctypes.CFUNCTYPE(_status, ctypes.c_void_p, _text, ctypes.c_void_p, ctypes.c_size_t,
                        ctypes.POINTER(ctypes.c_size_t), _milliseconds)
_add = ctypes.CFUNCTYPE(_status, ctypes.c_void_p, _text, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64), _milliseconds)
_wait = ctypes.CFUNCTYPE(_status, ctypes.c_void_p, ctypes.POINTER(_text), ctypes.c_size_t, _milliseconds)
_remove = ctypes.CFUNCTYPE(_status, ctypes.c_void_p, _text, _milliseconds)
Completed = ctypes.CFUNCTYPE(None, ctypes.c_void_p, _status)


class Store(_Struct):
    _fields_ = [("struct_size", ctypes.c_size_t), ("context", ctypes.c_void_p), ("set", _set), ("get", _get),
                ("add", _add), ("wait", _wait), ("remove", _remove)]


class Bootstrap(_Struct):
    _fields_ = [("struct_size", ctypes.c_size_t), ("rank", ctypes.c_int32), ("rank_count", ctypes.c_int32),
                ("local_rank", ctypes.c_int32), ("local_rank_count", ctypes.c_int32), ("store_host", _text),
                ("store_port", ctypes.c_uint16), ("store", ctypes.POINTER(Store)), ("name", _text), ("round", _text),
                ("interface", _text), ("port_min", ctypes.c_uint16), ("port_max", ctypes.c_uint16)]


class InitOptions(_Struct):
    _fields_ = [("struct_size", ctypes.c_size_t), ("backend", _text), ("timeout_ms", _milliseconds)]


class CollectiveOptions(_Struct):
    _fields_ = [("struct_size", ctypes.c_size_t), ("timeout_ms", _milliseconds)]


def _load():
    given = os.environ.get("DDP_LIBRARY")
    own = pathlib.Path(__file__).with_name(_NAME)
    library = ctypes.CDLL(given or (str(own) if own.exists() else _NAME))
    library.ddp_last_error.restype = _text
    library.ddp_set_last_error.argtypes = [_text]
    library.ddp_set_last_error.restype = None
    handle, place, pointer, size, number = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, \
        ctypes.c_size_t, ctypes.c_int32
    options = ctypes.POINTER(CollectiveOptions)
    for name, *arguments in (
            ("init_process_group", ctypes.POINTER(Bootstrap), ctypes.POINTER(InitOptions), place),
            ("group_destroy", handle),
            ("group_abort", handle, _text),
            ("all_reduce", handle, pointer, size, number, number, options, place),
            ("broadcast", handle, pointer, size, number, number, options, place),
            ("all_gather", handle, pointer, pointer, size, number, options, place),
            ("barrier", handle, options, place),
            ("work_wait", handle),
            ("work_wait_for", handle, _milliseconds, ctypes.POINTER(number)),
            ("work_is_completed", handle, ctypes.POINTER(number)),
            ("work_on_completed", handle, Completed, pointer),
            ("work_destroy", handle)):
        function = getattr(library, "ddp_" + name)
        function.argtypes, function.restype, function.errcheck = arguments, _status, _check
    return library


def last_error():
    return _library.ddp_last_error().decode(errors="replace")


def set_last_error(text):
    """For callbacks that are about to return another status than OK."""
    _library.ddp_set_last_error(text.encode(errors="replace"))


def _check(status, _function, _arguments):
    if status != OK:
        raise Error(status, last_error())
    return status


def __getattr__(name):
    return getattr(_library, "ddp_" + name)


_library = _load()
