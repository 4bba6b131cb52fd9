"""PyTorch's backend `ddp`: torch.distributed over libddp, for tensors on a CPU.

torch.distributed.init_process_group("ddp") finds register() by the entry points of the package; a script that runs
without them calls it. docs/pytorch_backend.md says what the backend has.

The ranks meet in PyTorch's own store, so it does not matter who started them.
"""

import atexit
import datetime
import functools
import math
import os
import threading

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from ddprun import libddp
from ddprun.c10d_store import callbacks_of
from ddprun.c10d_work import Call, Work, answer_for_own_works, checked, done, error_of, interruptions, milliseconds

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
_BITWISE = {dist.ReduceOp.BAND: torch.bitwise_and, dist.ReduceOp.BOR: torch.bitwise_or,
            dist.ReduceOp.BXOR: torch.bitwise_xor}


def register():
    """Makes `ddp` known to torch.distributed. A second call changes nothing."""
    if "DDP" in dist.Backend._plugins:
        return
    dist.Backend.register_backend("ddp", _create, extended_api=True, devices=["cpu"])
    for name in ("is_completed", "is_success", "exception", "result", "_source_rank", "_get_duration"):
        answer_for_own_works(name)


class Elastic:
    """Set by ddprun.elastic while `train` runs."""

    world = None  # the handle of the group of all ranks, which libddp owns
    round = ""    # part of the names of groups: a survivor has made groups of the same names in earlier rounds
    has_further_groups = False  # whether the program made others. Their errors name ranks by the number in that group.

    @classmethod
    def reset(cls):
        cls.world, cls.round, cls.has_further_groups = None, "", False


os.register_at_fork(after_in_child=Elastic.reset)  # a forked child has no part in the round


def _create(options, _backend_options):
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15):
        raise RuntimeError(f"ddp: PyTorch {torch.__version__} takes no backend that is written in Python\n"
                           "try:   PyTorch 2.15 or newer")
    # Only the group of all ranks is of ddprun's round. The others have ranks that ddprun does not know.
    round_id = None if options.global_ranks_in_group else os.environ.get("DDPRUN_ROUND_ID")
    return Backend(options.store, options.group_rank, options.group_size, options.timeout, options.group_id, round_id,
                   None if options.global_ranks_in_group else Elastic.world)


@functools.lru_cache(maxsize=256)
def _options(timeout, tag=0):
    return libddp.CollectiveOptions(timeout_ms=milliseconds(timeout), tag=tag)


def _from_environment():
    """What libddp reads there itself, unless a program says which ranks there are."""
    ports = os.environ.get("DDPRUN_PORT_RANGE")
    try:
        first, last = map(int, ports.split("-")) if ports else (0, 0)
        if not 0 <= first <= last < 65536:
            raise ValueError
    except ValueError:
        raise ValueError(f"DDPRUN_PORT_RANGE is '{ports}'\ntry:   two ports, as in 29500-29600") from None
    interface = os.environ.get("DDP_SOCKET_IFNAME")
    return {"port_min": first, "port_max": last, **({"interface": interface.encode()} if interface else {})}


# All that have not been shut down. PyTorch may hold only the C++ part of one, as under TORCH_DISTRIBUTED_DEBUG=DETAIL,
# and that needs this part.
_groups = set()


@atexit.register
def _leave_groups():
    """What the library's thread still has to call is called before Python ends."""
    for group in list(_groups):
        group.shutdown()


os.register_at_fork(after_in_child=_groups.clear)  # a forked child has no part in them


class Backend(c10d.Backend):
    def __init__(self, store, rank, size, timeout, name, round_id=None, lent=None):
        """lent: the handle of a group that somebody else destroys. If None, the ranks meet in the store."""
        super().__init__(rank, size)
        self._timeout, self._name = timeout, name
        self._group, self._sequence = libddp.ctypes.c_void_p(), 0
        self._posted = []  # sends and receives that have not begun
        self._coalesced = None  # a list between start_coalescing() and end_coalescing()
        self._lock = threading.RLock()
        self._is_lent = lent is not None
        if self._is_lent:
            self._group = lent
            _groups.add(self)
            return
        if Elastic.world is not None:
            Elastic.has_further_groups = True
            # libddp would wait for a rank that has ended until the timeout. This store raises when the round is over.
            store.set(f"ddp {name} {rank}", b"")
            store.wait([f"ddp {name} {other}" for other in range(size)], timeout)
        callbacks = callbacks_of(store)
        bootstrap = libddp.Bootstrap(rank=rank, rank_count=size, store=libddp.ctypes.pointer(callbacks),
                                     name=f"c10d {name}{Elastic.round}".encode(),
                                     round=round_id.encode() if round_id else None, parent=Elastic.world,
                                     **_from_environment())
        options = libddp.InitOptions(backend=b"cpu", timeout_ms=milliseconds(timeout))
        checked(libddp.init_process_group, bootstrap, options, self._group)
        _groups.add(self)

    def getBackendName(self):  # noqa: N802: the name is PyTorch's
        return "ddp"

    @property
    def options(self):
        return c10d.Backend.Options("ddp", self._timeout)

    @property
    def supports_splitting(self):
        return True

    @property
    def supports_coalescing(self):
        return True

    def set_timeout(self, timeout):
        self._timeout = timeout

    def _get_sequence_number_for_group(self):
        return self._sequence

    def _set_sequence_number_for_group(self):
        pass  # all ranks count alike from the beginning

    def split(self, store, ranks, opts):
        if self.rank() not in ranks:
            return None
        timeout = opts._timeout if opts is not None else self._timeout
        name = f"{self._name} {'-'.join(map(str, ranks))}"
        return Backend(store, ranks.index(self.rank()), len(ranks), timeout, name)

    def shutdown(self):
        _groups.discard(self)
        if self._group:
            try:
                self._begin_posted()
            finally:
                group, self._group = self._group, libddp.ctypes.c_void_p()
                if not self._is_lent:
                    checked(libddp.group_destroy, group)

    def abort(self):
        if self._group:
            checked(libddp.group_abort, self._group, b"torch.distributed aborted the group")

    # --- Collectives.

    def allreduce(self, tensors, opts):
        tensor = _only(tensors, "all_reduce")
        if tensor.layout == torch.sparse_coo:
            return self._all_reduce_sparse(tensor, opts)
        op = _op_of(opts)
        if op in _BITWISE:
            return self._bitwise(tensor, op, opts, "all_reduce", range(self.size()))
        return self._do(opts, self._all_reduce_of(tensor, op, opts), tensors)

    def allreduce_coalesced(self, tensors, opts):
        op = _op_of(opts)
        return self._do_all(opts, [self._all_reduce_of(tensor, op, opts) for tensor in tensors], tensors)

    def _all_reduce_of(self, tensor, op, opts):
        kind = _summable(tensor, "all_reduce")
        place, finish, memory = _inout(tensor)
        return Call(libddp.all_reduce, (place, tensor.numel(), kind, _ddp_op(op, "all_reduce"), self._options(opts)),
                     memory, finish)

    def broadcast(self, tensors, opts):
        tensor = _only(tensors, "broadcast")
        kind, size = _movable(tensor, "broadcast")
        place, finish, memory = _inout(tensor)
        return self._do(opts, Call(libddp.broadcast, (place, tensor.numel() * size, kind, opts.rootRank,
                                                       self._options(opts)), memory, finish), tensors)

    def reduce(self, tensors, opts):
        tensor = _only(tensors, "reduce")
        op = _op_of(opts)
        if op in _BITWISE:
            return self._bitwise(tensor, op, opts, "reduce", [opts.rootRank])
        kind = _summable(tensor, "reduce")
        place, finish, memory = _inout(tensor)
        is_root = self.rank() == opts.rootRank
        return self._do(opts, Call(libddp.reduce, (place, place if is_root else None, tensor.numel(), kind,
                                                    _ddp_op(op, "reduce"), opts.rootRank, self._options(opts)),
                                    memory, finish if is_root else None), tensors)

    def allgather(self, output_tensors, input_tensors, opts):
        given = _only(input_tensors, "all_gather")
        outputs = self._parts(output_tensors, given, "all_gather")
        return self._do(opts, self._all_gather_of(outputs, given, opts), outputs)

    def allgather_coalesced(self, output_tensor_lists, input_tensors, opts):
        """output_tensor_lists[rank][i] is of input_tensors[i]."""
        if len(output_tensor_lists) != self.size():
            raise ValueError(f"ddp: all_gather_coalesced takes {self.size()} lists of outputs")
        calls, results = [], []
        for i, given in enumerate(input_tensors):
            outputs = self._parts([[outputs[i] for outputs in output_tensor_lists]], given, "all_gather_coalesced")
            calls.append(self._all_gather_of(outputs, given, opts))
            results += outputs
        return self._do_all(opts, calls, results)

    def _all_gather_of(self, outputs, given, opts):
        kind, size = _movable(given, "all_gather")
        place, finish, memory = _output(outputs)
        own, _, own_memory = _input([given])
        return Call(libddp.all_gather, (own, place, given.numel() * size, kind, self._options(opts)),
                     [*own_memory, *memory], finish)

    def all_gather_single(self, output, given, opts):
        return self._do(opts, self._all_gather_single_of(output, given, opts), [output])

    def all_gather_single_coalesced(self, outputs, inputs, opts):
        calls = [self._all_gather_single_of(*pair, opts) for pair in zip(outputs, inputs, strict=True)]
        return self._do_all(opts, calls, outputs)

    def _all_gather_single_of(self, output, given, opts):
        _same_kind(output, given, "all_gather_single")
        if output.numel() != given.numel() * self.size():
            raise ValueError(f"ddp: the output of all_gather_single has {output.numel()} elements; it needs "
                             f"{self.size()} times the {given.numel()} of the input")
        return self._all_gather_of([output], given, opts)

    def gather(self, output_tensors, input_tensors, opts):
        given = _only(input_tensors, "gather")
        kind, size = _movable(given, "gather")
        place, finish, memory, result = None, None, [], []
        if self.rank() == opts.rootRank:
            result = self._parts(output_tensors, given, "gather")
            place, finish, memory = _output(result)
        elif any(output_tensors):
            raise ValueError("ddp: gather takes outputs on the root alone")
        own, _, own_memory = _input([given])
        return self._do(opts, Call(libddp.gather, (own, place, given.numel() * size, kind, opts.rootRank,
                                                    self._options(opts)), [*own_memory, *memory], finish), result)

    def scatter(self, output_tensors, input_tensors, opts):
        output = _only(output_tensors, "scatter")
        kind, size = _movable(output, "scatter")
        place, memory = None, []
        if self.rank() == opts.rootRank:
            place, _, memory = _input(self._parts(input_tensors, output, "scatter"))
        elif any(input_tensors):
            raise ValueError("ddp: scatter takes inputs on the root alone")
        to, finish, to_memory = _output([output])
        return self._do(opts, Call(libddp.scatter, (place, to, output.numel() * size, kind, opts.rootRank,
                                                     self._options(opts)), [*to_memory, *memory], finish),
                        output_tensors)

    def reduce_scatter(self, output_tensors, input_tensors, opts):
        output = _only(output_tensors, "reduce_scatter")
        inputs = self._parts(input_tensors, output, "reduce_scatter")
        return self._do(opts, self._reduce_scatter_of(output, inputs, opts, "reduce_scatter"), output_tensors)

    def reduce_scatter_single(self, output, given, opts):
        return self._do(opts, self._reduce_scatter_single_of(output, given, opts), [output])

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts):
        calls = [self._reduce_scatter_single_of(*pair, opts) for pair in zip(outputs, inputs, strict=True)]
        return self._do_all(opts, calls, outputs)

    def _reduce_scatter_single_of(self, output, given, opts):
        _same_kind(given, output, "reduce_scatter_single")
        if given.numel() != output.numel() * self.size():
            raise ValueError(f"ddp: the input of reduce_scatter_single has {given.numel()} elements; it needs "
                             f"{self.size()} times the {output.numel()} of the output")
        return self._reduce_scatter_of(output, [given], opts, "reduce_scatter_single")

    def _reduce_scatter_of(self, output, inputs, opts, what):
        kind = _summable(output, what)
        place, _, memory = _input(inputs)
        to, finish, to_memory = _output([output])
        return Call(libddp.reduce_scatter, (place, to, output.numel(), kind, _ddp_op(_op_of(opts), what),
                                             self._options(opts)), [*to_memory, *memory], finish)

    def alltoall(self, output_tensors, input_tensors, opts):
        if not len(output_tensors) == len(input_tensors) == self.size():
            raise ValueError(f"ddp: all_to_all takes {self.size()} outputs and {self.size()} inputs")
        kind, size = _movable(input_tensors[0], "all_to_all")
        for tensor in (*output_tensors, *input_tensors):
            _same_kind(tensor, input_tensors[0], "all_to_all")
        return self._do(opts, self._all_to_all_of(output_tensors, _counts(output_tensors, size), input_tensors,
                                                  _counts(input_tensors, size), kind, opts), output_tensors)

    def all_to_all_single(self, output, given, output_splits, input_splits, opts):
        kind, size = _movable(given, "all_to_all_single")
        _same_kind(output, given, "all_to_all_single")
        sent = self._split_counts(given, input_splits, size, "input")
        received = self._split_counts(output, output_splits, size, "output")
        return self._do(opts, self._all_to_all_of([output], received, [given], sent, kind, opts), [output])

    def _all_to_all_of(self, outputs, output_counts, inputs, input_counts, kind, opts):
        place, _, memory = _input(inputs)
        to, finish, to_memory = _output(outputs)
        return Call(libddp.all_to_all_v, (place, input_counts, to, output_counts, kind, self._options(opts)),
                     [*memory, *to_memory], finish)

    def barrier(self, opts):
        return self._do(opts, Call(libddp.barrier, (self._options(opts),), []), [])

    def monitored_barrier(self, opts, _wait_all_ranks=False):
        self._begin_posted()
        checked(libddp.monitored_barrier, self._group, self._options(opts))

    # --- Sends and receives. Those of one rank begin when one of them is waited for, or at the next other call: so the
    # sends and receives that a rank has under way at once progress together, whatever their order.

    def send(self, tensors, peer, tag):
        tensor = _only(tensors, "send")
        kind, size = _movable(tensor, "send")
        place, _, memory = _input(tensors)
        return self._post(Call(libddp.send, (place, tensor.numel() * size, kind, peer, _options(self._timeout, tag)),
                                memory), tensors)

    def recv(self, tensors, peer, tag):
        tensor = _only(tensors, "recv")
        kind, size = _movable(tensor, "recv")
        place, finish, memory = _output(tensors)
        return self._post(Call(libddp.receive, (place, tensor.numel() * size, kind, peer,
                                                 _options(self._timeout, tag)), memory, finish,
                                source=libddp.ctypes.c_int32(peer)), tensors)

    def recv_anysource(self, tensors, tag):
        tensor = _only(tensors, "recv")
        kind, size = _movable(tensor, "recv")
        source = libddp.ctypes.c_int32(-1)
        place, finish, memory = _output(tensors)
        call = Call(libddp.receive_from_any, (place, tensor.numel() * size, kind, source,
                                               _options(self._timeout, tag)), memory, finish, source)
        if self._coalesced is not None:
            raise ValueError("ddp: a receive from any rank can't be part of a batch")
        self._begin_posted()
        with self._lock:
            self._begin(call)
        return Work(self, call, tensors)

    def start_coalescing(self):
        if self._coalesced is not None:
            raise RuntimeError("ddp: start_coalescing() within start_coalescing()")
        self._begin_posted()
        self._coalesced = []

    def end_coalescing(self):
        calls, self._coalesced = self._coalesced, None
        if not calls:
            return Work(self, done(), [])
        return Work(self, self._begin_as_one(calls), [tensor for call in calls for tensor in call.tensors])

    def _post(self, call, tensors):
        work = Work(self, call, tensors)
        if self._coalesced is not None:
            call.is_begun = True
            self._coalesced.append(call)
        else:
            with self._lock:
                self._posted.append(call)
        return work

    def _begin_posted(self):
        with self._lock:
            calls, self._posted = self._posted, []
            if len(calls) == 1:
                self._begin(calls[0])
            elif calls:
                libddp.work_destroy(self._begin_as_one(calls).handle)  # each has a work of its own

    def _run_if_alone(self, call, timeout):
        """A send or receive that is waited for at once is made on this thread."""
        with self._lock:
            if timeout or self._posted != [call]:
                return False
            self._posted = []
        self._sequence += 1
        call.run(self._group)
        return True

    def _begin(self, call):
        self._sequence += 1
        try:
            call.begin(self._group)
        except libddp.Error as error:
            call.error = error_of(error)
            raise call.error from None

    def _begin_as_one(self, calls, options=None):
        """Returns the call of all."""
        self._sequence += 1
        failure = []

        @libddp.Calls
        def begin(_context):
            try:
                for call in calls:
                    call.begin(self._group)
                return libddp.OK
            except libddp.Error as error:
                failure.append(error)
                libddp.set_last_error(str(error))
                return error.status
            except BaseException as error:
                interruptions.append(error)
                return libddp.INVALID_ARGUMENT

        def settle():
            for call in calls:
                call.settle()

        together = Call(libddp.coalesce, (begin, None, options or _options(self._timeout)),
                         [tensor for call in calls for tensor in call.tensors], settle)
        try:
            together.begin(self._group)
        except libddp.Error as error:
            for call in calls:
                call.handle, call.error, call.is_begun = None, error_of(error), True
            if interruptions:
                raise interruptions.pop() from None
            raise error_of(error) from None
        return together

    # --- What collectives share.

    def _options(self, opts):
        return _options(opts.timeout if opts.timeout > datetime.timedelta(0) else self._timeout)

    def _do(self, opts, call, result):
        """A call that blocks is made on this thread, which is what is quick for small tensors."""
        if self._coalesced is not None:
            call.is_begun = True
            self._coalesced.append(call)
            return Work(self, call, result)
        if self._posted:
            self._begin_posted()
        if opts.asyncOp:
            self._begin(call)
        else:
            self._sequence += 1
            call.run(self._group)
        return Work(self, call, result)

    def _do_all(self, opts, calls, result):
        if self._coalesced is not None:
            for call in calls:
                call.is_begun = True
            self._coalesced += calls
            return Work(self, calls[-1] if calls else done(), result)
        self._begin_posted()
        if not calls:
            return Work(self, done(), result)
        work = Work(self, self._begin_as_one(calls, self._options(opts)), result)
        for call in calls:
            libddp.work_destroy(call.handle)  # `work` is that of all
        if not opts.asyncOp:
            work.wait()
        return work

    def _bitwise(self, tensor, op, opts, what, roots):
        """libddp has no such operation: the inputs of all ranks come together, and each root computes."""
        kind, size = _movable(tensor, what)
        if tensor.is_floating_point() or tensor.is_complex():
            raise ValueError(f"ddp: {what} with {op} of {tensor.dtype} is not supported")
        together = torch.empty((self.size(), *tensor.shape), dtype=tensor.dtype, device="cpu")

        def finish():
            if self.rank() in roots:
                tensor.copy_(functools.reduce(_BITWISE[op], together))

        own, _, memory = _input([tensor])
        return self._do(opts, Call(libddp.all_gather, (own, together.data_ptr(), tensor.numel() * size, kind,
                                                        self._options(opts)), [*memory, together], finish), [tensor])

    def _all_reduce_sparse(self, tensor, opts):
        """Ranks have different counts of values. The sum is made of those of all ranks. It blocks."""
        if _op_of(opts) != dist.ReduceOp.SUM:
            raise ValueError("ddp: all_reduce of sparse tensors is for SUM only")
        given = tensor.coalesce()
        counts = torch.empty(self.size(), dtype=torch.int64, device="cpu")
        options = self._options(opts)
        own_count = torch.tensor([given._nnz()], device="cpu")
        self._begin_posted()
        Call(libddp.all_gather, (own_count.data_ptr(), counts.data_ptr(), 1, libddp.INT64, options), []).run(
            self._group)

        def from_all(own, width):
            own = own.contiguous()
            kind, _ = _movable(own, "all_reduce")
            together = torch.empty((int(counts.sum()) * width,), dtype=own.dtype, device="cpu")
            each = (libddp.ctypes.c_size_t * self.size())(*(count * width for count in counts.tolist()))
            Call(libddp.all_gather_v, (own.data_ptr(), together.data_ptr(), each, kind, options), []).run(self._group)
            return together

        values = given.values()
        width = math.prod(values.shape[1:])
        indices = from_all(given.indices().t(), given.sparse_dim()).view(-1, given.sparse_dim()).t()
        total = torch.sparse_coo_tensor(indices, from_all(values, width).view(-1, *values.shape[1:]), given.shape,
                                        check_invariants=False)
        tensor.copy_(total.coalesce())
        self._sequence += 1
        return Work(self, done(), [tensor])

    def _parts(self, lists, like, what):
        if len(lists) != 1 or len(lists[0]) != self.size():
            raise ValueError(f"ddp: {what} takes one list of {self.size()} tensors")
        for tensor in lists[0]:
            _same_kind(tensor, like, what)
            if tensor.numel() != like.numel():
                raise ValueError(f"ddp: the tensors of {what} differ in size: {tensor.numel()} and {like.numel()} "
                                 "elements")
        return lists[0]

    def _split_counts(self, tensor, splits, size, which):
        if not splits:
            if tensor.dim() == 0 or tensor.shape[0] % self.size() != 0:
                raise ValueError(f"ddp: the first dimension of the {which} of all_to_all_single can't be split evenly "
                                 f"over {self.size()} ranks")
            splits = [tensor.shape[0] // self.size()] * self.size()
        if len(splits) != self.size() or sum(splits) != tensor.shape[0]:
            raise ValueError(f"ddp: the {which} splits of all_to_all_single are {list(splits)}, for {self.size()} "
                             f"ranks and a first dimension of {tensor.shape[0]}")
        row = size * math.prod(tensor.shape[1:])
        return (libddp.ctypes.c_size_t * self.size())(*(split * row for split in splits))


def _op_of(opts):
    return opts.reduceOp.op if hasattr(opts.reduceOp, "op") else opts.reduceOp


def _ddp_op(op, what):
    if op not in _OPS:
        raise ValueError(f"ddp: {what} with {op} is not supported")
    return _OPS[op]


def _only(tensors, what):
    if len(tensors) != 1:
        raise ValueError(f"ddp: {what} of {len(tensors)} tensors; it takes one")
    return tensors[0]


def _check_dense(tensor, what):
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise ValueError(f"ddp: {what} takes a dense tensor on a CPU; this one is on {tensor.device}, {tensor.layout}")


def _summable(tensor, what):
    _check_dense(tensor, what)
    if tensor.dtype not in _TYPES:
        raise ValueError(f"ddp: {what} of {tensor.dtype} is not supported")
    return _TYPES[tensor.dtype]


def _movable(tensor, what):
    """The type in which a tensor moves, and how many elements of it an element is. Unknown types move as bytes."""
    _check_dense(tensor, what)
    if tensor.dtype in _TYPES:
        return _TYPES[tensor.dtype], 1
    return libddp.UINT8, tensor.element_size()


def _same_kind(tensor, like, what):
    _check_dense(tensor, what)
    if tensor.dtype != like.dtype:
        raise ValueError(f"ddp: the tensors of {what} differ in type: {tensor.dtype} and {like.dtype}")


def _counts(tensors, size):
    return (libddp.ctypes.c_size_t * len(tensors))(*(tensor.numel() * size for tensor in tensors))


def _side_by_side(tensors, is_input, is_output):
    """Where these tensors are side by side and contiguous: their own memory, if it is so already, else a copy. Also
    what copies the copy back, and what must live until then."""
    place = end = tensors[0].data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != end or not tensor.is_contiguous():
            break
        end += tensor.numel() * tensor.element_size()
    else:
        return place, None, tensors
    together = torch.empty(sum(tensor.numel() for tensor in tensors), dtype=tensors[0].dtype, device="cpu")
    parts = [part.view_as(tensor) for part, tensor in zip(together.split([t.numel() for t in tensors]), tensors)]

    def copy(to, given):
        for a, b in zip(to, given):
            a.copy_(b)

    if is_input:
        copy(parts, tensors)
    return together.data_ptr(), (lambda: copy(tensors, parts)) if is_output else None, [together, *tensors]


_input = functools.partial(_side_by_side, is_input=True, is_output=False)
_output = functools.partial(_side_by_side, is_input=False, is_output=True)


def _inout(tensor):
    return _side_by_side([tensor], is_input=True, is_output=True)
