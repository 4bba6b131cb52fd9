"""A worker without PyTorch: sums over ranks by the libddp of the wheel."""

import ctypes

from ddprun import libddp

world, info = ctypes.c_void_p(), libddp.GroupInfo()
libddp.init_process_group(None, None, world)
libddp.group_get_info(world, info)
value = ctypes.c_float(info.rank + 1)
libddp.all_reduce(world, ctypes.addressof(value), 1, libddp.FLOAT32, libddp.SUM, None, None)
libddp.group_destroy(world)
print(f"rank {info.rank} of {info.rank_count}: sum {value.value:g}")
