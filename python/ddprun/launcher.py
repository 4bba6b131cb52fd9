"""Starts workers from Python, as torch.distributed.launcher.api does, over the program ddprun. It needs no PyTorch.

    def train(epochs):
        ...
        return loss

    losses = elastic_launch(LaunchConfig(nproc_per_node=4), train)(10)   # {rank: loss}
    elastic_launch(LaunchConfig(nproc_per_node=4), "train.py")("--epochs", "10")

Each worker is a new process. A function, its arguments and its result must be picklable, as with the start method
`spawn` of multiprocessing.
"""

import dataclasses
import json
import multiprocessing.spawn
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile

from ddprun import programs


@dataclasses.dataclass
class LaunchConfig:
    """The fields have the names and the meaning of PyTorch's, and those of ddprun's options."""

    min_nodes: int = 1
    max_nodes: int = 1
    nproc_per_node: int = 1
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = "c10d"
    rdzv_configs: dict = dataclasses.field(default_factory=dict)
    max_restarts: int = 3
    monitor_interval: float = 0.1  # no effect: ddprun polls nothing
    start_method: str = "spawn"  # no effect: every worker is a new program
    log_line_prefix_template: str | None = None
    local_addr: str | None = None
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    duplicate_stdout_filters: list | None = None
    duplicate_stderr_filters: list | None = None
    virtual_local_rank: bool = False
    shutdown_timeout: int | None = None
    options: list = dataclasses.field(default_factory=list)  # further options of ddprun, as on its command line


class ChildFailedError(RuntimeError):
    """The job failed. ddprun has printed why to stderr.

    exit_code  ddprun's, as docs/exit_codes.md says
    report     what ddprun's --report says of the rounds; None if ddprun wrote none
    """

    def __init__(self, name, exit_code, report):
        rounds = (report or {}).get("rounds")
        why = rounds[-1]["why"] if rounds else "its error is on stderr"
        super().__init__(f"{name}: ddprun ended with exit code {exit_code}: {why}")
        self.exit_code, self.report = exit_code, report


class elastic_launch:  # noqa: N801: the name is PyTorch's
    """Calling it starts the workers, waits for them, and returns what each rank of this node returned.

    entrypoint: a function; or a program or a Python script, whose arguments are the call's.
    """

    def __init__(self, config, entrypoint):
        self._config, self._entrypoint = config, entrypoint

    def __call__(self, *args):
        with tempfile.TemporaryDirectory(prefix="ddprun-") as folder:
            report = os.path.join(folder, "report.json")
            options = [*_options_of(self._config), f"--report={report}", *self._config.options]
            if callable(self._entrypoint):
                name = getattr(self._entrypoint, "__qualname__", str(self._entrypoint))
                _write_call(folder, self._entrypoint, args)
                program = ["--module", "ddprun.call", folder]
            else:
                name = str(self._entrypoint)
                program = [name, *map(str, args)]
            exit_code = _run([programs.path_of("ddprun"), *options, *program])
            if exit_code != 0:
                raise ChildFailedError(name, exit_code, _read_json(report))
            return _results_in(folder)


def _options_of(config):
    yield f"--nproc-per-node={config.nproc_per_node}"
    if config.rdzv_endpoint or config.max_nodes > 1:
        yield f"--nnodes={config.min_nodes}:{config.max_nodes}"
        yield f"--rdzv-backend={config.rdzv_backend}"
        yield f"--rdzv-endpoint={config.rdzv_endpoint}"
        if config.rdzv_configs:
            yield "--rdzv-conf=" + ",".join(f"{key}={value}" for key, value in config.rdzv_configs.items())
    else:
        yield "--standalone"
    for name, value in (("rdzv-id", config.run_id), ("role", config.role), ("max-restarts", config.max_restarts),
                        ("log-line-prefix-template", config.log_line_prefix_template),
                        ("local-addr", config.local_addr), ("signals-to-handle", config.signals_to_handle),
                        ("duplicate-stdout-filters", _list_text(config.duplicate_stdout_filters)),
                        ("duplicate-stderr-filters", _list_text(config.duplicate_stderr_filters)),
                        ("shutdown-timeout", config.shutdown_timeout)):
        if value not in (None, ""):
            yield f"--{name}={value}"
    if config.virtual_local_rank:
        yield "--virtual-local-rank"


def _list_text(texts):
    return ",".join(text.replace(",", ",,") for text in texts) if texts else None


def _run(command):
    environment = {"PYTHON_EXEC": sys.executable, **os.environ}
    with subprocess.Popen(command, env=environment) as process:
        try:
            return process.wait()
        except BaseException:  # ctrl-c: ddprun stops its workers, and must not be killed meanwhile
            process.terminate()
            process.wait()
            raise


def _write_call(folder, function, args):
    """Two pickles: how to make the modules of this process known, and the call that needs them."""
    modules = multiprocessing.spawn.get_preparation_data("ddprun")
    modules.pop("authkey", None)  # of connections that multiprocessing has not made
    with open(os.path.join(folder, "call"), "wb") as file:
        pickle.dump(modules, file)
        pickle.dump((function, args), file)


def run_call(folder):
    """In a worker."""
    with open(os.path.join(folder, "call"), "rb") as file:
        multiprocessing.spawn.prepare(pickle.load(file))
        function, args = pickle.load(file)
    result = function(*args)
    round_number = int(os.environ["DDPRUN_ROUND_ID"].rpartition("-")[2])
    path = pathlib.Path(folder, f"result_{os.environ['RANK']}")
    path.with_suffix(".part").write_bytes(pickle.dumps((round_number, result)))
    path.with_suffix(".part").rename(path)


def _results_in(folder):
    """Those of the last round: in an earlier one other ranks may have ended in time."""
    results = {int(path.name.rpartition("_")[2]): pickle.loads(path.read_bytes())
               for path in sorted(pathlib.Path(folder).glob("result_*")) if path.suffix != ".part"}
    last_round = max((round_number for round_number, _ in results.values()), default=0)
    return {rank: result for rank, (round_number, result) in sorted(results.items()) if round_number == last_round}


def _read_json(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None
