"""The ranks of torch.distributed's Gloo for collectives_benchmark: torch_side.py SOCKET RANK RANKS FILE

The file is where the ranks meet; it does not exist before.
"""
import pathlib
import sys

import torch
import torch.distributed as dist

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "common" / "sides"))
import torch_ranks  # noqa: E402


class Collectives:
    def __init__(self, rank, ranks):
        self.rank, self.ranks = rank, ranks
        self.release()

    def prepare(self, what, size):
        if self.prepared == (what, size):
            return
        self.release()
        elements = size // 4
        part = elements // self.ranks
        self.own = slice(self.rank * part, (self.rank + 1) * part)
        data = torch.empty(elements)
        output = torch.empty(part)
        self.call = {
            "barrier": dist.barrier,
            "all_reduce": lambda: dist.all_reduce(data),
            "broadcast": lambda: dist.broadcast(data, 0),
            "all_gather": lambda: dist.all_gather_into_tensor(data, data[self.own]),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(output, data),
        }[what]
        self.data, self.output, self.values = data, output, (torch.arange(elements) & 255).float()
        self.prepared = (what, size)

    def rewrite(self):
        torch.add(self.values, self.rank + 1, out=self.data)

    def is_right(self):
        what, sums = self.prepared[0], self.ranks * self.values + self.ranks * (self.ranks + 1) / 2
        if what == "all_reduce":
            return torch.equal(self.data, sums)
        if what == "broadcast":
            return torch.equal(self.data, self.values + 1)
        if what == "all_gather":
            owners = torch.arange(self.ranks).repeat_interleave(len(self.values) // self.ranks)
            return torch.equal(self.data, self.values + owners + 1)
        if what == "reduce_scatter":
            return torch.equal(self.output, sums[self.own])
        return True

    def release(self):
        self.prepared = self.call = self.data = self.output = self.values = None


torch_ranks.serve(Collectives, sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
