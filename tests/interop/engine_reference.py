"""Trains a small network with PyTorch's DistributedDataParallel in several ways, and writes what engine_steps, the same
training with libddp, starts from and has to come to: float32 in native byte order, rank 0's.

  initial.f32       the parameters, one after the other, as `Network` has them
  CASE.f32          the parameters after step 20, and after the last one; or their float32 master weights
  CASE.q.f32        of PowerSGD: for each compressed parameter, the first q in rows of [rank, columns]
  unused_everywhere.gradient.f32    see train_unused_everywhere()
  batch_norm.f32, batch_norm_training.f32    see write_batch_norm() and train_batch_norm()

With --gradients also, of the cases bfloat16 and PowerSGD, all parameters' gradients in each step (megabytes):

  CASE.gradients.RANK.f32    what each rank has before the hook
  CASE.means.f32             what the hook makes of them
  CASE.states.RANK.f32       of PowerSGD: for each weight the error, and q as above, before the step; zeros at first
"""

import argparse
import os
import pathlib

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import batch_norm, softsign
from torch.nn.parallel import DistributedDataParallel

STEPS, ROWS, INPUTS, HIDDEN, OUTPUTS, RATE = 100, 8, 24, 32, 8, 0.05


def numbers(count, seed):
    """From -1 to 1. Integers until the division: the same in C++, bit by bit."""
    i = torch.arange(count, dtype=torch.int64)
    return ((i * 7919 + seed * 104729) * (i % 13 + 1) % 2003).to(torch.float32) / 1001.5 - 1


def batch(rank, step):
    x = numbers(ROWS * INPUTS, 2 * (1000 * rank + step)).reshape(ROWS, INPUTS)
    y = numbers(ROWS * OUTPUTS, 2 * (1000 * rank + step) + 1).reshape(ROWS, OUTPUTS)
    return x, y


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        shapes = {
            "first": (HIDDEN, INPUTS),
            "middle": (HIDDEN, HIDDEN),
            "last": (OUTPUTS, HIDDEN),
            "extra": (OUTPUTS, HIDDEN),
        }
        seed = 5000
        for name, (rows, columns) in shapes.items():
            weight = numbers(rows * columns, seed).reshape(rows, columns) / columns**0.5
            bias = numbers(rows, seed + 1) / 10
            self.register_parameter(f"{name}_weight", torch.nn.Parameter(weight))
            self.register_parameter(f"{name}_bias", torch.nn.Parameter(bias))
            seed += 2

    def forward(self, x, middles, has_extra):
        its = {name: p.float() for name, p in self.named_parameters()}  # the same tensors, unless they have 16 bits
        hidden = softsign(x @ its["first_weight"].T + its["first_bias"])
        for _ in range(middles):
            hidden = softsign(hidden @ its["middle_weight"].T + its["middle_bias"])
        out = hidden @ its["last_weight"].T + its["last_bias"]
        if has_extra:
            out = out + hidden @ its["extra_weight"].T + its["extra_bias"]
        return out


def floats(tensors):
    return torch.cat([t.detach().float().flatten() for t in tensors]).numpy().tobytes()


class MasterWeights:
    """AdamW on float32 copies of the parameters, which are rounded to them."""

    def __init__(self, parameters, **options):
        self.parameters = list(parameters)
        self.masters = [p.detach().float().clone() for p in self.parameters]
        self.optimizer = torch.optim.AdamW(self.masters, **options)

    def step(self):
        for p, master in zip(self.parameters, self.masters):
            master.grad = p.grad.float()
        self.optimizer.step()
        with torch.no_grad():
            for p, master in zip(self.parameters, self.masters):
                p.copy_(master)


class RecordedGradients:
    """What a communication hook is given in each step, and what it makes of that, in the order of the parameters."""

    def __init__(self, network):
        self.parameters = list(network.parameters())
        self.given, self.means, self.states = b"", b"", b""

    def around(self, hook):
        def recorded(state, bucket):
            assert len(bucket.parameters()) == len(self.parameters), "one bucket"
            its = {id(p): g.clone() for p, g in zip(bucket.parameters(), bucket.gradients())}
            self.given += floats(its[id(p)] for p in self.parameters)
            if isinstance(state, powerSGD_hook.PowerSGDState):
                self.states += self.power_sgd_state(state, bucket)
            return hook(state, bucket)

        return recorded

    def power_sgd_state(self, state, bucket):
        """PyTorch keeps errors as the gradients lie in the bucket, and all q, grouped by the gradients' shapes."""
        errors, factors, rank = {}, {}, state.matrix_approximation_rank
        all_errors = state.error_dict.get(bucket.index())
        if all_errors is None:
            all_errors = torch.zeros_like(bucket.buffer())
        first = 0
        for p in bucket.parameters():
            errors[id(p)] = all_errors[first : first + p.numel()]
            first += p.numel()
        groups = {}
        for p in bucket.parameters():
            if p.dim() == 2:
                groups.setdefault(p.shape, []).append(p)
        weights = [p for group in groups.values() for p in group]
        all_q = state.q_memory_dict.get(bucket.index())
        if all_q is None:
            all_q = torch.zeros(sum(p.shape[1] * rank for p in weights))
        first = 0
        for p in weights:
            factors[id(p)] = all_q[first : first + p.shape[1] * rank].view(p.shape[1], rank).T
            first += p.shape[1] * rank
        return b"".join(floats([errors[id(p)], factors[id(p)]]) for p in self.parameters if p.dim() == 2)

    def end_step(self):
        self.means += floats(p.grad for p in self.parameters)

    def write(self, folder, case, rank):
        (folder / f"{case}.gradients.{rank}.f32").write_bytes(self.given)
        if rank == 0:
            (folder / f"{case}.means.f32").write_bytes(self.means)
        if self.states:
            (folder / f"{case}.states.{rank}.f32").write_bytes(self.states)


class Training:
    records_gradients = False  # of cases with a hook

    def __init__(self, folder, case, rank, dtype=torch.float32, **ddp_options):
        self.folder, self.case, self.rank = folder, case, rank
        self.recorded = None
        self.network = Network().to(dtype)
        self.model = DistributedDataParallel(self.network, **ddp_options)
        self.averager = None
        self.optimizer = None  # in place of plain descent
        self.masters = None  # what is written in place of the parameters
        self.zeroes = True  # gradients after each step; else there are none
        self.results = b""

    def register_hook(self, state, hook):
        if Training.records_gradients:
            self.recorded = RecordedGradients(self.network)
            hook = self.recorded.around(hook)
        self.model.register_comm_hook(state, hook)

    def run(self, steps=STEPS, middles=1, micro_batches=1, has_extra=lambda step: True):
        for step in range(steps):
            for k in range(micro_batches):
                x, y = batch(self.rank, step * micro_batches + k)
                self.model.require_backward_grad_sync = k == micro_batches - 1
                out = self.model(x, middles, has_extra(step))
                torch.nn.functional.mse_loss(out, y).backward()
            if self.recorded:
                self.recorded.end_step()
            if self.optimizer:
                self.optimizer.step()
            with torch.no_grad():
                for p in self.network.parameters():
                    if not self.optimizer:
                        p -= RATE * p.grad
                    if self.zeroes:
                        p.grad.zero_()
                    else:
                        p.grad = None
            if self.averager:  # takes parameters with a gradient only
                self.averager.average_parameters(self.network.parameters())
            if step + 1 in (20, STEPS):
                self.results += floats(self.masters or self.network.parameters())

    def write(self):
        if self.rank == 0:
            (self.folder / f"{self.case}.f32").write_bytes(self.results)
        if self.recorded:
            self.recorded.write(self.folder, self.case, self.rank)


def train_power_sgd(folder, rank, approximation):
    training = Training(folder, f"power_sgd_{approximation}", rank)
    state = powerSGD_hook.PowerSGDState(
        process_group=None, matrix_approximation_rank=approximation, start_powerSGD_iter=2, min_compression_rate=2
    )
    names = {id(p): name for name, p in training.network.named_parameters()}
    order, drawn, randn = [], [], torch.randn

    def hook(hook_state, bucket):
        if not drawn:
            order.clear()
        order.extend(names[id(p)] for p in bucket.parameters() if p.dim() == 2)
        return powerSGD_hook.powerSGD_hook(hook_state, bucket)

    def recorded(*size, **options):
        result = randn(*size, **options)
        drawn.append(result.clone())
        return result

    training.register_hook(state, hook)
    torch.randn = recorded
    training.run()
    torch.randn = randn
    training.write()
    first_q = dict(zip(order, drawn))
    weights = [name for name, p in training.network.named_parameters() if p.dim() == 2]
    assert set(weights) == set(first_q), (weights, order)
    if rank == 0:
        (folder / f"{training.case}.q.f32").write_bytes(floats(first_q[name].squeeze(0).T for name in weights))


def train_unused_everywhere(folder, rank):
    """In every third step no rank uses the layer "extra": AdamW skips it. In the end such a step begins with gradients
    of that layer, of other bits on each rank: they stay. Rank 0's are written."""
    training = Training(folder, "unused_everywhere", rank, find_unused_parameters=True)
    training.optimizer = torch.optim.AdamW(training.network.parameters(), lr=0.01, weight_decay=0.1)
    training.zeroes = False
    training.run(has_extra=lambda step: step % 3 != 0)
    training.write()
    extra = [training.network.extra_weight, training.network.extra_bias]
    for seed, p in enumerate(extra, 9000 + 2 * rank):
        p.grad = numbers(p.numel(), seed).reshape(p.shape)
    before = [p.grad.clone() for p in extra]
    x, y = batch(rank, STEPS)
    torch.nn.functional.mse_loss(training.model(x, 1, False), y).backward()
    assert all(torch.equal(p.grad, old) for p, old in zip(extra, before))
    if rank == 0:
        (folder / "unused_everywhere.gradient.f32").write_bytes(floats(p.grad for p in extra))


BATCHES, CHANNELS, POINTS = [(5, 3), (4, 0), (0, 6)], 3, 4  # samples of each of two ranks, in each step


def write_batch_norm(folder):
    """Batch normalisation of the joined batch, as torch.nn.SyncBatchNorm runs on GPUs only. For each step y, the
    running mean and variance, and the gradients of x, weight and bias, of that step alone."""
    weight = (numbers(CHANNELS, 6000) + 2).requires_grad_()
    bias = numbers(CHANNELS, 6001).requires_grad_()
    running_mean, running_variance = torch.zeros(CHANNELS), torch.ones(CHANNELS)
    results = b""
    for step, batches in enumerate(BATCHES):
        shape = (sum(batches), CHANNELS, POINTS)
        x = (numbers(torch.Size(shape).numel(), 6010 + 2 * step).reshape(shape) + 3).requires_grad_()
        of_y = numbers(x.numel(), 6011 + 2 * step).reshape(shape)
        weight.grad = bias.grad = None
        y = batch_norm(x, running_mean, running_variance, weight, bias, training=True, momentum=0.1, eps=1e-5)
        y.backward(of_y)
        results += floats([y, running_mean, running_variance, x.grad, weight.grad, bias.grad])
    (folder / "batch_norm.f32").write_bytes(results)


class NormalisedNetwork(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(INPUTS, NORMALISED)
        self.norm = torch.nn.BatchNorm1d(NORMALISED)
        self.last = torch.nn.Linear(NORMALISED, FEW_OUTPUTS)
        with torch.no_grad():
            for seed, p in enumerate(self.parameters(), 7000):
                p.copy_(numbers(p.numel(), seed).reshape(p.shape) / 4)
            self.norm.weight += 1

    def forward(self, x):
        return self.last(softsign(self.norm(self.first(x))))


NORMALISED, FEW_OUTPUTS, ALL_ROWS = 8, 4, 12  # rows of both ranks together; engine_batch_norm.cpp divides them


def train_batch_norm(folder):
    """Plain descent of a network with torch.nn.BatchNorm1d, on the joined batch in one process: what SyncBatchNorm in
    DistributedDataParallel computes. The real one refuses tensors on a CPU. For each step the outputs, the running mean
    and variance after it, and the gradients of all parameters of the normalisation. In the end the parameters."""
    network = NormalisedNetwork()
    results = b""
    for step in range(STEPS):
        x = numbers(ALL_ROWS * INPUTS, 8000 + 2 * step).reshape(ALL_ROWS, INPUTS) + 3
        y = numbers(ALL_ROWS * FEW_OUTPUTS, 8001 + 2 * step).reshape(ALL_ROWS, FEW_OUTPUTS)
        network.zero_grad()
        out = network(x)
        torch.nn.functional.mse_loss(out, y).backward()
        norm = network.norm
        results += floats([out, norm.running_mean, norm.running_var, norm.weight.grad, norm.bias.grad])
        with torch.no_grad():
            for p in network.parameters():
                p -= RATE * p.grad
    (folder / "batch_norm_training.f32").write_bytes(results + floats(network.parameters()))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--gradients", action="store_true")
    options = parser.parse_args()
    folder, Training.records_gradients = options.folder, options.gradients
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        (folder / "initial.f32").write_bytes(floats(Network().parameters()))
        write_batch_norm(folder)
        train_batch_norm(folder)

    def train(case, after_init=lambda training: None, ddp_options=None, **run_options):
        training = Training(folder, case, rank, **(ddp_options or {}))
        after_init(training)
        training.run(**run_options)
        training.write()

    train("plain")
    train("accumulation", micro_batches=3)
    train("unused", ddp_options={"find_unused_parameters": True}, has_extra=lambda step: (step + rank) % 3 != 0)
    train_unused_everywhere(folder, rank)
    train("static_graph", ddp_options={"static_graph": True}, middles=2)
    train("bfloat16", lambda t: t.register_hook(None, default_hooks.bf16_compress_hook))

    uneven = Training(folder, "uneven_inputs", rank)
    with Join([uneven.model]):
        uneven.run(steps=STEPS if rank == 0 else 60)
    uneven.write()

    for approximation in (1, 2):
        train_power_sgd(folder, rank, approximation)

    def local_sgd(training):
        subgroup, _ = dist.new_subgroups(group_size=1)
        state = post_localSGD_hook.PostLocalSGDState(process_group=None, subgroup=subgroup, start_localSGD_iter=10)
        training.model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
        training.averager = PeriodicModelAverager(period=4, warmup_steps=10)

    train("local_sgd", local_sgd)

    def zero(training):
        training.optimizer = ZeroRedundancyOptimizer(
            training.network.parameters(), optimizer_class=torch.optim.AdamW, lr=0.01, weight_decay=0.1
        )

    train("zero", zero)

    def master_weights(training):
        training.optimizer = MasterWeights(training.network.parameters(), lr=0.01, weight_decay=0.1)
        training.masters = training.optimizer.masters

    train("master_weights", master_weights, ddp_options={"dtype": torch.bfloat16})
    dist.destroy_process_group()


main()
os._exit(0)  # see train_ddp.py
