"""The PyTorch workers of recovery_torchft.py: a small model that trains until it is killed.

torch_side.py torchft REPLICA   a replica group of one rank under torchft; TORCHFT_LIGHTHOUSE names its lighthouse
torch_side.py plain REPLICA     a rank of a plain DistributedDataParallel job; RANK, WORLD_SIZE, MASTER_* as usual
torch_side.py elastic REPLICA   a rank of ddprun.run_elastic

After each step one line goes to the FIFO that STEPS names: time, replica, step, whether it was committed, how many took
part, CPU time of this process, and how many process groups this process has had before (of elastic); times in ns.

A worker that begins again in its place writes to the file $STEPS.imported when it had imported PyTorch, and how long
that took; in ns.
"""
import logging
import os
import sys
import time
from datetime import timedelta

BEGAN = time.monotonic_ns()
import torch
from torch import nn
from torch.distributed import TCPStore

if sys.argv[1] == "elastic":
    import ddprun
    import torch._dynamo  # DistributedDataParallel and the optimizer import it when they are made

if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
    with open(os.environ["STEPS"] + ".imported", "w") as imported:
        imported.write(f"{time.monotonic_ns()} {time.monotonic_ns() - BEGAN}")

STEPS = os.open(os.environ["STEPS"], os.O_WRONLY)
BATCH, WIDTH, HIDDEN = 16, 512, 1024


def tell(replica, step, committed, participants, group=0):
    os.write(STEPS, b"%d %s %d %d %d %d %d\n" % (time.monotonic_ns(), replica.encode(), step, committed, participants,
                                              time.process_time_ns(), group))


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))


def train(model, optimizer, tell_of_step):
    inputs, targets = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    while True:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        tell_of_step()


def be_replica(replica):
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    model = make_model()
    inner = torch.optim.SGD(model.parameters(), lr=0.01)

    def load_state_dict(state):
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)), min_replica_size=1, timeout=timedelta(seconds=30),
        load_state_dict=load_state_dict,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        rank=0, world_size=1, store_addr="127.0.0.1", store_port=store.port, hostname="127.0.0.1",
        replica_id=f"replica_{replica}_")
    done = 0

    def tell_of_step():
        nonlocal done
        committed = manager.current_step() > done
        done = manager.current_step()
        tell(replica, done, committed, manager.num_participants())

    train(DistributedDataParallel(manager, model), Optimizer(manager, inner), tell_of_step)


def be_rank():
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(make_model())
    step, size = 0, torch.distributed.get_world_size()

    def tell_of_step():
        nonlocal step
        step += 1
        tell(os.environ["RANK"], step, True, size)

    train(model, torch.optim.SGD(model.parameters(), lr=0.01), tell_of_step)


def be_elastic(replica):
    model = make_model()
    state = ddprun.ElasticState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01), step=0)
    groups = 0

    def in_round(state):
        nonlocal groups
        size, groups = torch.distributed.get_world_size(), groups + 1

        def tell_of_step():
            state.step += 1
            state.commit()
            tell(replica, state.step, True, size, groups)

        train(nn.parallel.DistributedDataParallel(state.model), state.optimizer, tell_of_step)

    ddprun.run_elastic(state, in_round)


torch.set_num_threads(1)
logging.disable(logging.WARNING)
if sys.argv[1] == "torchft":
    be_replica(sys.argv[2])
elif sys.argv[1] == "elastic":
    be_elastic(sys.argv[2])
else:
    be_rank()
