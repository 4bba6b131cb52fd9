"""PyTorch's DistributedDataParallel over NCCL under ddprun, two or more ranks on one GPU.

Rank 1 ends itself by SIGKILL in the midst of round 0. In round 1 every rank compares its parameters with those of one
process that has all data, and reads NCCL's flight recorder, as PyTorch keeps it: it must have the all-reduces of
this round and nothing unfinished.
"""

import os

# To NCCL each rank is a host of its own: it refuses two ranks of one host on one GPU.
os.environ.update(NCCL_HOSTID="rank " + os.environ["RANK"], NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1",
                  NCCL_MAX_CTAS="2", TORCH_NCCL_TRACE_BUFFER_SIZE="2000", TORCH_FR_BUFFER_SIZE="2000")

import pickle
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 10


def batch(rank, step):
    random = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(8, 16, generator=random)
    return x.cuda(), x.sum(dim=1, keepdim=True).cuda()


def train(model, ranks, after_step=lambda step: None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        x, y = (torch.cat(parts) for parts in zip(*(batch(rank, step) for rank in ranks)))
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        after_step(step)


def parameters_of(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


torch.cuda.set_device(0)
torch.manual_seed(0)
alone = torch.nn.Linear(16, 1).cuda()
dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
rank, size = dist.get_rank(), dist.get_world_size()
restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
model = torch.nn.Linear(16, 1).cuda()
model.load_state_dict(alone.state_dict())


def after_step(step):
    torch.cuda.synchronize()
    if step == 5 and rank == 1 and restarts == 0:
        os.kill(os.getpid(), signal.SIGKILL)


wrapped = DistributedDataParallel(model, device_ids=[0])
train(wrapped, [rank], after_step)
assert restarts == 1, "round 0 did not end by rank 1's death"
train(alone, range(size))
torch.testing.assert_close(parameters_of(model), parameters_of(alone))
everyones = [torch.empty_like(parameters_of(model)) for _ in range(size)]
dist.all_gather(everyones, parameters_of(model))
assert all(torch.equal(everyones[0], theirs) for theirs in everyones)
dist.barrier()
torch.cuda.synchronize()
entries = pickle.loads(torch._C._distributed_c10d._dump_nccl_trace())["entries"]
reduced = [entry for entry in entries if entry["profiling_name"] == "nccl:all_reduce"]
assert len(reduced) >= STEPS, [entry["profiling_name"] for entry in entries]
print(f"round {restarts} rank {rank} of {size}: PyTorch {torch.__version__} has the right parameters; its flight "
      f"recorder has {len(entries)} calls, of which {len(reduced)} are all-reduces", flush=True)
dist.destroy_process_group()
