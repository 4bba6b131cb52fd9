"""PyTorch's DistributedDataParallel beside gpu_engine_overhead_benchmark: the same network and sizes, one rank, NCCL.

    python3 torch_ddp.py [--layers=4] [--width=8192] [--batch-size=512] [--steps=30] [--rounds=15] [--json=FILE]

The same loop with and without DistributedDataParallel, in turn within one run; a round's ratio is that of its pair.
Ends with 2 where this Python has no torch, or torch no GPU.
"""

import argparse
import json
import statistics
import sys
import time

try:
    import torch
except ImportError as error:
    sys.exit(print(f"this Python has no torch: {error}", file=sys.stderr) or 2)

WARM_UP_STEPS = 10


def network(layers, width):
    parts = []
    for _ in range(layers):
        parts += [torch.nn.Linear(width, width), torch.nn.ReLU()]
    return torch.nn.Sequential(*parts[:-1]).cuda()


class Side:
    def __init__(self, model, options):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, fused=True)
        self.features = torch.rand(options.batch_size, options.width, device="cuda") * 2 - 1
        self.labels = torch.randint(options.width, (options.batch_size,), device="cuda")
        self.loss = torch.nn.CrossEntropyLoss()

    def step(self):
        self.optimizer.zero_grad()
        self.loss(self.model(self.features), self.labels).backward()
        self.optimizer.step()

    def time(self, steps):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            self.step()
        torch.cuda.synchronize()
        return 1000 * (time.perf_counter() - begin) / steps


def main():
    parser = argparse.ArgumentParser()
    for name, value in (("layers", 4), ("width", 8192), ("batch-size", 512), ("steps", 30), ("rounds", 15)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--json")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print(f"torch {torch.__version__} has no GPU", file=sys.stderr)
        return 2
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.cuda.set_device(0)
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
    plain = Side(network(options.layers, options.width), options)
    wrapped = torch.nn.parallel.DistributedDataParallel(network(options.layers, options.width), device_ids=[0],
                                                        gradient_as_bucket_view=True)
    engine = Side(wrapped, options)
    for _ in range(WARM_UP_STEPS):
        plain.step()
        engine.step()
    without, with_engine = [], []
    for round_number in range(options.rounds):
        sides = [(plain, without), (engine, with_engine)]
        for side, times in sides if round_number % 2 == 0 else reversed(sides):
            times.append(side.time(options.steps))
    overheads = [100 * (b / a - 1) for a, b in zip(without, with_engine)]
    rows = [
        (f"PyTorch {torch.__version__}: a step without DistributedDataParallel", statistics.median(without), "ms"),
        ("PyTorch: a step with it, one rank", statistics.median(with_engine), "ms"),
        (f"PyTorch: overhead, median of {options.rounds} pairs", statistics.median(overheads), "%"),
        ("PyTorch: the same, least", min(overheads), "%"),
        ("PyTorch: the same, most", max(overheads), "%"),
    ]
    for what, value, unit in rows:
        print(f"| {what} | {value:.3f} {unit} |")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"benchmark": "torch_ddp",
                       "rows": [dict(zip(("what", "value", "unit"), row)) for row in rows]}, file)
    torch.distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
