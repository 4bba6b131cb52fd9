#!/usr/bin/env python3
"""run_elastic beside torchft, on one small training job of two nodes with one worker each: how long after SIGKILL of
one of them the other's next step is committed, how many committed steps that costs, and what each layer costs while
nothing fails.

  python3 recovery_torchft.py [--trials=5] [--window=4] [--bin=build/release/bin] [--only=TEXT]

The model is the same on both sides, 512-1024-512 with a batch of 16 and SGD, 4.2 MB of gradients, one thread a worker.
One side computes it with PyTorch and reduces with gloo over the loopback, the other in plain C++ loops and over
libddp's shared memory; so what compares is the time after a fault, and each layer with the plain job of its own side.
The lighthouse and ddp-rendezvous are processes of their own. Killed are all processes of a node; of ddprun's also
its agent alone, and the worker alone, which is then started again. run_elastic commits every step, which copies
the parameters, or every tenth.

ddprun.run_elastic trains the model with PyTorch's DistributedDataParallel over backend ddp. For its killed worker the
table also says how much of the time was left after the worker in its place had imported PyTorch.

torchft needs a Python with torch and torchft-nightly: DDP_TORCHFT_PYTHON, else build/torchft/venv, which is made so:
  python3 -m venv build/torchft/venv
  build/torchft/venv/bin/pip install torch==2.15.0 torchft-nightly==2026.10.26
torchft 0.2.0 does not survive a kill with gloo. Without torchft, ddprun.run_elastic runs with the Python of the interop
tests.
"""
import argparse
import itertools
import os
import re
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
START_LIMIT, RECOVERY_LIMIT = 120, 60
WARM_UP_STEPS = 50
WORKER = "recovery_torchft_worker"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def cpu_ns(pid):
    """Of all threads of a process and of children that it has waited for."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:15])) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def tree_of(root):
    out = [root]
    for pid in out:
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children") as file:
                    out += map(int, file.read().split())
        except FileNotFoundError:
            pass
    return out


class Step:
    def __init__(self, line):
        stamp, self.replica, step, committed, participants, cpu, group = line.split()
        self.at, self.step, self.committed = int(stamp), int(step), committed == "1"
        self.participants, self.cpu, self.group = int(participants), int(cpu), int(group)


numbers = itertools.count()


class Job:
    """Its processes, and what its workers tell of each step."""

    def __init__(self, name, folder):
        self.name, self.folder, self.processes, self.extra = name, folder, [], []
        self.path = os.path.join(folder, f"{name}_{next(numbers)}")
        os.mkfifo(self.path)
        # For writing as well: else the last worker's end would be an end of file.
        self.fifo = os.open(self.path, os.O_RDWR)
        self.text = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes + self.extra:
            for pid in reversed(tree_of(process.pid)):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            process.wait()
        os.close(self.fifo)

    def spawn(self, words, environment=(), is_worker=True):
        with open(f"{self.path}_{len(self.processes)}_{len(self.extra)}.log", "ab") as log:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, start_new_session=True,
                env={**os.environ, "STEPS": self.path, "OMP_NUM_THREADS": "1", **dict(environment)})
        (self.processes if is_worker else self.extra).append(process)

    def steps(self, limit):
        """Each step as it is told, until the limit in seconds from now."""
        deadline = time.monotonic() + limit
        while True:
            while b"\n" in self.text:
                line, self.text = self.text.split(b"\n", 1)
                yield Step(line.decode())
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.fifo], [], [], left)[0]:
                return
            self.text += os.read(self.fifo, 1 << 16)

    def wait_for(self, condition, limit, what):
        for step in self.steps(limit):
            if condition(step):
                return step
        raise TimeoutError(f"{self.name}: {what} did not come within {limit} s; logs are in {self.folder}")


class Torch:
    def __init__(self, python, layer, heartbeat_ms=None):
        self.name = f"{'plain DDP' if layer == 'plain' else layer}{f', {heartbeat_ms} ms' if heartbeat_ms else ''}"
        self.python, self.layer, self.heartbeat_ms = python, layer, heartbeat_ms
        self.faults = () if layer == "plain" else ("node",)

    def start(self, job):
        port = free_port()
        side = [self.python, os.path.join(HERE, "torch_side.py"), self.layer]
        if self.layer == "torchft":
            limit = [f"--heartbeat_timeout_ms={self.heartbeat_ms}"] if self.heartbeat_ms else []
            job.spawn([os.path.join(os.path.dirname(self.python), "torchft_lighthouse"), "--min_replicas=1",
                       f"--bind=127.0.0.1:{port}", *limit], is_worker=False)
        for rank in map(str, range(2)):
            job.spawn([*side, rank], {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}", "RANK": rank,
                                      "LOCAL_RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                                      "MASTER_PORT": str(port)})


class Libddp:
    def __init__(self, programs, layer, launcher=True, heartbeat_ms=None, python=None):
        if layer == "plain":
            self.name = "libddp" + ("" if launcher else " without a launcher")
        else:
            self.name = "run_elastic" + {"elastic": "", "elastic10": ", a commit in ten steps",
                                          "pytorch": " of PyTorch"}[layer]
        self.name += f", {heartbeat_ms} ms" if heartbeat_ms else ""
        self.programs, self.layer, self.launcher, self.heartbeat_ms = programs, layer, launcher, heartbeat_ms
        self.python = python
        self.faults = ("node", "agent", "worker") if layer in ("elastic", "pytorch") else ()

    def start(self, job):
        port = free_port()
        program = lambda name: os.path.join(self.programs, name)  # noqa: E731
        serve = [f"--port={port}", "--host=127.0.0.1"]
        if not self.launcher:
            job.spawn([program("ddp-rendezvous"), "store", *serve], is_worker=False)
            wait_for_port(port)
            for rank in map(str, range(2)):
                job.spawn([program(WORKER), self.layer, rank], {
                    "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"})
            return
        limit = [f"--heartbeat-timeout={self.heartbeat_ms / 1000}"] if self.heartbeat_ms else []
        conf = f",heartbeat_timeout={self.heartbeat_ms / 1000}" if self.heartbeat_ms else ""
        job.spawn([program("ddp-rendezvous"), *serve, *limit], is_worker=False)
        worker, environment = [program(WORKER), self.layer], {}
        if self.layer == "pytorch":
            worker = [self.python, os.path.join(HERE, "torch_side.py"), "elastic"]
            environment = {"DDP_LIBRARY": os.path.join(os.path.dirname(self.programs), "lib/libddp.so"),
                           "PYTHONPATH": os.path.join(ROOT, "python")}
        for node in map(str, range(2)):
            job.spawn([program("ddprun"), "--nnodes=1:2", "--nproc-per-node=1", f"--node-rank={node}",
                       "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=recovery",
                       "--local-addr=127.0.0.1", "--max-restarts=100", f"--rdzv-conf=is_host=false{conf}",
                       "--no-python", *worker, node], environment)


def wait_for_port(port):
    deadline = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def settle(job):
    """Both have done some steps together."""
    together = {}
    for step in job.steps(START_LIMIT):
        if step.committed and step.participants == 2:
            together[step.replica] = together.get(step.replica, 0) + 1
            if len(together) == 2 and min(together.values()) >= WARM_UP_STEPS:
                return
    raise TimeoutError(f"{job.name}: two workers did no {WARM_UP_STEPS} steps within {START_LIMIT} s; "
                       f"logs are in {job.folder}")


def steady(job, seconds):
    """Steps a second, and CPU ms of a worker, and of all processes, for each step."""
    first, last = {}, {}
    # All but the workers: ours are the leaves below ddprun, PyTorch's have no launcher.
    pids = [pid for process in job.extra + job.processes for pid in tree_of(process.pid)]
    workers = [tree_of(process.pid)[-1] for process in job.processes]
    others = lambda: sum(cpu_ns(pid) for pid in set(pids) - set(workers))  # noqa: E731
    before = others()
    for step in job.steps(seconds):
        first.setdefault(step.replica, step)
        last[step.replica] = step
    spent = others() - before
    spans = [(last[r].step - first[r].step, last[r].at - first[r].at, last[r].cpu - first[r].cpu) for r in first]
    count, took = sum(s for s, _, _ in spans) / len(spans), sum(t for _, t, _ in spans) / len(spans)
    return {"steps/s": count / took * 1e9, "worker": statistics.mean(c / s for s, _, c in spans) / 1e6,
            "others": spent / count / 1e6}


# Spread over the phases of what ticks (golden ratio).
moments = (0.618 * i % 1 / 2 for i in itertools.count())


def kill(job, fault):
    """Returns ms until the survivor has committed a step without the dead, and how many committed steps are lost by
    then; if there is a worker in the place of the dead that imported PyTorch, also ms since then, and ms of the
    import."""
    last = None

    def is_next(step):
        nonlocal last
        if step.replica != "0" or not step.committed:
            return False
        if last and (step.participants < last.participants or step.group > last.group):
            return True
        last = step
        return False

    for step in job.steps(0.05 + next(moments)):
        is_next(step)
    tree = tree_of(job.processes[1].pid)
    victims = {"node": tree, "agent": tree[:1], "worker": tree[-1:]}[fault]
    if len(victims) > 1:  # none of them is to see another one's end
        for pid in victims:
            os.kill(pid, signal.SIGSTOP)
    begin = time.monotonic_ns()
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    step = job.wait_for(is_next, RECOVERY_LIMIT, f"a step of the survivor after the {fault}'s death")
    imported = []
    if os.path.exists(job.path + ".imported"):
        with open(job.path + ".imported") as file:
            at, took = map(int, file.read().split())
        imported = [(step.at - at) / 1e6, took / 1e6]
    return [(step.at - begin) / 1e6, last.step + 1 - step.step, *imported]


def spread(values, form="{:.1f}"):
    return f"{form} ({form} to {form})".format(statistics.median(values), min(values), max(values))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--window", type=float, default=4, help="seconds without a fault that are timed in each trial")
    parser.add_argument("--bin", default=os.path.join(ROOT, "build/release/bin"))
    parser.add_argument("--only", default="", help="part of the names of the rows that are wanted")
    arguments = parser.parse_args()
    programs = os.path.abspath(arguments.bin)
    python = os.environ.get("DDP_TORCHFT_PYTHON", os.path.join(ROOT, "build/torchft/venv/bin/python"))
    sides = [Libddp(programs, "plain", launcher=False), Libddp(programs, "plain"), Libddp(programs, "elastic"),
             Libddp(programs, "elastic10"), Libddp(programs, "elastic", heartbeat_ms=250)]
    if os.access(python, os.X_OK):
        sides += [Torch(python, "plain"), Torch(python, "torchft"), Torch(python, "torchft", 250)]
    else:
        print(f"no {python}: torchft's side is left out")
        python = os.path.join(ROOT, "build/interop/venv/bin/python")
    if os.access(python, os.X_OK):
        sides.append(Libddp(programs, "pytorch", python=python))
    sides = [side for side in sides if arguments.only in side.name]
    folder = tempfile.mkdtemp(prefix="recovery_torchft_")
    still = {side.name: [] for side in sides}
    kills = {(side.name, fault): [] for side in sides for fault in side.faults}
    for _ in range(arguments.trials):
        for side in sides:  # in turn, so that all see the same machine
            for fault in side.faults or (None,):
                with Job(re.sub(r"\W+", "_", side.name), folder) as job:
                    side.start(job)
                    settle(job)
                    if fault == (side.faults or (None,))[0]:
                        still[side.name].append(steady(job, arguments.window))
                    if fault:
                        kills[side.name, fault].append(kill(job, fault))
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    shutil.rmtree(folder)
    print(f"medians of {arguments.trials} trials in turn (least to most)\n\n"
          "| SIGKILL of | | the other's next committed step after, ms | committed steps that are lost |\n"
          "| --- | --- | --- | --- |")
    for (name, fault), results in kills.items():
        print(f"| {fault} | {name} | {spread([one[0] for one in results], '{:.0f}')} | "
              f"{spread([one[1] for one in results], '{:.0f}')} |")
    for (name, fault), results in kills.items():
        if results and len(results[0]) > 2:
            after, took = (spread([one[i] for one in results], "{:.0f}") for i in (2, 3))
            print(f"\n{fault} of {name}: the step was committed {after} ms after the new worker had imported PyTorch, "
                  f"which took {took} ms")
    print("\n| without a fault | steps a second | CPU ms of a worker for a step | of launchers and servers |\n"
          "| --- | --- | --- | --- |")
    for name, results in still.items():
        of = lambda key, form: spread([one[key] for one in results], form)  # noqa: E731,B023
        print(f"| {name} | {of('steps/s', '{:.1f}')} | {of('worker', '{:.2f}')} | {of('others', '{:.3f}')} |")


main()
