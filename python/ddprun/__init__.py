"""libddp for Python. ddprun.c10d is PyTorch's backend `ddp`; ddprun.libddp is the C interface (docs/c_interface.md)."""
