"""PyTorch's DistributedDataParallel with Gloo for ddp_step_benchmark: torch_training.py SOCKET RANK RANKS FILE MODEL

The same three models with the same sizes of parameters as models.cpp, and the settings that serve PyTorch best. The
file is where the ranks meet.
"""
import contextlib
import pathlib
import sys

import torch
import torch.distributed as dist
from torch.nn import functional

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "common" / "sides"))
import torch_ranks  # noqa: E402


class Mlp(torch.nn.Module):
    LAYERS, WIDTH, BATCH = 4, 2496, 32

    def __init__(self):
        super().__init__()
        parts = []
        for _ in range(self.LAYERS):
            parts += [torch.nn.Linear(self.WIDTH, self.WIDTH), torch.nn.ReLU()]
        self.layers = torch.nn.Sequential(*parts[:-1])

    def batch(self):
        return [torch.rand(self.BATCH, self.WIDTH) * 2 - 1 for _ in range(2)]

    def forward(self, features, targets):
        return (self.layers(features) - targets).square().sum() / (2 * self.BATCH)


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.output = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        samples, context, width = x.shape
        parts = self.qkv(self.attention_norm(x)).view(samples, context, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).reshape(samples, context, width))
        return x + self.down(functional.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))


class Transformer(torch.nn.Module):
    VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS, SAMPLES = 64, 128, 256, 8, 4, 2

    def __init__(self):
        super().__init__()
        self.token = torch.nn.Embedding(self.VOCABULARY, self.WIDTH)
        self.position = torch.nn.Embedding(self.CONTEXT, self.WIDTH)
        self.blocks = torch.nn.Sequential(*[Block(self.WIDTH, self.HEADS) for _ in range(self.LAYERS)])
        self.norm, self.head = torch.nn.LayerNorm(self.WIDTH), torch.nn.Linear(self.WIDTH, self.VOCABULARY)

    def batch(self):
        return [torch.randint(self.VOCABULARY, (self.SAMPLES, self.CONTEXT)) for _ in range(2)]

    def forward(self, inputs, targets):
        x = self.blocks(self.token(inputs) + self.position.weight)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


class SmallTensors(torch.nn.Module):
    """The gradient of a sum is ones: backward does little but write it."""

    def __init__(self):
        super().__init__()
        self.tensors = torch.nn.ParameterList([torch.zeros(16 + 240 * i // 99, 64) for i in range(100)])

    def batch(self):
        return []

    def forward(self):
        return torch.stack([tensor.sum() for tensor in self.tensors]).sum()


class Training:
    def __init__(self, network, rank):
        torch.manual_seed(17 + rank)
        self.model = torch.nn.parallel.DistributedDataParallel(network, gradient_as_bucket_view=True)
        self.batch = network.batch()
        self.elements = sum(p.numel() for p in network.parameters())
        self.everything = None

    def prepare(self, what, size):
        if size != 4 * self.elements:
            raise ValueError("the model has another size")
        self.what = what
        if what == "all_reduce" and self.everything is None:
            self.everything = torch.empty(self.elements)

    def rewrite(self):
        if self.what == "all_reduce":
            self.everything.fill_(1)

    def step(self, sync):
        self.model.zero_grad(set_to_none=True)
        with contextlib.nullcontext() if sync else self.model.no_sync():
            self.model(*self.batch).backward()

    def call(self):
        if self.what == "all_reduce":
            dist.all_reduce(self.everything)
        else:
            self.step(self.what == "sync")

    def is_right(self):
        return True

    def release(self):
        self.everything = None


MODELS = {"mlp": Mlp, "transformer": Transformer, "small": SmallTensors}
torch_ranks.serve(lambda rank, ranks: Training(MODELS[sys.argv[5]](), rank), sys.argv[1], int(sys.argv[2]),
                  int(sys.argv[3]), sys.argv[4])
