"""PyTorch's backend `ddp`: torch.distributed over libddp, for tensors on a CPU.

torch.distributed.init_process_group("ddp") finds register() by the entry points of the package; a script that runs
without them calls it. So far it has what DistributedDataParallel needs: all_reduce, broadcast, all_gather, barrier.

The ranks meet in PyTorch's own store, so it does not matter who started them.

PyTorch 2.15 asks a Work that is written in Python for wait() and get_future() only: is_completed() of what
torch.distributed returns stays False.
"""

import atexit
import datetime
import itertools
import os

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from ddprun import libddp

_TYPES = {
    torch.float32: libddp.FLOAT32, torch.float64: libddp.FLOAT64, torch.int64: libddp.INT64,
    torch.float16: libddp.FLOAT16, torch.bfloat16: libddp.BFLOAT16, torch.int32: libddp.INT32,
    torch.uint8: libddp.UINT8, torch.int8: libddp.INT8, torch.bool: libddp.BOOLEAN,
    torch.float8_e4m3fn: libddp.FLOAT8_E4M3FN, torch.float8_e5m2: libddp.FLOAT8_E5M2,
}
_OPS = {
    dist.ReduceOp.SUM: libddp.SUM, dist.ReduceOp.AVG: libddp.AVERAGE, dist.ReduceOp.PRODUCT: libddp.PRODUCT,
    dist.ReduceOp.MIN: libddp.MIN, dist.ReduceOp.MAX: libddp.MAX,
}


def register():
    """Makes `ddp` known to torch.distributed. A second call changes nothing."""
    if "DDP" not in dist.Backend._plugins:
        dist.Backend.register_backend("ddp", _create, extended_api=True, devices=["cpu"])


def _create(options, _backend_options):
    return Backend(options.store, options.group_rank, options.group_size, options.timeout, options.group_id)


def _milliseconds(time):
    return max(int(time / datetime.timedelta(milliseconds=1)), 0)


def _error(error):
    if error.status == libddp.INVALID_ARGUMENT:
        return ValueError(str(error))
    if error.status == libddp.STORE_ERROR:
        return dist.DistStoreError(str(error))
    return dist.DistBackendError(str(error))


# What ended a callback and is for the program, until the call that it came from has returned.
_interruptions = []


def _call(function, *arguments):
    try:
        function(*arguments)
    except libddp.Error as error:
        if _interruptions:
            raise _interruptions.pop() from None
        raise _error(error) from None


def _callbacks_of(store):
    """PyTorch's store as libddp's."""

    def callback(function):
        def run(*arguments):
            try:
                function(*arguments)
                return libddp.OK
            except BaseException as error:  # none may pass through C
                if not isinstance(error, Exception):  # ctrl-c
                    _interruptions.append(error)
                libddp.set_last_error(f"{type(error).__name__}: {error}")
                return libddp.TIMEOUT if "timeout" in str(error).lower() else libddp.STORE_ERROR
        return run

    def set_value(_context, key, value, size, _timeout_ms):
        store.set(key.decode(), libddp.ctypes.string_at(value, size))

    def get(_context, key, place, capacity, size, timeout_ms):
        wait_for([key.decode()], timeout_ms)
        value = store.get(key.decode())
        if len(value) <= capacity:
            libddp.ctypes.memmove(place, value, len(value))
        size[0] = len(value)

    def add(_context, key, delta, total, _timeout_ms):
        total[0] = store.add(key.decode(), delta)

    def wait(_context, keys, count, timeout_ms):
        wait_for([keys[i].decode() for i in range(count)], timeout_ms)

    def wait_for(keys, timeout_ms):
        store.wait(keys, datetime.timedelta(milliseconds=timeout_ms))

    def remove(_context, key, _timeout_ms):
        try:
            store.delete_key(key.decode())
        except RuntimeError:
            pass  # a FileStore or another one that can't: names of groups differ

    types = dict(libddp.Store._fields_)
    functions = {"set": set_value, "get": get, "add": add, "wait": wait, "remove": remove}
    return libddp.Store(**{name: types[name](callback(function)) for name, function in functions.items()})


# What the library's thread still has to call, by number. A tensor that is in here is not freed.
# No lock: Work.__del__ may run on a thread that is in here.
_pending = {}
_pending_numbers = itertools.count(1)


@libddp.Completed
def _on_completed(number, status):
    function = _pending.pop(number)
    function(libddp.Error(status, libddp.last_error()) if status != libddp.OK else None)


def _call_when_completed(work, function):
    number = next(_pending_numbers)
    _pending[number] = function
    _call(libddp.work_on_completed, work, _on_completed, number)


class Work(c10d.Work):
    """A collective under way on these tensors, or one that is over (handle None)."""

    def __init__(self, tensors, handle=None):
        super().__init__()
        self._tensors, self._handle, self._future = tensors, handle, None

    def wait(self, timeout=datetime.timedelta(0)):
        if self._handle is None:
            return True
        limit_ms = _milliseconds(timeout)
        if limit_ms == 0:  # as long as the group's own timeout
            _call(libddp.work_wait, self._handle)
            return True
        is_completed = libddp.ctypes.c_int32()
        _call(libddp.work_wait_for, self._handle, limit_ms, is_completed)
        if not is_completed.value:
            raise dist.DistBackendError(f"ddp: the collective is not complete after {limit_ms} ms")
        return True

    def get_future(self):
        if self._future is None:
            self._future = torch.futures.Future()
            if self._handle is None:
                self._future.set_result(self._tensors)
            else:
                _call_when_completed(self._handle, self._complete(self._future, self._tensors))
        return self._future

    @staticmethod
    def _complete(future, tensors):
        def complete(error):
            if error is None:
                future.set_result(tensors)
            else:
                future.set_exception(_error(error))
        return complete

    def __del__(self):
        if self._handle is None:
            return
        is_completed = libddp.ctypes.c_int32()
        libddp.work_is_completed(self._handle, is_completed)
        if not is_completed.value:  # its tensors are in use until then
            tensors = self._tensors
            _call_when_completed(self._handle, lambda _error: tensors)
        libddp.work_destroy(self._handle)


def _from_environment():
    """What libddp reads there itself, unless a program says which ranks there are."""
    ports = os.environ.get("DDPRUN_PORT_RANGE")
    try:
        first, last = map(int, ports.split("-")) if ports else (0, 0)
        if not 0 <= first <= last < 65536:
            raise ValueError
    except ValueError:
        raise ValueError(f"DDPRUN_PORT_RANGE is '{ports}'\ntry:   two ports, as in 29500-29600") from None
    texts = {"round": os.environ.get("DDPRUN_ROUND_ID"), "interface": os.environ.get("DDP_SOCKET_IFNAME")}
    return {"port_min": first, "port_max": last, **{name: text.encode() for name, text in texts.items() if text}}


# All that have not been shut down. PyTorch may hold only the C++ part of one, as under TORCH_DISTRIBUTED_DEBUG=DETAIL,
# and that needs this part.
_groups = set()


@atexit.register
def _leave_groups():
    """What the library's thread still has to call is called before Python ends."""
    for group in list(_groups):
        group.shutdown()


class Backend(c10d.Backend):
    def __init__(self, store, rank, size, timeout, name):
        super().__init__(rank, size)
        self._timeout, self._group, self._sequence = timeout, libddp.ctypes.c_void_p(), 0
        callbacks = _callbacks_of(store)
        bootstrap = libddp.Bootstrap(rank=rank, rank_count=size, store=libddp.ctypes.pointer(callbacks),
                                     name=f"c10d {name}".encode(), **_from_environment())
        options = libddp.InitOptions(backend=b"cpu", timeout_ms=_milliseconds(timeout))
        _call(libddp.init_process_group, bootstrap, options, self._group)
        _groups.add(self)

    def getBackendName(self):  # noqa: N802: the name is PyTorch's
        return "ddp"

    @property
    def options(self):
        return c10d.Backend.Options("ddp", self._timeout)

    def set_timeout(self, timeout):
        self._timeout = timeout

    def _get_sequence_number_for_group(self):
        return self._sequence

    def _set_sequence_number_for_group(self):
        pass  # all ranks count alike from the beginning

    def shutdown(self):
        _groups.discard(self)
        if self._group:
            group, self._group = self._group, libddp.ctypes.c_void_p()
            _call(libddp.group_destroy, group)

    def abort(self):
        if self._group:
            _call(libddp.group_abort, self._group, b"torch.distributed aborted the group")

    def allreduce(self, tensors, opts):
        tensor = self._only(tensors, "all_reduce")
        op = opts.reduceOp.op if hasattr(opts.reduceOp, "op") else opts.reduceOp
        if op not in _OPS:
            raise ValueError(f"ddp: all_reduce with {op} is not supported")
        return self._begin(libddp.all_reduce, opts, tensors, tensor.data_ptr(), tensor.numel(), _TYPES[tensor.dtype],
                           _OPS[op])

    def broadcast(self, tensors, opts):
        tensor = self._only(tensors, "broadcast")
        return self._begin(libddp.broadcast, opts, tensors, tensor.data_ptr(), tensor.numel(), _TYPES[tensor.dtype],
                           opts.rootRank)

    def allgather(self, output_tensors, input_tensors, opts):
        given = self._only(input_tensors, "all_gather")
        outputs = self._only_list(output_tensors, given)
        together = torch.empty((self.size(), given.numel()), dtype=given.dtype)
        self._sequence += 1
        _call(libddp.all_gather, self._group, given.data_ptr(), together.data_ptr(), given.numel(),
              _TYPES[given.dtype], self._options(opts), None)
        for output, part in zip(outputs, together):
            output.copy_(part.view_as(output))
        return Work(outputs)

    def barrier(self, opts):
        return self._begin(libddp.barrier, opts, [])

    def _options(self, opts):
        own = opts.timeout if opts.timeout > datetime.timedelta(0) else self._timeout
        return libddp.CollectiveOptions(timeout_ms=_milliseconds(own))

    def _begin(self, function, opts, tensors, *arguments):
        """A call that blocks is made on this thread, which is what is quick for small tensors."""
        self._sequence += 1
        if not opts.asyncOp:
            _call(function, self._group, *arguments, self._options(opts), None)
            return Work(tensors)
        handle = libddp.ctypes.c_void_p()
        _call(function, self._group, *arguments, self._options(opts), handle)
        return Work(tensors, handle)

    @staticmethod
    def _only(tensors, what):
        if len(tensors) != 1:
            raise ValueError(f"ddp: {what} of {len(tensors)} tensors; it takes one")
        tensor = tensors[0]
        if tensor.device.type != "cpu" or tensor.layout != torch.strided or not tensor.is_contiguous():
            raise ValueError(f"ddp: {what} takes a dense and contiguous tensor on a CPU; this one is on {tensor.device}"
                             f", {tensor.layout}, {'' if tensor.is_contiguous() else 'not '}contiguous")
        if tensor.dtype not in _TYPES:
            raise ValueError(f"ddp: {what} of {tensor.dtype} is not supported")
        return tensor

    def _only_list(self, output_tensors, given):
        if len(output_tensors) != 1 or len(output_tensors[0]) != self.size():
            raise ValueError(f"ddp: all_gather takes one list of {self.size()} outputs")
        for output in output_tensors[0]:
            if output.numel() != given.numel() or output.dtype != given.dtype:
                raise ValueError("ddp: the outputs of all_gather differ from its input in size or type")
        return output_tensors[0]
