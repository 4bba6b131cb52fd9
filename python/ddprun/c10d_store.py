"""PyTorch's store as one of libddp, which ranks meet in."""

import datetime

from ddprun import libddp
from ddprun.c10d_work import interruptions


def callbacks_of(store):
    """PyTorch's store as libddp's."""

    def callback(function):
        def run(*arguments):
            try:
                function(*arguments)
                return libddp.OK
            except BaseException as error:  # none may pass through C
                if not isinstance(error, Exception):  # ctrl-c
                    interruptions.append(error)
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
