"""What PyTorch's backend `ddp` makes of one call of libddp: a Work, a future, an exception."""

import collections
import concurrent.futures
import datetime
import functools
import itertools
import os
import threading
import traceback

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from ddprun import libddp


def milliseconds(time):
    return max(int(time / datetime.timedelta(milliseconds=1)), 0)


# The failures of groups that ddprun.elastic has not forgotten yet, the newest ones. The exception that reaches the
# program may be another one: backward() makes a RuntimeError of it.
failures = collections.deque(maxlen=64)
_FAILURES = {libddp.TIMEOUT, libddp.RANK_FAILURE, libddp.ABORTED, libddp.ROUND_OVER}


def error_of(error):
    """The exception of PyTorch for one of libddp."""
    if error.status in _FAILURES:
        failures.append(error.copy())
    if error.status == libddp.INVALID_ARGUMENT:
        return ValueError(str(error))
    if error.status == libddp.STORE_ERROR:
        return dist.DistStoreError(str(error))
    if error.status == libddp.OUT_OF_MEMORY:
        return MemoryError(str(error))
    return dist.DistBackendError(str(error))


# What ended a callback and is for the program, until the call that it came from has returned.
interruptions = []


def checked(function, *arguments):
    try:
        function(*arguments)
    except libddp.Error as error:
        if interruptions:
            raise interruptions.pop() from None
        raise error_of(error) from None


# --- Completion. libddp calls back on one thread, and a function of the program's that a future calls may wait for
# another future (PowerSGD does). So futures are completed by threads of their own, of which there are as many as wait.
def _new_completers():
    return concurrent.futures.ThreadPoolExecutor(max_workers=1024, thread_name_prefix="ddp-completion")


_completers = _new_completers()

# What the library's thread still has to call, by number. A tensor that is in here is not freed.
# No lock: Work.__del__ may run on a thread that is in here.
_pending = {}
_pending_numbers = itertools.count(1)


@libddp.Completed
def _on_completed(number, status):
    function = _pending.pop(number)
    is_error = status != libddp.OK
    function(libddp.Error(status, libddp.last_error(), libddp.last_error_ranks()) if is_error else None)


def _call_when_completed(handle, function):
    number = next(_pending_numbers)
    _pending[number] = function
    checked(libddp.work_on_completed, handle, _on_completed, number)


def _complete_elsewhere(complete):
    try:
        _completers.submit(complete)
    except RuntimeError:  # Python ends, and has no more threads
        complete()


def _forget_calls():
    """In a forked child, which has none of its parent's threads."""
    global _completers
    _pending.clear()
    _completers = _new_completers()


os.register_at_fork(after_in_child=_forget_calls)


class Call:
    """One call of libddp, and how far it is: given, begun, settled.

    tensors   what the call reads or writes; they live until the call is complete
    finish    copies the result to where it belongs; called once, when the call is complete
    source    the rank that a receive from any rank has its message from
    """

    def __init__(self, function, arguments, tensors, finish=None, source=None):
        self.function, self.arguments, self.tensors = function, arguments, tensors
        self.source = source
        self.handle, self.is_begun, self.error = None, False, None
        self._finish, self._lock = finish, threading.Lock()

    def run(self, group):
        self.is_begun = True
        checked(self.function, group, *self.arguments, None)
        self.settle()

    def begin(self, group):
        """Raises libddp.Error, because it is also called within a callback of libddp."""
        self.is_begun = True
        handle = libddp.ctypes.c_void_p()
        self.function(group, *self.arguments, handle)
        self.handle = handle

    def settle(self):
        with self._lock:
            if self._finish is not None:
                finish, self._finish = self._finish, None
                finish()


class _Failed:
    def __init__(self, error):
        self.error = error


def _result_or_raise(future):
    result = future.value()
    if isinstance(result, _Failed):
        raise result.error
    return result


class Work(c10d.Work):
    """A call under way, or one that is over. PyTorch knows its wait() and get_future(); the rest comes through
    answer_for_own_works()."""

    def __init__(self, backend, call, result):
        super().__init__()
        self._backend, self._of, self._result, self._future = backend, call, result, None

    def wait(self, timeout=datetime.timedelta(0)):
        if not self._of.is_begun and not self._backend._run_if_alone(self._of, timeout):
            self._backend._begin_posted()
        if self._of.error is not None:
            raise self._of.error
        if self._of.handle is not None:
            limit_ms = milliseconds(timeout)
            if limit_ms == 0:  # as long as the group's own timeout
                checked(libddp.work_wait, self._of.handle)
            elif not self._is_completed_within(limit_ms):
                raise dist.DistBackendError(f"ddp: the call is not complete after {limit_ms} ms")
        self._of.settle()
        return True

    def _is_completed_within(self, limit_ms):
        is_completed = libddp.ctypes.c_int32()
        checked(libddp.work_wait_for, self._of.handle, limit_ms, is_completed)
        return is_completed.value != 0

    def get_future(self):
        if _asked.is_for_work:
            _asked.work = self
        if self._future is not None:
            return self._future
        if not self._of.is_begun:
            self._backend._begin_posted()
        given = torch.futures.Future()
        # set_exception() is for waiters in Python alone: for DistributedDataParallel in C++ the exception would be the
        # result. What a function of then() raises is an error for both.
        self._future = given.then(_result_or_raise)
        if self._of.handle is None:
            self._complete(given, self._of, self._result, self._of.error)
        else:
            call, result = self._of, self._result

            def complete(error):
                error = None if error is None else error_of(error)
                _complete_elsewhere(lambda: Work._complete(given, call, result, error))

            _call_when_completed(self._of.handle, complete)
        return self._future

    @staticmethod
    def _complete(future, call, result, error):
        if error is None:
            try:
                call.settle()
            except Exception as failure:
                error = failure
        try:
            future.set_result(result if error is None else _Failed(error))
        except Exception:  # of a function that the future calls; nobody else would see it
            traceback.print_exc()

    def is_completed(self):
        if not self._of.is_begun:
            self._backend._begin_posted()
        if self._of.handle is None:
            return True
        is_completed = libddp.ctypes.c_int32()
        checked(libddp.work_is_completed, self._of.handle, is_completed)
        return is_completed.value != 0

    def is_success(self):
        return self.is_completed() and self.exception() is None

    def exception(self):
        if not self.is_completed():
            return None
        try:
            self.wait()
        except Exception as error:
            return error
        return None

    def result(self):
        self.wait()
        return self._result

    def _source_rank(self):
        if self._of.source is None:
            raise RuntimeError("ddp: only a receive has a source")
        self.wait()
        return self._of.source.value

    def _get_duration(self):
        """In milliseconds."""
        duration_ns = libddp.ctypes.c_int64(-1)
        if self._of.handle is not None:
            checked(libddp.work_duration, self._of.handle, duration_ns)
        if duration_ns.value < 0:
            raise RuntimeError("ddp: only an asynchronous call that has completed has a duration")
        return duration_ns.value / 1e6

    def __del__(self):
        call = self._of
        if not call.is_begun and call.error is None:  # nobody waits for this send or receive
            try:
                self._backend._begin_posted()
            except Exception:
                return  # the group is gone
        if call.handle is None:
            return
        try:
            if not self.is_completed():  # its tensors are in use until then
                _call_when_completed(call.handle, lambda error: None if error is not None else call.settle())
            else:
                call.settle()
            libddp.work_destroy(call.handle)
        except (ValueError, libddp.Error):
            pass  # a forked child, in which the handle has no meaning


def done():
    call = Call(None, (), [])
    call.is_begun = True
    return call


# --- torch.distributed hands out a C++ Work, which holds the Python one and forwards wait() and get_future() only
# (PyTorch 2.15, PyProcessGroup.hpp). So a question that it can't answer finds the Python one by get_future().

class _Asked(threading.local):
    is_for_work, work = False, None


_asked = _Asked()
_OP_UNKNOWN = 100  # OpType of such a C++ Work; other backends set the type


def _own_work(work):
    if isinstance(work, Work):
        return work
    if work._get_op_type() != _OP_UNKNOWN:
        return None
    _asked.is_for_work, _asked.work = True, None
    try:
        work.get_future()
    except RuntimeError:  # another backend's, without futures
        return None
    finally:
        _asked.is_for_work = False
    own, _asked.work = _asked.work, None
    return own


def answer_for_own_works(name):
    original = getattr(c10d.Work, name)

    @functools.wraps(original)
    def answer(self):
        own = _own_work(self)
        return original(self) if own is None else getattr(own, name)()

    setattr(c10d.Work, name, answer)
