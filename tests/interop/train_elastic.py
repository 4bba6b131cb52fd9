"""train_elastic.py STEPS [DIES_AT [HOW]]: trains with ddprun.run_elastic, and prints the exact loss of each step.

Rank 1 kills itself in the step DIES_AT of the first round, between backward and commit. HOW:
by_error   it raises an exception there, in each round
handled    rank 0 raises one there, in each round, after a failure of a group that it has handled
new_group  rank 0 waits for it in new_group() then
store      rank 0 has an error of the store then, which it may have before ddprun tells of the end of the round
stops      it stops itself there instead (SIGSTOP), so that rank 0 waits in backward()
sub_group  rank 2 of 3 kills itself there, and the others go on without it, in a group of their own
alone      without ddprun: the group fails, and the program makes an exception of its own of that. Its state is a
           tensor that is there twice.

Times are in milliseconds of CLOCK_MONOTONIC, which all processes of the host share.
"""

import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torch._dynamo  # DistributedDataParallel imports it when it is first made
import ddprun
from ddprun import c10d, libddp

steps = int(sys.argv[1])
dies_at = int(sys.argv[2]) if len(sys.argv) > 2 else -1
how = sys.argv[3] if len(sys.argv) > 3 else ""


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
    pair = dist.new_group([0, 1]) if how != "stops" else None  # with further groups no rank is named
    while state.step < steps:
        random = torch.Generator().manual_seed(1000 * rank + state.step)
        x = torch.randn(16, 8, generator=random)
        try:
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            if state.step == dies_at and how == "stops" and rounds == 1 and not is_second():
                stop_or_wait_shortly(rank)
            loss.backward()
            if state.step == dies_at:
                disturb(rank, pair)
            if rank < 2 and pair is not None:
                dist.all_reduce(loss.detach().clone(), group=pair)
        except (dist.DistBackendError, RuntimeError) as error:
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


def disturb(rank, pair):
    if how == "by_error" and rank == 1:
        raise ZeroDivisionError("of the program")
    if how == "handled":
        if rank == 0:
            try:
                dist.monitored_barrier(pair, timeout=datetime.timedelta(milliseconds=100))
            except dist.DistBackendError:
                pass
            raise ZeroDivisionError("of the program")
        dist.barrier()  # in which it waits for rank 0
    if rounds > 1 or is_second() or how == "stops":
        return
    if rank == (2 if how == "sub_group" else 1):
        print(f"dies at {now_ms()}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "sub_group":
        while True:
            dist.all_reduce(torch.zeros(1), group=pair)
    if how == "new_group":
        dist.new_group([0, 1])
    if how == "store":
        raise dist.DistNetworkError("the store is gone")


def stop_or_wait_shortly(rank):
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    for group in c10d._groups:
        group.set_timeout(datetime.timedelta(seconds=2))


def is_second():
    """Whether this process stands in for one that died."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


class OwnError(Exception):
    pass


def fail_alone(state):
    print("one tensor" if state.pair[0] is state.pair[1] else "two tensors", state.pair[0].tolist())
    libddp.group_abort(c10d.Elastic.world, b"the program wants it so")
    try:
        dist.all_reduce(torch.zeros(1, device="cpu"))
    except dist.DistBackendError as error:
        raise OwnError("of the program") from error


if how == "alone":
    pair = [torch.ones(2)] * 2
    torch.set_default_device("meta")  # of the program's tensors
    try:
        ddprun.run_elastic(ddprun.ElasticState(pair=pair), fail_alone)
    except OwnError as error:
        print(f"raised OwnError, because of {error.__cause__}")
    sys.exit()


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
if os.environ["RANK"] != "0":
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)  # run_elastic makes all ranks equal to rank 0
if is_second():
    print(f"replacement is ready at {now_ms()}", flush=True)
ddprun.run_elastic(ddprun.ElasticState(model=model, optimizer=Momentum(model.parameters()), step=0, log=[]), train)
