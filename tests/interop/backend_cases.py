"""backend_cases.py BACKEND PART: the same cases for any backend; prints one line for each case and rank.

    rank 1 | all_reduce SUM float32 | float32 [3.0, 3.0]

A case returns what it got, or raises; then the line has the exception's type. The test compares the lines of two
backends. PART: collectives, which are exact with any number of ranks, or models, which are with two.
"""

import datetime
import os
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed import ReduceOp

warnings.filterwarnings("ignore")
backend, part = sys.argv[1:]
dist.init_process_group(backend, timeout=datetime.timedelta(seconds=60))
rank, size = dist.get_rank(), dist.get_world_size()
next_rank, previous_rank = (rank + 1) % size, (rank - 1) % size
cases = []


def case(name, *arguments):
    """Adds a case, which is called with the arguments."""
    return lambda function: (cases.append((name, lambda: function(*arguments))), function)[1]


def text(value):
    if isinstance(value, torch.Tensor):
        flat = value.detach().float() if value.is_floating_point() else value.detach()
        return f"{str(value.dtype)[6:]} {flat.to_dense().tolist() if flat.is_sparse else flat.tolist()}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(text, value)) + "]"
    return repr(value)


def run_cases():
    for name, function in cases:
        try:
            result = text(function())
        except Exception as error:
            result = type(error).__name__
            if os.environ.get("SHOW_ERRORS"):
                print(f"rank {rank} {name}: {error}", file=sys.stderr, flush=True)
        print(f"rank {rank} | {name} | {result}", flush=True)


# --- Collectives.

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8]
OPS = {"SUM": ReduceOp.SUM, "PRODUCT": ReduceOp.PRODUCT, "MIN": ReduceOp.MIN, "MAX": ReduceOp.MAX,
       "AVG": ReduceOp.AVG, "BAND": ReduceOp.BAND, "BOR": ReduceOp.BOR, "BXOR": ReduceOp.BXOR}


def own(n=2, dtype=torch.float32):
    return torch.arange(1, n + 1).mul(rank + 1).to(dtype)


def finished(work):
    if work is not None:
        work.wait()


def add_collectives(asynchronous):
    how = " async" if asynchronous else ""

    def do(function, *arguments, **options):
        finished(function(*arguments, async_op=asynchronous, **options))

    def all_reduce(dtype, op):
        t = own(2, dtype)
        do(dist.all_reduce, t, op)
        return t

    for dtype in TYPES:
        for name, op in OPS.items():
            if name == "SUM" or dtype in (torch.float32, torch.int32):
                case(f"all_reduce {name} {str(dtype)[6:]}{how}", dtype, op)(all_reduce)

    def broadcast(dtype, root):
        t = own(2, dtype)
        do(dist.broadcast, t, root)
        return t

    for dtype in [*TYPES, torch.bool, torch.int16]:
        case(f"broadcast {str(dtype)[6:]}{how}", dtype, size - 1)(broadcast)

    @case("all_reduce of complex64" + how)
    def _():
        t = torch.tensor([1 + 1j]) * (rank + 1)
        do(dist.all_reduce, t)
        return torch.view_as_real(t)

    @case("all_reduce of nothing" + how)
    def _():
        t = torch.empty(0)
        do(dist.all_reduce, t)
        return t

    @case("all_reduce of sparse" + how)
    def _():
        t = torch.sparse_coo_tensor([[0, rank + 1]], [1.0, 2.0], (8,))
        do(dist.all_reduce, t)
        return t

    @case("all_gather" + how)
    def _():
        parts = [torch.zeros(2) for _ in range(size)]
        do(dist.all_gather, parts, own())
        return parts

    @case("all_gather into parts of one tensor" + how)
    def _():
        t = torch.zeros(size, 2)
        do(dist.all_gather, list(t.unbind()), own())
        return t

    @case("all_gather_into_tensor" + how)
    def _():
        t = torch.zeros(size * 2)
        do(dist.all_gather_into_tensor, t, own())
        return t

    @case("gather" + how)
    def _():
        parts = [torch.zeros(2) for _ in range(size)] if rank == 1 else None
        do(dist.gather, own(), parts, dst=1)
        return parts or []

    @case("scatter" + how)
    def _():
        t = torch.zeros(2)
        do(dist.scatter, t, [torch.full((2,), 10.0 * r) for r in range(size)] if rank == 1 else None, src=1)
        return t

    for name, op in OPS.items():
        @case(f"reduce {name}{how}", op)
        def _(op):
            t = own(2, torch.int32)
            do(dist.reduce, t, 1, op)
            return t if rank == 1 else []

    for name, op in (("SUM", ReduceOp.SUM), ("AVG", ReduceOp.AVG), ("MAX", ReduceOp.MAX)):
        @case(f"reduce_scatter {name}{how}", op)
        def _(op):
            t = torch.zeros(2)
            do(dist.reduce_scatter, t, [own() * 6 * (r + 1) for r in range(size)], op)
            return t

        @case(f"reduce_scatter_tensor {name}{how}", op)
        def _(op):
            t = torch.zeros(2)
            do(dist.reduce_scatter_tensor, t, own(2 * size) * 6, op)
            return t

    @case("all_to_all" + how)
    def _():
        parts = [torch.zeros(2) for _ in range(size)]
        do(dist.all_to_all, parts, [torch.full((2,), 10.0 * rank + r) for r in range(size)])
        return parts

    @case("all_to_all of unequal sizes" + how)
    def _():
        parts = [torch.zeros(rank + 1) for _ in range(size)]
        do(dist.all_to_all, parts, [torch.full((r + 1,), 10.0 * rank + r) for r in range(size)])
        return parts

    @case("all_to_all_single" + how)
    def _():
        t = torch.zeros(size)
        do(dist.all_to_all_single, t, torch.arange(size).float() + 10 * rank)
        return t

    @case("all_to_all_single with splits" + how)
    def _():
        t = torch.zeros(sum(r + 1 for r in range(size)), 2)
        do(dist.all_to_all_single, t, torch.full(((rank + 1) * size, 2), float(rank)), [r + 1 for r in range(size)],
           [rank + 1] * size)
        return t

    @case("barrier" + how)
    def _():
        do(dist.barrier)


add_collectives(False)
add_collectives(True)


@case("all_gather_coalesced")
def _():
    lists = [[torch.zeros(2), torch.zeros(1)] for _ in range(size)]
    dist.all_gather_coalesced(lists, [own(), own(1)])
    return lists


@case("all_reduce_coalesced")
def _():
    tensors = [own(), own(3)]
    dist.all_reduce_coalesced(tensors)
    return tensors


@case("coalescing manager")
def _():
    a, b = own(), own(3)
    with dist._coalescing_manager():
        dist.all_reduce(a)
        dist.all_reduce(b)
    gathered = torch.zeros(2, size)
    with dist._coalescing_manager():
        for i in range(2):
            dist.all_gather_into_tensor(gathered[i], own(1) + i)
    shares = torch.zeros(2, 1)
    with dist._coalescing_manager():
        for i in range(2):
            dist.reduce_scatter_tensor(shares[i], own(size) + i)
    return a, b, gathered, shares


@case("send and receive")
def _():
    t = torch.zeros(2)
    if rank == 0:
        dist.send(own(), 1)
        return t
    if rank == 1:
        return t, dist.recv(t, 0), t.tolist()
    return None


@case("tags")
def _():
    a, b = torch.zeros(1), torch.zeros(1)
    if rank == 0:
        works = [dist.isend(torch.tensor([float(tag)]), 1, tag=tag) for tag in (1, 2)]
        for work in works:
            work.wait()
    if rank == 1:
        dist.recv(b, 0, tag=2)
        dist.recv(a, 0, tag=1)
    return a, b


@case("receive from any rank")
def _():
    if rank != 0:
        dist.send(torch.tensor([rank]), 0)
    got = []
    for _ in range(size - 1 if rank == 0 else 0):
        t = torch.zeros(1, dtype=torch.int64)
        source = dist.recv(t)
        got.append((source, t.item()))
    dist.barrier()  # the messages of later cases are not for these receives
    return sorted(got)


@case("isend and irecv in a ring")
def _():
    t = torch.zeros(70_000)
    works = [dist.isend(torch.full((70_000,), float(rank)), next_rank), dist.irecv(t, previous_rank)]
    for work in works:
        work.wait()
    return t.sum()


@case("batch_isend_irecv")
def _():
    t = torch.zeros(70_000)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((70_000,), float(rank)), next_rank),
                                        dist.P2POp(dist.irecv, t, previous_rank)]):
        work.wait()
    return t.sum()


@case("futures")
def _():
    t = own()
    work = dist.all_reduce(t, async_op=True)
    return work.get_future().then(lambda future: [future.value()[0] * 2]).wait()


@case("a future within a future")
def _():
    def again(future):
        return [dist.all_reduce(future.value()[0], async_op=True).get_future().wait()[0] + 1]
    return dist.all_reduce(own(), async_op=True).get_future().then(again).then(lambda f: again(f)).wait()


@case("what a work says")
def _():
    work = dist.all_reduce(own(), async_op=True)
    work.wait()
    return work.is_completed(), work.is_success(), work.result()


@case("a work that is polled")
def _():
    t = own()
    work = dist.all_reduce(t, async_op=True)
    while not work.is_completed():
        pass
    return t


@case("objects")
def _():
    everything = [None] * size
    dist.all_gather_object(everything, {"rank": rank})
    shared = [{"from": rank}, rank]
    dist.broadcast_object_list(shared, 1)
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(rank * 10, gathered)
    given = [None]
    dist.scatter_object_list(given, [f"for {r}" for r in range(size)] if rank == 0 else None)
    received = [None]
    if rank == 0:
        dist.send_object_list(["a message"], 1)
    if rank == 1:
        dist.recv_object_list(received, 0)
    return everything, shared, gathered, given, received


@case("functional collectives")
def _():
    import torch.distributed._functional_collectives as funcol
    group = dist.group.WORLD
    return (funcol.all_reduce(own(), "sum", group) + 0, funcol.all_reduce(own(), "avg", group) + 0,
            funcol.all_gather_tensor(own(), 0, group) + 0,
            funcol.reduce_scatter_tensor(own(2 * size), "sum", 0, group) + 0,
            funcol.all_to_all_single(own(size), None, None, group) + 0, funcol.broadcast(own(), 1, group) + 0,
            [t + 0 for t in funcol.all_reduce_coalesced([own(), own(3)], "sum", group)],
            [t + 0 for t in funcol.all_gather_into_tensor_coalesced([own(), own(3)], group)])


@case("monitored_barrier")
def _():
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=30))


@case("new_group")
def _():
    groups = [dist.new_group(ranks) for ranks in ([1, 0], list(range(size)))]
    results = []
    for group in groups:
        t = own()
        if dist.get_rank(group) >= 0:
            dist.all_reduce(t, group=group)
            results += [dist.get_rank(group), t]
            dist.broadcast(t, dist.get_global_rank(group, 0), group=group)
            results.append(t.clone())
            dist.destroy_process_group(group)
    return results


@case("split_group")
def _():
    group = dist.split_group(split_ranks=[[0], list(range(1, size))])
    t = own()
    dist.all_reduce(t, group=group)
    return dist.get_rank(group), dist.get_world_size(group), t


@case("a group's timeout")
def _():
    group = dist.new_group(list(range(size)))
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(milliseconds=200), group)
    if rank == 1:
        return "left alone"
    try:
        dist.all_reduce(own(), group=group)
    except RuntimeError:
        return "RuntimeError"  # what every exception of torch.distributed is


# --- Wrong arguments: each backend refuses them on every rank, and goes on.

for name, wrong in {
    "no such root": lambda: dist.broadcast(own(), size),
    "outputs of another size": lambda: dist.all_gather([torch.zeros(3) for _ in range(size)], own()),
    "outputs of another type": lambda: dist.all_gather([torch.zeros(2).int() for _ in range(size)], own()),
    "too few outputs": lambda: dist.all_gather([torch.zeros(2)] * (size - 1), own()),
    "an output of another size": lambda: dist.all_gather_into_tensor(torch.zeros(size * 2 + 1), own()),
    "an input of another size": lambda: dist.reduce_scatter_tensor(torch.zeros(2), own(2 * size + 1)),
    "splits that do not add up": lambda: dist.all_to_all_single(torch.zeros(size), own(size), [2] * size, [1] * size),
    "outputs not on the root": lambda: dist.gather(own(), None if rank == 0 else [torch.zeros(2)] * size, dst=0),
    "a sum of int16": lambda: dist.all_reduce(own(2, torch.int16)),
    "an average of booleans": lambda: dist.all_reduce(own(2, torch.bool), ReduceOp.AVG),
    "bits of float32": lambda: dist.all_reduce(own(), ReduceOp.BXOR),
    "send to oneself": lambda: dist.send(own(), rank),
}.items():
    def refused(wrong=wrong):
        try:
            wrong()
        except (ValueError, RuntimeError, IndexError, TypeError):
            t = own()
            dist.all_reduce(t)  # the group goes on
            return "refused", t
        return "taken"
    case("wrong: " + name)(refused)

collectives, cases = cases, []


# --- Models.

def network():
    torch.manual_seed(rank)  # other ranks than 0 begin elsewhere
    return torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4), torch.nn.ReLU(),
                               torch.nn.Linear(4, 1))


def losses_of(model, step, count=3):
    torch.manual_seed(100 + rank)
    losses = []
    for _ in range(count):
        x = torch.randn(16, 8)
        loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
        loss.backward()
        step()
        losses.append(loss.item().hex())
    return losses


def by_hand(model, rate=0.05):
    """A step; torch.optim imports for 2 s."""
    def step():
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p -= rate * p.grad
                    p.grad = None
    return step


def train_ddp(hook=None, state=None, bucket_cap_mb=0.001, **options):
    model = torch.nn.parallel.DistributedDataParallel(network(), bucket_cap_mb=bucket_cap_mb, **options)
    if hook is not None:
        model.register_comm_hook(state(), hook)
    return losses_of(model, by_hand(model), 6)


def add_models():
    from torch.distributed.algorithms.ddp_comm_hooks import (debugging_hooks, default_hooks, post_localSGD_hook,
                                                             powerSGD_hook)
    none = lambda: None  # noqa: E731

    case("DDP")(train_ddp)
    for name, options in (("gradient_as_bucket_view", {"gradient_as_bucket_view": True}),
                          ("static_graph", {"static_graph": True}),
                          ("find_unused_parameters", {"find_unused_parameters": True})):
        case(f"DDP {name}")(lambda options=options: train_ddp(**options))
    for name, hook, state in (
            ("allreduce_hook", default_hooks.allreduce_hook, none),
            ("fp16_compress_hook", default_hooks.fp16_compress_hook, none),
            ("bf16_compress_hook", default_hooks.bf16_compress_hook, none),
            ("noop_hook", debugging_hooks.noop_hook, none),
            ("powerSGD_hook", powerSGD_hook.powerSGD_hook,
             lambda: powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)),
            ("post_localSGD_hook", post_localSGD_hook.post_localSGD_hook,
             lambda: post_localSGD_hook.PostLocalSGDState(None, dist.group.WORLD, start_localSGD_iter=3))):
        # One bucket: such a hook calls collectives when an earlier one is complete, so with several buckets the order
        # of the calls would depend on times.
        cap_mb = 25 if "power" in name else 0.001
        case(f"DDP {name}")(lambda hook=hook, state=state, cap_mb=cap_mb: train_ddp(hook, state, cap_mb))

    @case("DDP join")
    def _():
        model = torch.nn.parallel.DistributedDataParallel(network())
        with model.join():
            return losses_of(model, by_hand(model), 2 + rank)

    @case("DDP no_sync")
    def _():
        model = torch.nn.parallel.DistributedDataParallel(network())
        with model.no_sync():
            losses = losses_of(model, lambda: None, 1)
        return losses + losses_of(model, by_hand(model))

    @case("DDP with a sparse gradient")
    def _():
        torch.manual_seed(rank)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.EmbeddingBag(10, 3, sparse=True))
        model(torch.tensor([[rank, 2, 3]])).sum().backward()
        return model.module.weight.grad

    @case("ZeroRedundancyOptimizer")
    def _():
        from torch.distributed.optim import ZeroRedundancyOptimizer
        model = torch.nn.parallel.DistributedDataParallel(network())
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)

        def step():
            optimizer.step()
            optimizer.zero_grad()
        losses = losses_of(model, step)
        optimizer.consolidate_state_dict(0)
        return losses, len(optimizer.state_dict()["state"]) if rank == 0 else 0

    @case("FSDP2")
    def _():
        from torch.distributed.fsdp import fully_shard
        torch.manual_seed(0)
        model = network()
        for module in (*[m for m in model if isinstance(m, torch.nn.Linear)], model):
            fully_shard(module)
        losses = losses_of(model, by_hand(model))
        x = torch.ones(2, 8)
        model(x).sum().backward()
        return losses, torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1).full_tensor()

    @case("DTensor")
    def _():
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor
        mesh = init_device_mesh("cpu", (size,))
        a = distribute_tensor(torch.arange(16.0).view(4, 4), mesh, [Shard(0)])
        b = distribute_tensor(torch.ones(4, 4), mesh, [Replicate()])
        product = a @ b
        return (a.to_local(), product.full_tensor(), a.redistribute(mesh, [Shard(1)]).to_local(), a.sum().full_tensor(),
                product.redistribute(mesh, [Replicate()]).to_local())

    @case("checkpoints of DCP")
    def _():
        import torch.distributed.checkpoint as dcp
        folder = [tempfile.mkdtemp() if rank == 0 else None]
        dist.broadcast_object_list(folder, 0)
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor
        mesh = init_device_mesh("cpu", (size,))
        state = {"weight": distribute_tensor(torch.arange(8.0), mesh, [Shard(0)]), "step": 7}
        dcp.save(state, checkpoint_id=folder[0])
        loaded = {"weight": distribute_tensor(torch.zeros(8), mesh, [Shard(0)]), "step": 0}
        dcp.load(loaded, checkpoint_id=folder[0])
        saving = dcp.async_save(state, checkpoint_id=folder[0] + "/second")
        saving.result()
        return loaded["weight"].to_local(), loaded["step"]


if part == "models":
    add_models()
else:
    cases = collectives
run_cases()
dist.barrier()
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # gloo's threads may let go of tensors when there is no Python any more
