"""A worker without PyTorch: sums over ranks by the libddp of the wheel."""

import ctypes

from ddprun import libddp


class GroupInfo(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("rank", ctypes.c_int32), ("rank_count", ctypes.c_int32)]


world = ctypes.c_void_p()
libddp.init_process_group(None, None, world)
info = GroupInfo(ctypes.sizeof(GroupInfo))
libddp._library.ddp_group_get_info(world, ctypes.byref(info))
value = ctypes.c_float(info.rank + 1)
libddp.all_reduce(world, ctypes.addressof(value), 1, libddp.FLOAT32, libddp.SUM, None, None)
libddp.group_destroy(world)
print(f"rank {info.rank} of {info.rank_count}: sum {value.value:g}")
