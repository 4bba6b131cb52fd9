"""libddp's C interface, include/ddp/ddp.h, by ctypes: as much of it as this package uses.

The library is DDP_LIBRARY, if that is set; else the one in this package's folder; else the loader's. It is loaded when
the first function is used. Functions release the GIL. A status other than DDP_OK is raised as Error.
"""

import ctypes
import os
import pathlib

OK, INVALID_ARGUMENT, MISMATCH, TIMEOUT, RANK_FAILURE = 0, 1, 2, 3, 4  # ddp_status
ABORTED, ROUND_OVER = 5, 6
STORE_ERROR, OUT_OF_MEMORY, ERROR = 9, 10, 11
FLOAT32, FLOAT64, INT64, FLOAT16, BFLOAT16, INT32, UINT8, INT8, BOOLEAN, FLOAT8_E4M3FN, FLOAT8_E5M2 = range(11)
SUM, AVERAGE, PRODUCT, MIN, MAX, PREMUL_SUM = range(6)
_NAME = "libddp.so.0.1"


class Error(Exception):
    """ranks: those that a TIMEOUT or RANK_FAILURE names"""

    def __init__(self, status, text, ranks=()):
        super().__init__(text)
        self.status, self.text, self.ranks = status, text, ranks

    def copy(self):
        """One that holds no frames of the program."""
        return Error(self.status, self.text, self.ranks)


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
Calls = ctypes.CFUNCTYPE(_status, ctypes.c_void_p)
Train = ctypes.CFUNCTYPE(_status, ctypes.c_void_p, ctypes.c_void_p)
_fetch = ctypes.CFUNCTYPE(_status, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)


class Store(_Struct):
    _fields_ = [("struct_size", ctypes.c_size_t), ("context", ctypes.c_void_p), ("set", _set), ("get", _get),
                ("add", _add), ("wait", _wait), ("remove", _remove)]


class Bootstrap(_Struct):
    _fields_ = [("struct_size", ctypes.c_size_t), ("rank", ctypes.c_int32), ("rank_count", ctypes.c_int32),
                ("local_rank", ctypes.c_int32), ("local_rank_count", ctypes.c_int32), ("store_host", _text),
                ("store_port", ctypes.c_uint16), ("store", ctypes.POINTER(Store)), ("name", _text), ("round", _text),
                ("interface", _text), ("port_min", ctypes.c_uint16), ("port_max", ctypes.c_uint16),
                ("reserved", ctypes.c_uint32), ("parent", ctypes.c_void_p)]


class InitOptions(_Struct):
    _fields_ = [("struct_size", ctypes.c_size_t), ("backend", _text), ("timeout_ms", _milliseconds)]


class CollectiveOptions(_Struct):
    _fields_ = [("struct_size", ctypes.c_size_t), ("timeout_ms", _milliseconds), ("stream", ctypes.c_void_p),
                ("tag", ctypes.c_int32)]


class GroupInfo(_Struct):
    _fields_ = [("struct_size", ctypes.c_size_t), ("rank", ctypes.c_int32), ("rank_count", ctypes.c_int32),
                ("local_rank", ctypes.c_int32), ("local_rank_count", ctypes.c_int32), ("is_on_gpu", ctypes.c_int32),
                ("device_index", ctypes.c_int32), ("timeout_ms", _milliseconds), ("round", ctypes.c_char * 64)]


class ElasticContents(_Struct):
    _fields_ = [("struct_size", ctypes.c_size_t), ("context", ctypes.c_void_p), ("commit", Calls), ("restore", Calls),
                ("fetch", _fetch), ("adopt", Calls)]


class ElasticOptions(_Struct):
    _fields_ = [("struct_size", ctypes.c_size_t), ("group", ctypes.POINTER(InitOptions)),
                ("seat_timeout_ms", _milliseconds)]


class LauncherStore(_Struct):
    _fields_ = [("struct_size", ctypes.c_size_t), ("port", ctypes.c_uint32), ("host", ctypes.c_char * 260)]


_handle, _place, _pointer, _size, _number = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, \
    ctypes.c_size_t, ctypes.c_int32
_numbers, _sizes, _options = ctypes.POINTER(_number), ctypes.POINTER(_size), ctypes.POINTER(CollectiveOptions)
_SIGNATURES = {
    "init_process_group": (ctypes.POINTER(Bootstrap), ctypes.POINTER(InitOptions), _place),
    "group_destroy": (_handle,),
    "group_abort": (_handle, _text),
    "group_check": (_handle,),
    "group_get_info": (_handle, ctypes.POINTER(GroupInfo)),
    "group_should_stop": (_handle, _numbers),
    "all_reduce": (_handle, _pointer, _size, _number, _number, _options, _place),
    "broadcast": (_handle, _pointer, _size, _number, _number, _options, _place),
    "all_gather": (_handle, _pointer, _pointer, _size, _number, _options, _place),
    "all_gather_v": (_handle, _pointer, _pointer, _sizes, _number, _options, _place),
    "reduce_scatter": (_handle, _pointer, _pointer, _size, _number, _number, _options, _place),
    "reduce_scatter_v": (_handle, _pointer, _pointer, _sizes, _number, _number, _options, _place),
    "reduce": (_handle, _pointer, _pointer, _size, _number, _number, _number, _options, _place),
    "gather": (_handle, _pointer, _pointer, _size, _number, _number, _options, _place),
    "scatter": (_handle, _pointer, _pointer, _size, _number, _number, _options, _place),
    "all_to_all_v": (_handle, _pointer, _sizes, _pointer, _sizes, _number, _options, _place),
    "send": (_handle, _pointer, _size, _number, _number, _options, _place),
    "receive": (_handle, _pointer, _size, _number, _number, _options, _place),
    "receive_from_any": (_handle, _pointer, _size, _number, _numbers, _options, _place),
    "barrier": (_handle, _options, _place),
    "monitored_barrier": (_handle, _options),
    "coalesce": (_handle, Calls, _pointer, _options, _place),
    "work_wait": (_handle,),
    "work_wait_for": (_handle, _milliseconds, _numbers),
    "work_is_completed": (_handle, _numbers),
    "work_duration": (_handle, ctypes.POINTER(ctypes.c_int64)),
    "work_on_completed": (_handle, Completed, _pointer),
    "work_destroy": (_handle,),
    "elastic_state_create": (ctypes.POINTER(ElasticContents), _place),
    "elastic_state_destroy": (_handle,),
    "elastic_state_commit": (_handle,),
    "elastic_state_commits": (_handle, ctypes.POINTER(ctypes.c_uint64)),
    "run_elastic": (_handle, Train, _pointer, ctypes.POINTER(ElasticOptions)),
    "get_launcher_store": (ctypes.POINTER(LauncherStore),),
}


_library = None


def _load():
    global _library
    given = os.environ.get("DDP_LIBRARY")
    own = pathlib.Path(__file__).with_name(_NAME)
    library = ctypes.CDLL(given or (str(own) if own.exists() else _NAME))
    library.ddp_last_error.restype = _text
    library.ddp_last_error_ranks.argtypes = [_numbers, _size]
    library.ddp_last_error_ranks.restype = _size
    library.ddp_set_last_error_of_ranks.argtypes = [_text, _numbers, _size]
    library.ddp_set_last_error_of_ranks.restype = None
    for name, arguments in _SIGNATURES.items():
        function = getattr(library, "ddp_" + name)
        function.argtypes, function.restype, function.errcheck = arguments, _status, _check
        globals()[name] = function
    _library = library


def last_error():
    return _library.ddp_last_error().decode(errors="replace")


def last_error_ranks():
    ranks = (_number * _library.ddp_last_error_ranks(None, 0))()
    _library.ddp_last_error_ranks(ranks, len(ranks))
    return tuple(ranks)


def set_last_error(text, ranks=()):
    """For callbacks that are about to return another status than OK."""
    _library.ddp_set_last_error_of_ranks(text.encode(errors="replace"), (_number * len(ranks))(*ranks), len(ranks))


def _check(status, _function, _arguments):
    if status != OK:
        raise Error(status, last_error(), last_error_ranks())
    return status


def __getattr__(name):
    """Of what is not there before the library is loaded."""
    if name not in _SIGNATURES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    _load()
    return globals()[name]
