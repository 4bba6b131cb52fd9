"""Training with PyTorch that goes on in the same processes when a rank fails. docs/pytorch_backend.md has the rules.

    state = ddprun.ElasticState(model=model, optimizer=optimizer, step=0)

    def train(state):  # called in every round, with a process group of backend `ddp`
        parallel = DistributedDataParallel(state.model)
        while state.step < steps:
            train_one_step(parallel, state.optimizer)
            state.step += 1
            state.commit()

    ddprun.run_elastic(state, train)
"""

import datetime
import gc
import io
import os
import pickle
import socket
import time
import weakref

import torch
import torch.distributed as dist

from ddprun import c10d, c10d_work, libddp

_TIMEOUT = datetime.timedelta(minutes=10)
_STORE_TRY = datetime.timedelta(seconds=5)  # between two looks at whether the round is over
_NEWS_S = 5  # longest time between what the end of another node breaks here, and ddprun's news of it


class ElasticState:
    """What a rank must have to go on where another one was.

    Each keyword is a part. A part that has state_dict() and load_state_dict() is copied by these; any other one is
    pickled, and is read and assigned as an attribute of the state. All ranks make the same parts.

    Memory: two copies of all parts, in host memory, in turns.
    Threads: one at a time.
    """

    def __init__(self, **parts):
        own = {"_parts": parts, "_copies": [None, None], "_newest": None, "_aside": None, "_raised": None,
               "_handle": libddp.ctypes.c_void_p()}
        self.__dict__.update(own)
        types = dict(libddp.ElasticContents._fields_)
        functions = {"commit": self._commit, "restore": self._restore, "fetch": self._fetch, "adopt": self._adopt}
        self.__dict__["_callbacks"] = libddp.ElasticContents(
            **{name: types[name](self._callback(function)) for name, function in functions.items()})
        c10d_work.checked(libddp.elastic_state_create, self._callbacks, self._handle)
        weakref.finalize(self, libddp.elastic_state_destroy, self._handle)

    def __getattr__(self, name):
        try:
            return self.__dict__["_parts"][name]
        except KeyError:
            raise AttributeError(f"ElasticState has no part '{name}'") from None

    def __setattr__(self, name, value):
        if name in self.__dict__:
            self.__dict__[name] = value
        elif name in self._parts:
            self._parts[name] = value
        else:
            raise AttributeError(f"ElasticState has no part '{name}'\ntry:   ElasticState({name}=..., ...)")

    def commit(self):
        """Keeps a copy: what a failure goes back to. All ranks call it at the same steps, with gradients used up."""
        self._call(libddp.elastic_state_commit, self._handle)

    @property
    def commits(self):
        """How many commits made the state, whichever ranks made them."""
        count = libddp.ctypes.c_uint64()
        self._call(libddp.elastic_state_commits, self._handle, count)
        return count.value

    # --- Calls of libddp, and its callbacks. An exception in a callback leaves by the call that it came from.

    def _call(self, function, *arguments):
        self._raised = None
        try:
            function(*arguments)
            return
        except libddp.Error as error:
            failure = error.copy()
        raised, self._raised = self._raised, None
        raise raised or c10d_work.error_of(failure)  # out of the handler: the program's exception keeps its cause

    def _callback(self, function):
        state = weakref.ref(self)

        def run(_context, *arguments):
            try:
                function.__func__(state(), *arguments)
                return libddp.OK
            except libddp.Error as error:
                libddp.set_last_error(error.text, error.ranks)
                return error.status
            except BaseException as error:  # none may pass through C
                return state()._kept(error)

        return run

    def _kept(self, error):
        self._raised = error
        libddp.set_last_error(_described(error))
        return libddp.ERROR

    def _commit(self):
        older = 1 - (self._newest or 0)
        self._copies[older] = _copy_of(self._parts, self._copies[older])
        self._newest = older

    def _restore(self):
        self._load(self._copies[self._newest])

    def _load(self, copy):
        for name, pickled in copy.parts.items():
            part = self._parts[name]
            value = _unpickled(pickled, copy.tensors)
            if not _has_state_dict(part):
                self._parts[name] = value
                continue
            part.load_state_dict(value)
            if isinstance(part, torch.nn.Module):
                part.zero_grad(set_to_none=True)  # a step that failed may have left gradients

    def _fetch(self, group, source):
        group = libddp.ctypes.c_void_p(group)
        info = _info_of(group)
        older = 1 - (self._newest or 0)
        if info.rank == source:
            if self._newest is None:
                self._copies[older] = _copy_of(self._parts, self._copies[older])
            self._aside = older if self._newest is None else self._newest
            _send(self._copies[self._aside], group, source)
        else:
            self._copies[older] = _receive(group, source, self._copies[older])
            self._aside = older
            missing = self._parts.keys() ^ self._copies[older].parts.keys()
            if missing:
                raise ValueError(f"ElasticState: rank {source} and rank {info.rank} have different parts: "
                                 f"{', '.join(sorted(missing))}\ntry:   the same parts on all ranks")

    def _adopt(self):
        self._newest = self._aside
        self._load(self._copies[self._newest])


def run_elastic(state, train, timeout=_TIMEOUT, seat_timeout=None):
    """Calls train(state) in one round after another, until it has returned on all ranks.

    Each time torch.distributed has a new process group of backend `ddp`, and the state is the same on all ranks.

    timeout       of the group's collectives, and of the meeting of its ranks (a timedelta)
    seat_timeout  longest wait for a part in the next round; default 15 minutes
    """
    if dist.is_initialized():
        raise ValueError("run_elastic: there is a process group already\n"
                         "try:   no init_process_group(): run_elastic makes the group of each round")
    c10d.register()

    @libddp.Train
    def in_round(_context, world):
        try:
            failure = _run_round(state, train, libddp.ctypes.c_void_p(world), timeout)
            gc.collect()  # a DistributedDataParallel of a failed round has hooks in the model until it is freed
            if failure is None:
                return libddp.OK
            libddp.set_last_error(failure.text, failure.ranks)
            return failure.status
        except BaseException as error:  # none may pass through C
            return state._kept(error)
        finally:
            c10d.Elastic.reset()
            _RoundStore.of_this_round.clear()
            c10d_work.failures.clear()

    group = libddp.InitOptions(backend=b"cpu", timeout_ms=c10d_work.milliseconds(timeout))
    options = libddp.ElasticOptions(group=libddp.ctypes.pointer(group),
                                    seat_timeout_ms=c10d_work.milliseconds(seat_timeout) if seat_timeout else 0)
    state._call(libddp.run_elastic, state._handle, in_round, None, options)


def should_stop():
    """Whether the program is to write its checkpoint and end with 0 now. In train(), once for each step."""
    result = libddp.ctypes.c_int32()
    c10d_work.checked(libddp.group_should_stop, c10d.Elastic.world, result)
    return result.value != 0


def _run_round(state, train, world, timeout):
    """None if `train` has returned; else what to tell libddp."""
    c10d_work.failures.clear()
    c10d.Elastic.world, c10d.Elastic.has_further_groups = world, False
    failure = None

    def failure_of(error):
        found = _failure_of(error, world)
        if found is None or not _has_launcher():  # there is no further round
            state._raised = error
        return found or libddp.Error(libddp.ERROR, _described(error))

    try:
        info = _info_of(world)
        c10d.Elastic.round = f" of round {info.round.decode()}"
        dist.init_process_group("ddp", store=_store_of_round(world, info, timeout), rank=info.rank,
                                world_size=info.rank_count, timeout=timeout)
        train(state)
    except Exception as error:
        failure = failure_of(error)
    except BaseException as error:  # ctrl-c, sys.exit()
        state._raised = error
        failure = libddp.Error(libddp.ERROR, type(error).__name__)
    error = _leave_groups()
    if failure is None and error is not None:
        failure = failure_of(error)
    if failure is not None and c10d.Elastic.has_further_groups:
        failure.ranks = ()  # a rank that hangs is found by ddprun: it does not leave the round
    return failure


def _leave_groups():
    """The first error of a send or receive that nobody waited for."""
    first = None
    for _ in range(len(c10d._groups) + 1):  # each error is of another group
        if not dist.is_initialized():
            break
        try:
            dist.destroy_process_group()
        except Exception as error:
            first = first or error
    return first


def _has_launcher():
    return "DDPRUN_AGENT_SOCKET" in os.environ


def _described(error):
    return f"{type(error).__name__}: {error}"


def _chain(error):
    """An exception, and those that it came from."""
    found, left = {}, [error]
    while left:
        each = left.pop()
        if each is not None and id(each) not in found:
            found[id(each)] = each
            left += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]
    return list(found.values())


def _failure_of(error, world):
    """The failure of the round because of which `train` raised this. None: the exception is the program's own."""
    chain = _chain(error)
    texts = [str(each) for each in chain]
    for failure in c10d_work.failures:
        if any(failure.text.partition("\n")[0] in text for text in texts):
            return failure.copy()
    # The program may have handled that failure, or has kept of it nothing but that it failed. A lost store may be the
    # end of the node that serves it, of which ddprun tells a little later.
    if c10d_work.failures or any(isinstance(each, dist.DistError) for each in chain):
        return _end_of_round(world)
    return None


def _end_of_round(world):
    """What libddp says of the end of the round, if that comes soon."""
    end = time.monotonic() + _NEWS_S
    while True:
        try:
            libddp.group_check(world)
        except libddp.Error as over:
            return over.copy()
        if time.monotonic() > end or not _has_launcher():
            return None
        time.sleep(0.01)


def _store_of_round(world, info, timeout):
    """Where further groups meet: the launcher's store, else one of rank 0's."""
    place = libddp.LauncherStore()
    c10d_work.checked(libddp.get_launcher_store, place)
    if place.port == 0 and info.rank_count == 1:
        return dist.HashStore()
    store = None
    if place.port == 0:
        if info.rank == 0:
            own = "127.0.0.1" if info.local_rank_count == info.rank_count else socket.gethostname()
            host = os.environ.get("MASTER_ADDR") or own
            store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timeout)
            place.host, place.port = host.encode(), store.port
        c10d_work.checked(libddp.broadcast, world, libddp.ctypes.addressof(place), libddp.ctypes.sizeof(place),
                          libddp.UINT8, 0, None, None)
    if store is None:
        store = _connected(place.host.decode(), place.port, world, timeout)
    return _RoundStore(dist.PrefixStore(f"ddprun elastic {info.round.decode()}", store), world, timeout)


def _connected(host, port, world, timeout):
    """A client of the store. TCPStore() alone would go on trying when the round is over."""
    end = time.monotonic() + timeout.total_seconds()
    while True:
        try:
            store = dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=min(timeout, _STORE_TRY))
            store.set_timeout(timeout)
            return store
        except dist.DistError:
            c10d_work.checked(libddp.group_check, world)
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


class _RoundStore(dist.Store):
    """A store whose calls raise when the round is over. Else new_group() would wait for a rank that has ended."""

    of_this_round = []  # PyTorch holds only the C++ part of a store, which needs this part

    def __init__(self, store, world, timeout):
        super().__init__()
        self._store, self._world, self._timeout = store, world, timeout
        _RoundStore.of_this_round.append(self)

    def _now(self):
        c10d_work.checked(libddp.group_check, self._world)
        return self._store

    def wait(self, keys, timeout=None):
        timeout = self._timeout if timeout is None else timeout
        end, pause = time.monotonic() + timeout.total_seconds(), 0.001
        while not self._now().check(keys):
            if time.monotonic() > end:
                raise dist.DistStoreError(f"wait timeout after {timeout}, keys: {', '.join(keys)}")
            time.sleep(pause)
            pause = min(2 * pause, 0.02)

    def get(self, key):
        self.wait([key])
        return self._store.get(key)

    def set(self, key, value):
        self._now().set(key, value)

    def add(self, key, value):
        return self._now().add(key, value)

    def compare_set(self, key, expected, desired):
        return self._now().compare_set(key, expected, desired)

    def check(self, keys):
        return self._now().check(keys)

    def delete_key(self, key):
        return self._now().delete_key(key)

    def clone(self):
        return _RoundStore(self._store.clone(), self._world, self._timeout)


def _info_of(group):
    info = libddp.GroupInfo()
    libddp.group_get_info(group, info)
    return info


# --- Copies: each part pickled, without its tensors, and the tensors.

class _Copy:
    def __init__(self, parts, tensors):
        self.parts, self.tensors = parts, tensors


def _has_state_dict(part):
    return hasattr(part, "state_dict") and hasattr(part, "load_state_dict")


def _is_apart(value):
    """Others, as a Parameter, are pickled as they are: with their class, and whether they need gradients."""
    return type(value) is torch.Tensor and not value.requires_grad and value.layout == torch.strided


class _Pickler(pickle.Pickler):
    def __init__(self, file, tensors):
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._tensors, self._indices = tensors, {}

    def persistent_id(self, value):
        if not _is_apart(value):
            return None
        index = self._indices.setdefault(id(value), len(self._tensors))
        if index == len(self._tensors):
            self._tensors.append(value)  # so no other object has its id
        return index, value.device.type


class _Unpickler(pickle.Unpickler):
    def __init__(self, file, tensors):
        super().__init__(file)
        self._tensors, self._made = tensors, {}

    def persistent_load(self, which):
        index, device = which
        if index not in self._made:
            self._made[index] = self._tensors[index].to(device, copy=True)  # a part may keep what it is given
        return self._made[index]


def _copy_of(parts, older):
    """`older`: a copy whose memory may be used."""
    tensors, pickled = [], {}
    for name, part in parts.items():
        file = io.BytesIO()
        _Pickler(file, tensors).dump(part.state_dict() if _has_state_dict(part) else part)
        pickled[name] = file.getvalue()
    room = _room(older, [(tensor.dtype, tensor.shape) for tensor in tensors])
    for to, given in zip(room, tensors, strict=True):
        to.copy_(given)
    return _Copy(pickled, room)


def _unpickled(pickled, tensors):
    return _Unpickler(io.BytesIO(pickled), tensors).load()


def _room(older, kinds):
    """Tensors in host memory: those of an older copy that are of this kind, else new ones."""
    old = older.tensors if older is not None else []
    tensors = []
    for i, (dtype, shape) in enumerate(kinds):
        fits = i < len(old) and old[i].dtype == dtype and old[i].shape == shape
        tensors.append(old[i] if fits else torch.empty(shape, dtype=dtype, device="cpu"))
    return tensors


def _send(copy, group, rank):
    kinds = [(tensor.dtype, tensor.shape) for tensor in copy.tensors]
    head = bytearray(pickle.dumps((copy.parts, kinds)))
    size = torch.tensor([len(head)], device="cpu")
    for tensor in (size, torch.frombuffer(head, dtype=torch.uint8), *copy.tensors):
        _broadcast(tensor, group, rank)


def _receive(group, source, older):
    size = torch.empty(1, dtype=torch.int64, device="cpu")
    _broadcast(size, group, source)
    head = torch.empty(int(size), dtype=torch.uint8, device="cpu")
    _broadcast(head, group, source)
    parts, kinds = pickle.loads(libddp.ctypes.string_at(head.data_ptr(), head.numel()))  # PyTorch may lack NumPy
    tensors = _room(older, kinds)
    for tensor in tensors:
        _broadcast(tensor, group, source)
    return _Copy(parts, tensors)


def _broadcast(tensor, group, root):
    size = tensor.numel() * tensor.element_size()
    if size > 0:
        libddp.broadcast(group, tensor.data_ptr(), size, libddp.UINT8, root, None, None)
