"""ddprun for Python: the launcher, and libddp.

elastic_launch() starts workers (ddprun.launcher), and `python -m ddprun` is the program ddprun. ddprun.c10d is
PyTorch's backend `ddp`, and run_elastic() trains with it in processes that survive failures (ddprun.elastic).
ddprun.libddp is libddp's C interface.
"""

import importlib

_MODULES = {"ChildFailedError": "launcher", "LaunchConfig": "launcher", "elastic_launch": "launcher",
            "ElasticState": "elastic", "run_elastic": "elastic", "should_stop": "elastic"}
__all__ = list(_MODULES)


def __getattr__(name):  # imported when used: the launcher is not for workers, and the rest needs PyTorch
    if name not in _MODULES:
        raise AttributeError(f"module 'ddprun' has no attribute '{name}'")
    return getattr(importlib.import_module(f"ddprun.{_MODULES[name]}"), name)
