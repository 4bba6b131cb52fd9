"""The rank of a side in Python: what serve.hpp is to one in C++. The protocol is in request.hpp.

Python has no use for the shared memory: its ranks meet by torch's own barrier.
"""
import os
import socket
import time

import torch
import torch.distributed as dist


def measure(side, what, memory, size, batches, calls, fresh, meet, check):
    side.prepare(what, int(size))
    times = []
    for batch in range(int(batches)):
        if fresh == "1" or batch == 0:
            side.rewrite()
        if meet == "1":
            dist.barrier()
        begin = time.perf_counter_ns()
        for _ in range(int(calls)):
            side.call()
        times.append((time.perf_counter_ns() - begin) / int(calls))
        if check == "1" and batch == 0:
            dist.barrier()
            if not side.is_right():
                raise RuntimeError("wrong result of " + what)
            dist.barrier()
    return times


def serve(make_side, socket_name, rank, ranks, meeting_file):
    """Meets the other ranks and answers the benchmark, by one thread, until it asks no more."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method="file://" + meeting_file, rank=rank, world_size=ranks)
    side = make_side(rank, ranks)
    link = socket.socket(socket.AF_UNIX)
    link.connect("\0" + socket_name)
    link.sendall(f"{rank}\n".encode())
    link.recv(1)  # the shared memory comes with it
    for line in link.makefile("r"):
        words = line.split()
        try:
            answer = "ok"
            if words[0] == "release":
                side.release()
            else:
                answer += "".join(f" {ns:.1f}" for ns in measure(side, *words[1:]))
        except Exception as error:
            answer = "failed " + str(error).replace("\n", " ")
        link.sendall((answer + "\n").encode())
    dist.destroy_process_group()
