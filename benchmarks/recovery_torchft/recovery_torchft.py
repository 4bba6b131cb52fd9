#!/usr/bin/env python3
"""run_elastic beside torchft, on one small training job of two nodes with one worker each: how long after SIGKILL of one of
them the other's next step is committed, how many steps that costs, and what each layer costs while nothing fails.

The model is the same on all sides in size, 512-1024-512 with a batch of 16 and SGD, 4.2 MB of gradients over the loopback, one
thread a worker. PyTorch's side computes it; ours, a C++ program, waits in place of computing (--compute, 4 ms; see --busy),
so only the times after a fault and the differences to the plain job of the same kind compare, not steps a second as such.

  python3 recovery_torchft.py [--trials=5] [--window=4] [--sides=plain,torchft,ddp_plain,ddp_elastic] [--bin=build/release/bin]

torchft needs a Python with torch and torchft-nightly: DDP_TORCHFT_PYTHON, else build/torchft/venv, which is made so:
  python3 -m venv build/torchft/venv
  build/torchft/venv/bin/pip install torch==2.15.0 torchft-nightly==2026.10.26
torchft 0.2.0 does not survive a kill with gloo.
"""
import argparse
import itertools
import os
import select
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
HEARTBEATS_MS = (None, 250)  # None: the default


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
        stamp, self.replica, step, committed, participants, cpu = line.split()
        self.at, self.step, self.committed = int(stamp), int(step), committed == "1"
        self.participants, self.cpu = int(participants), int(cpu)


class Job:
    """Its processes, and what its workers tell of each step."""

    def __init__(self, name, folder):
        self.name, self.folder, self.processes, self.extra = name, folder, [], []
        self.read_end, self.write_end = os.pipe()
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
        os.close(self.read_end)
        os.close(self.write_end)

    def spawn(self, words, environment=(), is_worker=True):
        log = open(os.path.join(self.folder, f"{self.name}_{len(self.processes)}_{len(self.extra)}.log"), "ab")
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[self.write_end], close_fds=True,
            env={**os.environ, "PIPE": str(self.write_end), "OMP_NUM_THREADS": "1", **dict(environment)})
        (self.processes if is_worker else self.extra).append(process)

    def steps(self, limit):
        """Each step as it is told, until the limit in seconds from now."""
        deadline = time.monotonic() + limit
        while True:
            while b"\n" in self.text:
                line, self.text = self.text.split(b"\n", 1)
                yield Step(line.decode())
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.read_end], [], [], left)[0]:
                return
            self.text += os.read(self.read_end, 1 << 16)

    def wait_for(self, condition, limit, what):
        for step in self.steps(limit):
            if condition(step):
                return step
        raise TimeoutError(f"{self.name}: {what} did not come within {limit} s; logs are in {self.folder}")


def start_torchft(job, python, heartbeat_ms):
    port = free_port()
    limit = [] if heartbeat_ms is None else [f"--heartbeat_timeout_ms={heartbeat_ms}"]
    job.spawn([os.path.join(os.path.dirname(python), "torchft_lighthouse"), "--min_replicas=1", f"--bind=127.0.0.1:{port}",
               *limit], is_worker=False)
    for replica in range(2):
        job.spawn([python, os.path.join(HERE, "torch_side.py"), "torchft", str(replica)],
                  {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}"})


def start_plain(job, python, _):
    port = free_port()
    for rank in range(2):
        job.spawn([python, os.path.join(HERE, "torch_side.py"), "plain"],
                  {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(port)})


def settle(job):
    """Both have done some steps together."""
    together = {}
    for step in job.steps(START_LIMIT):
        if step.committed and step.participants == 2:
            together[step.replica] = together.get(step.replica, 0) + 1
            if len(together) == 2 and min(together.values()) >= WARM_UP_STEPS:
                return
    raise TimeoutError(f"{job.name}: two workers did no {WARM_UP_STEPS} steps within {START_LIMIT} s; logs are in {job.folder}")


def steady(job, seconds):
    """Steps a second, and CPU ms of a worker, and of all processes, for each step."""
    first, last, attempts, failed = {}, {}, 0, 0
    others = lambda: sum(cpu_ns(pid) for process in job.extra for pid in tree_of(process.pid))  # noqa: E731
    before = others()
    for step in job.steps(seconds):
        first.setdefault(step.replica, step)
        last[step.replica] = step
        attempts += 1
        failed += not step.committed
    spent = others() - before
    spans = [(last[r].step - first[r].step, last[r].at - first[r].at, last[r].cpu - first[r].cpu) for r in first]
    count, took = sum(s for s, _, _ in spans) / len(spans), sum(t for _, t, _ in spans) / len(spans)
    return {"steps/s": count / took * 1e9, "worker": statistics.mean(c / s for s, _, c in spans) / 1e6,
            "others": spent / count / 1e6, "failed": failed}


# Spread over the phases of what ticks (golden ratio).
moments = (0.618 * i % 1 / 2 for i in itertools.count())


def kill_one(job):
    """Returns ms until the survivor has committed a step alone, and how many attempts it lost on the way."""
    for _ in job.steps(0.05 + next(moments)):
        pass
    victims = tree_of(job.processes[1].pid)
    begin = time.monotonic_ns()
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    lost = 0

    def is_alone(step):
        nonlocal lost
        lost += not step.committed
        return step.at > begin and step.committed and step.participants == 1

    return (job.wait_for(is_alone, RECOVERY_LIMIT, "a step of the survivor alone").at - begin) / 1e6, lost


def spread(values, form="{:.1f}"):
    return f"{form} ({form} to {form})".format(statistics.median(values), min(values), max(values))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--window", type=float, default=4, help="seconds without a fault that are timed in each trial")
    arguments = parser.parse_args()
    python = os.environ.get("DDP_TORCHFT_PYTHON", os.path.join(ROOT, "build/torchft/venv/bin/python"))
    sides = []
    if os.access(python, os.X_OK):
        sides += [("plain DDP", start_plain, None, False)]
        sides += [("torchft" + (f", heartbeat_timeout {ms} ms" if ms else ""), start_torchft, ms, True) for ms in HEARTBEATS_MS]
    else:
        print(f"no {python}: torchft's side is left out")
    folder = tempfile.mkdtemp(prefix="recovery_torchft_")
    results = {name: {"steady": [], "kills": []} for name, _, _, _ in sides}
    for trial in range(arguments.trials):
        for name, start, heartbeat_ms, survives in sides:  # in turn, so that all see the same machine
            with Job(name.replace(" ", "_").replace(",", ""), folder) as job:
                start(job, python, heartbeat_ms)
                settle(job)
                results[name]["steady"].append(steady(job, arguments.window))
                if survives:
                    results[name]["kills"].append(kill_one(job))
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(f"medians of {arguments.trials} trials in turn (least to most)")
    print("| | SIGKILL of one -> the other's next committed step, ms | attempts lost | steps a second | CPU ms of a worker for a "
          "step | of the others | steps not committed without a fault |\n| --- | --- | --- | --- | --- | --- | --- |")
    for name, result in results.items():
        still, kills = result["steady"], result["kills"]
        of = lambda key, form: spread([one[key] for one in still], form)  # noqa: E731,B023
        print(f"| {name} | {spread([ms for ms, _ in kills], '{:.0f}') if kills else ''} | "
              f"{spread([lost for _, lost in kills], '{:.0f}') if kills else ''} | {of('steps/s', '{:.1f}')} | "
              f"{of('worker', '{:.2f}')} | {of('others', '{:.2f}')} | {sum(one['failed'] for one in still)} |")


main()
