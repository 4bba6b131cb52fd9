"""train_elastic.py STEPS [DIES_AT [HOW]]: trains with ddprun.run_elastic, and prints the exact loss of each step.

Rank 1 kills itself in the step DIES_AT of the first round, between backward and commit; with by_error it raises an
exception there, in each round; with new_group rank 0 waits for it in new_group() then. Times are in milliseconds of
CLOCK_MONOTONIC, which all processes of the host share.
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torch._dynamo  # DistributedDataParallel imports it when it is first made
import ddprun

steps = int(sys.argv[1])
dies_at = int(sys.argv[2]) if len(sys.argv) > 2 else -1


def now_ms():
    return time.monotonic_ns() // 1_000_000


def say(text):
    print(f"rank {dist.get_rank()} pid {os.getpid()} {text}", flush=True)


class Momentum:
    """An optimizer with state that begins at its first step. Making a torch.optim.SGD imports for 2 s."""

    def __init__(self, parameters):
        self.parameters, self.momenta = list(parameters), []

    def step(self):
        with torch.no_grad():
            if not self.momenta:
                self.momenta = [torch.zeros_like(p) for p in self.parameters]
            for p, momentum in zip(self.parameters, self.momenta):
                momentum.mul_(0.9).add_(p.grad)
                p -= 0.01 * momentum

    def state_dict(self):
        return {"momenta": self.momenta}

    def load_state_dict(self, state):
        self.momenta = state["momenta"]


rounds = 0


def train(state):
    global rounds
    rounds += 1
    rank = dist.get_rank()
    say(f"begins at step {state.step} with {state.log!r} at {now_ms()}")
    model = DistributedDataParallel(state.model)
    pair = dist.new_group([0, 1])
    while state.step < steps:
        random = torch.Generator().manual_seed(1000 * rank + state.step)
        x = torch.randn(16, 8, generator=random)
        try:
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            if rank == 1 and state.step == dies_at and "by_error" in sys.argv:
                raise ZeroDivisionError("of the program")
            if rank == 1 and state.step == dies_at and not is_second():
                print(f"dies at {now_ms()}", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            if rank == 0 and state.step == dies_at and "new_group" in sys.argv and rounds == 1:
                dist.new_group([0, 1])
            if rank < 2:
                dist.all_reduce(loss.detach().clone(), group=pair)
        except dist.DistBackendError as error:
            say(f"raised {type(error).__name__} at {now_ms()}: {str(error).splitlines()[0]}")
            raise
        state.optimizer.step()
        model.zero_grad()
        say(f"step {state.step} loss {loss.item().hex()}")
        state.step += 1
        state.log = state.log[-3:] + [state.step]
        state.commit()
        if state.step == dies_at + 1:
            say(f"has committed step {dies_at} at {now_ms()}")
    say("ends")


def is_second():
    """Whether this process stands in for one that died."""
    return os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
if os.environ["RANK"] != "0":
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)  # run_elastic makes all ranks equal to rank 0
if is_second():
    print(f"replacement is ready at {now_ms()}", flush=True)
ddprun.run_elastic(ddprun.ElasticState(model=model, optimizer=Momentum(model.parameters()), step=0, log=[]), train)
