"""PyTorch's backend `ddp` against gloo, in one run and in turn: prints medians and ratios.

  ddprun --standalone --nproc-per-node=2 torch_ddp.py

With the ddprun package importable, or DDP_LIBRARY and PYTHONPATH set. Each process has a group of both backends, and
measures one block of calls, or of steps, with one backend and then one with the other.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist

import ddprun.c10d

options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
options.add_argument("--blocks", type=int, default=15, help="blocks of each backend")
options.add_argument("--steps", type=int, default=4, help="training steps in a block")
options = options.parse_args()

BACKENDS = ("gloo", "ddp")
LAYERS, WIDTH, BATCH = 4, 2496, 32  # 24.9 million parameters

ddprun.c10d.register()
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
groups = {backend: dist.new_group(list(range(size)), backend=backend) for backend in BACKENDS}


def compare(what, run, count):
    """run(backend) is one call or step. Prints the median over blocks of its time, the slowest rank's of each block."""
    times = {backend: [] for backend in BACKENDS}
    for backend in BACKENDS:
        run(backend)  # the first one connects, and makes buckets
    for block in range(options.blocks):
        for backend in BACKENDS if block % 2 == 0 else reversed(BACKENDS):
            dist.barrier(groups["gloo"])
            begin = time.perf_counter()
            for _ in range(count):
                run(backend)
            taken = torch.tensor([(time.perf_counter() - begin) / count], dtype=torch.float64)
            dist.all_reduce(taken, dist.ReduceOp.MAX, group=groups["gloo"])
            times[backend].append(taken.item())
    if rank == 0:
        gloo, ddp = (statistics.median(times[backend]) for backend in BACKENDS)
        ratios = sorted(a / b for a, b in zip(times["gloo"], times["ddp"]))
        print(f"{what:34} {1e3 * gloo:10.3f} ms {1e3 * ddp:10.3f} ms {gloo / ddp:8.2f}   "
              f"{ratios[0]:.2f} to {ratios[-1]:.2f}", flush=True)


if rank == 0:
    print(f"{size} ranks, PyTorch {torch.__version__}, median of {options.blocks} blocks\n")
    print(f"{'':34} {'gloo':>13} {'ddp':>13} {'gloo/ddp':>8}   of single blocks")
for name, elements, count in (("4 B", 1, 400), ("1 MiB", 1 << 18, 60), ("25 MiB", 25 << 18, 6)):
    tensor = torch.ones(elements) / size
    for asynchronous in (False, True):
        def call(backend):
            work = dist.all_reduce(tensor, group=groups[backend], async_op=asynchronous)
            if asynchronous:
                work.wait()
        compare(f"all_reduce of {name}{', async and wait' if asynchronous else ''}", call, count)

models = {}
for backend in BACKENDS:
    torch.manual_seed(0)
    parts = [part for _ in range(LAYERS) for part in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    models[backend] = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*parts[:-1]), process_group=groups[backend], gradient_as_bucket_view=True)
features, targets = (torch.rand(BATCH, WIDTH) * 2 - 1 for _ in range(2))


def step(backend):
    model = models[backend]
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()
    ((model(features) - targets).square().sum() / (2 * BATCH)).backward()


step("gloo"), step("ddp")  # buckets are made anew after the first step
compare("DDP step, MLP of 24.9 M parameters", step, options.steps)
dist.barrier(groups["gloo"])
dist.destroy_process_group()
