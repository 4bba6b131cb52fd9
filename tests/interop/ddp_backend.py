"""ddp_backend.py BACKEND PART: a PyTorch script that knows its backend by name only.

train   trains a network with DistributedDataParallel, and prints each loss exactly
ops     checks what the backend has, and what it refuses
die     rank 1 ends in the middle; rank 0 prints the error of its all_reduce
die_in_group  rank 2 ends in the middle; rank 1 prints the error of its all_reduce in the group of ranks 1 and 2, and
        ends with 3
leave   rank 0 ends with a collective under way, and without destroy_process_group()
"""

import os
import select
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

backend, part = sys.argv[1:]
dist.init_process_group(backend)
rank, size = dist.get_rank(), dist.get_world_size()


def train():
    torch.manual_seed(rank)  # other ranks than 0 begin elsewhere
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 1)),
        bucket_cap_mb=0.001)
    for step in range(6):
        x = torch.randn(32, 8)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        model.zero_grad()
        loss.backward()
        with torch.no_grad():  # by hand: making a torch.optim.SGD imports for 2 s
            for p in model.parameters():
                p -= 0.05 * p.grad
        print(f"rank {rank} step {step}: loss {loss.item().hex()}", flush=True)


def ops():
    for asynchronous in (False, True):
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32):
            t = torch.full((5,), rank + 1, dtype=dtype)
            work = dist.all_reduce(t, async_op=asynchronous)
            if asynchronous:
                work.wait()
            assert torch.equal(t, torch.full((5,), size * (size + 1) // 2, dtype=dtype)), (dtype, t)
    for op, want in ((dist.ReduceOp.MAX, size), (dist.ReduceOp.MIN, 1), (dist.ReduceOp.AVG, (size + 1) / 2)):
        t = torch.tensor([float(rank + 1)])
        dist.all_reduce(t, op)
        assert t.item() == want, (op, t)
    t = torch.tensor([float(rank)])
    [sums] = dist.all_reduce(t, async_op=True).get_future().then(lambda f: [f.value()[0] * 2]).wait()
    assert sums.item() == size * (size - 1), sums
    dist.all_reduce(torch.ones(1 << 20), async_op=True)  # nobody keeps its tensor, or its Work
    t = torch.full((3,), rank)
    dist.broadcast(t, size - 1)
    assert t.tolist() == [size - 1] * 3, t
    parts = [torch.empty(2, 2) for _ in range(size)]
    dist.all_gather(parts, torch.full((2, 2), float(rank)))
    assert all(torch.equal(p, torch.full((2, 2), float(r))) for r, p in enumerate(parts)), parts
    dist.barrier()
    half = dist.new_group(list(range(size)))
    dist.all_reduce(t, group=half)
    dist.destroy_process_group(half)
    for wrong, error in ((lambda: dist.all_reduce(torch.zeros(1, dtype=torch.int16)), ValueError),
                         (lambda: dist.all_reduce(torch.zeros(1), dist.ReduceOp.BXOR), ValueError),
                         (lambda: dist.broadcast(torch.zeros(1), size), ValueError),
                         (lambda: dist.send(torch.zeros(1), size), ValueError)):
        try:
            wrong()
        except error:
            continue
        raise AssertionError("not refused")
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(t)
        except ValueError as error:
            os._exit(0 if "forked child" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    dist.all_reduce(t)  # the group goes on
    print(f"rank {rank} of {size}: all as expected", flush=True)


def die():
    dist.barrier()
    if rank == 1:
        os._exit(0)
    for call in (lambda: dist.all_reduce(torch.zeros(1)), lambda: dist.all_reduce(torch.zeros(1))):
        try:
            call()
        except dist.DistBackendError as error:
            print(f"rank {rank} got: {error}", flush=True)


def die_in_backward():
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    for _ in range(2):  # the second forward makes the buckets anew, by calls that block
        model(torch.ones(1, 4)).sum().backward()
    if rank == 1:
        os._exit(0)
    try:
        model(torch.ones(1, 4)).sum().backward()
    except RuntimeError as error:
        print(f"rank {rank} got: {error}", flush=True)
    try:
        dist.all_reduce(torch.zeros(1), async_op=True).get_future().wait()
    except RuntimeError as error:
        print(f"rank {rank} got then: {error}", flush=True)


def die_in_group():
    group = dist.new_group([1, 2])
    dist.barrier()
    if rank == 0:
        dist.distributed_c10d._get_default_store().wait(["rank 1 has failed"])
    if rank == 1:
        try:
            dist.all_reduce(torch.zeros(1), group=group)
        except dist.DistBackendError as error:
            print(f"rank {rank} got: {error}", flush=True)
            dist.distributed_c10d._get_default_store().set("rank 1 has failed", "")
            os._exit(3)
    os._exit(0)


def leave():
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        dist.all_reduce(torch.zeros(1), async_op=True).get_future().then(lambda future: print("called", flush=True))
        store.set("pid", str(os.getpid()))
    else:  # stays, and calls nothing, until rank 0 has ended
        end = select.poll()
        end.register(os.pidfd_open(int(store.get("pid"))))
        end.poll()


globals()[part]()
if part == "train":
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads may let go of tensors when there is no Python any more
