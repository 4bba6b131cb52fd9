"""PyTorch's DistributedDataParallel with Gloo for ddp_step_benchmark: torch_training.py SOCKET RANK RANKS FILE

The same network and sizes as mlp.hpp, and the settings that serve PyTorch best. The file is where the ranks meet.
"""
import contextlib
import pathlib
import sys

import torch
import torch.distributed as dist

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "common" / "sides"))
import torch_ranks  # noqa: E402

LAYERS, WIDTH, BATCH = 4, 2496, 32


def network():
    parts = []
    for _ in range(LAYERS):
        parts += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()]
    return torch.nn.Sequential(*parts[:-1])


class Training:
    def __init__(self, rank, ranks):
        torch.manual_seed(17 + rank)
        self.model = torch.nn.parallel.DistributedDataParallel(network(), gradient_as_bucket_view=True)
        self.features, self.targets = torch.rand(BATCH, WIDTH) * 2 - 1, torch.rand(BATCH, WIDTH) * 2 - 1
        self.everything = None

    def prepare(self, what, size):
        self.what = what
        if what == "all_reduce" and self.everything is None:
            self.everything = torch.empty(sum(p.numel() for p in self.model.parameters()))

    def rewrite(self):
        if self.what == "all_reduce":
            self.everything.fill_(1)

    def step(self, sync):
        self.model.zero_grad(set_to_none=True)
        with contextlib.nullcontext() if sync else self.model.no_sync():
            error = self.model(self.features) - self.targets
            (error.square().sum() / (2 * BATCH)).backward()

    def call(self):
        if self.what == "all_reduce":
            dist.all_reduce(self.everything)
        else:
            self.step(self.what == "sync")

    def is_right(self):
        return True

    def release(self):
        self.everything = None


torch_ranks.serve(Training, sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
