"""Trains a linear model with DistributedDataParallel over gloo, and checks the result against one process that has all
data. Knows nothing of ddprun but the count of restarts, which torchrun's workers find as well."""

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def batch(rank, step):
    random = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(8, 16, generator=random)
    return x, x.sum(dim=1, keepdim=True)


def train(model, steps, ranks, after_step=lambda step: None):
    for step in range(steps):
        x, y = (torch.cat(parts) for parts in zip(*(batch(rank, step) for rank in ranks)))
        model.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        with torch.no_grad():  # by hand: making a torch.optim.SGD imports for 2 s
            for p in model.parameters():
                p -= 0.01 * p.grad
        after_step(step)


def parameters_of(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fail-in-rounds", type=int, default=0, help="rounds 0 to N-1 end by rank 1 at its step 5")
    parser.add_argument("--train-on-in-rounds", type=int, default=0, help="rounds 0 to N-1 have no last step")
    arguments = parser.parse_args()
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    steps = 10**9 if restarts < arguments.train_on_in_rounds else 10

    torch.manual_seed(0)
    alone = torch.nn.Linear(16, 1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    # Ranks other than 0 start from other values, which DistributedDataParallel replaces by rank 0's.
    model = torch.nn.Linear(16, 1)
    with torch.no_grad():
        for theirs, ours in zip(model.parameters(), alone.parameters()):
            theirs.copy_(ours + rank)
    model = DistributedDataParallel(model)

    def after_step(step):
        if step == 3:
            print(f"round {restarts} rank {rank} trains, pid {os.getpid()}", flush=True)
        if step == 5 and rank == 1 and restarts < arguments.fail_in_rounds:
            os._exit(3)

    train(model, steps, [rank], after_step)
    train(alone, steps, range(size))
    torch.testing.assert_close(parameters_of(model), parameters_of(alone))
    everyones = [torch.empty_like(parameters_of(model)) for _ in range(size)]
    dist.all_gather(everyones, parameters_of(model))
    assert all(torch.equal(everyones[0], theirs) for theirs in everyones)
    print(f"round {restarts} rank {rank} of {size} has the right parameters", flush=True)
    dist.destroy_process_group()


main()
# Not by the interpreter's own end: gloo's threads may let go of tensors then, for which there is no Python any more,
# and the process would abort ("terminate called without an active exception", pytorch/pytorch #190489, #179291).
os._exit(0)
