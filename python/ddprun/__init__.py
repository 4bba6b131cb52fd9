"""ddprun for Python: the launcher, and libddp.

elastic_launch() starts workers (ddprun.launcher), and `python -m ddprun` is the program ddprun. ddprun.c10d is
PyTorch's backend `ddp`. ddprun.libddp is libddp's C interface.
"""

__all__ = ["ChildFailedError", "LaunchConfig", "elastic_launch"]


def __getattr__(name):  # imported when used: the launcher is not for workers
    if name not in __all__:
        raise AttributeError(f"module 'ddprun' has no attribute '{name}'")
    from ddprun import launcher
    return getattr(launcher, name)
