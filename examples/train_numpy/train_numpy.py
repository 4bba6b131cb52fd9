"""Logistic regression with NumPy on any number of ranks: libddp's C interface by ctypes, and nothing else.

  ddprun --standalone --nproc-per-node=2 train_numpy.py ../data/breast_cancer.csv
"""
import ctypes as c
import os
import sys

import numpy as np

ddp = c.CDLL(os.environ.get("DDP_LIBRARY", "libddp.so.0.1"))  # its path, if the loader does not find it
ddp.ddp_last_error.restype = c.c_char_p
FLOAT64, AVERAGE = 1, 1  # DDP_FLOAT64, DDP_AVERAGE of ddp/ddp.h


class GroupInfo(c.Structure):  # as much of ddp_group_info as is used here: struct_size says so
    _fields_ = [("struct_size", c.c_size_t), ("rank", c.c_int32), ("rank_count", c.c_int32)]


class Tensor(c.Structure):  # ddp_tensor
    _fields_ = [("struct_size", c.c_size_t), ("name", c.c_char_p), ("shape", c.POINTER(c.c_int64)),
                ("dimensions", c.c_size_t), ("values", c.c_void_p), ("type", c.c_int32)]


def check(status):
    if status != 0:
        sys.exit(ddp.ddp_last_error().decode())


world, model = c.c_void_p(), c.c_void_p()
check(ddp.ddp_init_process_group(None, None, c.byref(world)))
info = GroupInfo(c.sizeof(GroupInfo))
check(ddp.ddp_group_get_info(world, c.byref(info)))

table = np.loadtxt(sys.argv[1], delimiter=",", skiprows=1)
table = ((table - table.mean(0)) / table.std(0))[info.rank:568:info.rank_count]  # equally many for 1, 2, 4, 8 ranks
features, labels = table[:, :-1], (table[:, -1] > 0).astype(float)

weight, bias = np.zeros(30), np.zeros(1)
tensors = (Tensor * 2)(*(Tensor(c.sizeof(Tensor), name, (c.c_int64 * 1)(len(array)), 1, array.ctypes.data, FLOAT64)
                         for name, array in ((b"weight", weight), (b"bias", bias))))
check(ddp.ddp_model_create(world, tensors, c.c_size_t(2), None, c.byref(model)))
gradients, data, count = [], c.c_void_p(), c.c_size_t()
for i in range(2):
    check(ddp.ddp_model_gradient(model, c.c_size_t(i), c.byref(data), c.byref(count)))
    gradients.append(np.ctypeslib.as_array(c.cast(data, c.POINTER(c.c_double)), (count.value,)))

for step in range(50):
    check(ddp.ddp_model_begin_step(model, 1))
    guess = 1 / (1 + np.exp(-(features @ weight + bias)))
    loss = np.array([-np.mean(np.log(np.where(labels == 1, guess, 1 - guess)))])
    gradients[0][:], gradients[1][:] = features.T @ (guess - labels) / len(labels), np.mean(guess - labels)
    check(ddp.ddp_model_ready(model, c.c_size_t(1)) or ddp.ddp_model_ready(model, c.c_size_t(0)))
    check(ddp.ddp_model_finish(model, None))  # gradients are now the mean over ranks
    weight -= 0.5 * gradients[0]
    bias -= 0.5 * gradients[1]
check(ddp.ddp_all_reduce(world, loss.ctypes.data_as(c.c_void_p), c.c_size_t(1), FLOAT64, AVERAGE, None, None))
print(f"rank {info.rank} of {info.rank_count}: loss {loss[0]:.6f}, bias {bias[0]:.6f}")
check(ddp.ddp_model_destroy(model) or ddp.ddp_group_destroy(world))
