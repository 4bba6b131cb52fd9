"""How long training stands still for PyTorch's asynchronous checkpoints; see checkpoint_benchmark.cpp."""
import shutil
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp


def seconds_of(call):
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


def main():
    parent = sys.argv[1] if len(sys.argv) > 1 else tempfile.gettempdir()
    megabytes = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 9
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    values = torch.ones(megabytes * 250_000)
    target = torch.zeros_like(values)
    state = {f"values_{rank}": values}
    directory = f"{parent}/torch_checkpoint_benchmark"
    copies, stalls, wholes = [], [], []
    for number in range(rounds + 1):
        dist.barrier()
        copies.append(seconds_of(lambda: target.copy_(values))[0])
        dist.barrier()
        begin = time.perf_counter()
        stall, future = seconds_of(lambda: dcp.async_save(state, checkpoint_id=f"{directory}/{number}"))
        future.result()
        stalls.append(stall)
        wholes.append(time.perf_counter() - begin)
    times = torch.tensor([statistics.median(each[1:]) for each in (copies, stalls, wholes)], dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    copy, stall, whole = times.tolist()
    if rank == 0:
        print(f"| a plain copy | {copy * 1e3:.1f} ms | |")
        print(f"| async_save() stands still | {stall * 1e3:.1f} ms | {stall / copy:.2f} of a copy |")
        print(f"| until it is complete on disk | {whole * 1e3:.1f} ms | |")
        shutil.rmtree(directory)
    dist.barrier()
    dist.destroy_process_group()


main()
