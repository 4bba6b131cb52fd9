"""The ranks of torch.distributed's Gloo for collectives_benchmark: torch_side.py SOCKET RANK RANKS FILE

What it is asked and what it answers is in benchmarks/common/sides/request.hpp. Its ranks meet by its own barrier.
"""
import os
import socket
import sys
import time

import torch
import torch.distributed as dist


def buffers(what, elements, rank, ranks):
    if what == "barrier":
        return None, None, lambda: dist.barrier()
    data = torch.empty(elements)
    part = elements // ranks
    own = data[rank * part:(rank + 1) * part]
    if what == "all_reduce":
        return data, None, lambda: dist.all_reduce(data)
    if what == "broadcast":
        return data, None, lambda: dist.broadcast(data, 0)
    if what == "all_gather":
        return data, None, lambda: dist.all_gather_into_tensor(data, own)
    if what == "reduce_scatter":
        output = torch.empty(part)
        return data, output, lambda: dist.reduce_scatter_tensor(output, data)
    raise ValueError("no collective: " + what)


def is_right(what, data, output, values, rank, ranks):
    sums = ranks * values + ranks * (ranks + 1) / 2
    part = 0 if values is None else len(values) // ranks
    if what == "all_reduce":
        return torch.equal(data, sums)
    if what == "broadcast":
        return torch.equal(data, values + 1)
    if what == "all_gather":
        owners = torch.arange(ranks).repeat_interleave(part)
        return torch.equal(data, values + owners + 1)
    if what == "reduce_scatter":
        return torch.equal(output, sums[rank * part:(rank + 1) * part])
    return True


class Ranks:
    def __init__(self, rank, ranks):
        self.rank, self.ranks = rank, ranks
        self.prepared = None

    def measure(self, what, memory, size, batches, calls, fresh, meet, check):
        elements = int(size) // 4
        if self.prepared != (what, elements):
            self.data, self.output, self.call = buffers(what, elements, self.rank, self.ranks)
            self.values = None if elements == 0 else (torch.arange(elements) & 255).float()
            self.prepared = (what, elements)
        times = []
        for batch in range(int(batches)):
            if elements and (fresh == "1" or batch == 0):
                torch.add(self.values, self.rank + 1, out=self.data)
            if meet == "1":
                dist.barrier()
            begin = time.perf_counter_ns()
            for _ in range(int(calls)):
                self.call()
            times.append((time.perf_counter_ns() - begin) / int(calls))
            if check == "1" and batch == 0:
                if not is_right(what, self.data, self.output, self.values, self.rank, self.ranks):
                    raise RuntimeError("wrong result of " + what)
                dist.barrier()
        return times

    def release(self):
        self.prepared = self.data = self.output = self.call = self.values = None


def main():
    name, rank, ranks, meeting_file = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method="file://" + meeting_file, rank=rank, world_size=ranks)
    link = socket.socket(socket.AF_UNIX)
    link.connect("\0" + name)
    link.sendall(f"{rank}\n".encode())
    link.recv(1)  # with it comes shared memory, of which Python has no use
    side = Ranks(rank, ranks)
    for line in link.makefile("r"):
        words = line.split()
        try:
            answer = "ok"
            if words[0] == "release":
                side.release()
            else:
                answer += "".join(f" {ns:.1f}" for ns in side.measure(*words[1:]))
        except Exception as error:
            answer = "failed " + str(error).replace("\n", " ")
        link.sendall((answer + "\n").encode())
    dist.destroy_process_group()


main()
