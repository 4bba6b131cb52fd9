"""wheel_launch.py SCRIPT: elastic_launch() of a function, of a function that fails, and of a script."""

import os
import pathlib
import sys
import tempfile

import ddprun

script = sys.argv[1]
config = ddprun.LaunchConfig(nproc_per_node=2, max_restarts=0)


def rank_and(thing, more):
    return int(os.environ["RANK"]), thing, more


def fail_on_rank1():
    if os.environ["RANK"] == "1":
        raise RuntimeError("rank 1 fails")


def fail_once(folder):
    """Rank 1 of the first round fails; rank 0 has ended well by then."""
    marker = pathlib.Path(folder, "has_failed")
    if os.environ["RANK"] == "1" and not marker.exists():
        marker.touch()
        sys.exit(3)
    return os.environ["TORCHELASTIC_RESTART_COUNT"]


if __name__ == "__main__":
    results = ddprun.elastic_launch(config, rank_and)("a thing", [2.5])
    assert results == {0: (0, "a thing", [2.5]), 1: (1, "a thing", [2.5])}, results

    try:
        ddprun.elastic_launch(config, fail_on_rank1)()
        raise AssertionError("it did not fail")
    except ddprun.ChildFailedError as error:
        assert error.exit_code == 1 and error.report["rounds"][-1]["cause"]["rank"] == 1, (error, error.report)
        assert "rank 1" in str(error), error

    with tempfile.TemporaryDirectory() as folder:
        twice = ddprun.LaunchConfig(nproc_per_node=2, max_restarts=1)
        results = ddprun.elastic_launch(twice, fail_once)(folder)
        assert results == {0: "1", 1: "1"}, results

    assert ddprun.elastic_launch(config, script)() == {}
