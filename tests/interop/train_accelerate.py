"""A tiny model under accelerate on two CPU workers."""

import os

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType

accelerator = Accelerator(cpu=True)
assert accelerator.distributed_type == DistributedType.MULTI_CPU, accelerator.distributed_type
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.randn(16, 4), batch_size=2)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
steps = 0
for batch in data:
    optimizer.zero_grad()
    accelerator.backward(model(batch).square().mean())
    optimizer.step()
    steps += 1
sums = accelerator.gather(sum(p.detach().sum() for p in model.parameters()).reshape(1))
assert torch.equal(sums, sums[:1].expand_as(sums)), sums
print(f"rank {accelerator.process_index} of {accelerator.num_processes}: {steps} steps", flush=True)
accelerator.end_training()
# Past the interpreter's end: there a thread of PyTorch's Gloo that has not yet let go of the last tensor is ended with
# pthread_exit() as it waits for the interpreter's lock, in the middle of C++, which calls std::terminate().
os._exit(0)
