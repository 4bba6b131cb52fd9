"""PyTorch's side of store_benchmark: its TCPStore server, or clients of it that do a piece of work.

torch_side.py serve      prints the port, and serves until its standard input ends
torch_side.py clients    reads lines `PORT WORK CLIENTS COUNT TAG`, and answers each with the seconds that it took
"""
import os
import sys
import threading
import time
from datetime import timedelta

from torch.distributed import TCPStore

LIMIT = timedelta(seconds=120)


def work(store, kind, index, clients, count, tag):
    if kind == "set":
        for _ in range(count):
            store.set(f"{tag}/own/{index}", "sixteen bytes...")
        store.num_keys()  # answered once all are stored
    elif kind == "get":
        for _ in range(count):
            store.get(f"{tag}/own/{index}")
    elif kind == "add":
        for _ in range(count):
            store.add(f"{tag}/sum", 1)
    elif kind == "add_and_wait":
        for n in range(count):
            if store.add(f"{tag}/{n}", 1) == clients:
                store.set(f"{tag}/{n}/go", "")
            store.wait([f"{tag}/{n}/go"])
    elif kind == "barrier":
        for n in range(count):
            store.barrier(f"{tag}/{n}", clients, LIMIT)
    elif kind == "fan_out":
        store.wait([f"{tag}/go"])


def child(port, kind, indices, clients, count, tag, ready, go, results):
    gate, connected, ends = threading.Event(), threading.Semaphore(0), []

    def one(index):
        store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=LIMIT)
        if kind == "get":
            store.set(f"{tag}/own/{index}", "sixteen bytes...")
        connected.release()
        gate.wait()
        work(store, kind, index, clients, count, tag)
        ends.append(time.monotonic_ns())

    threads = [threading.Thread(target=one, args=(i,)) for i in indices]
    for thread in threads:
        thread.start()
    for _ in threads:
        connected.acquire()
    os.write(ready, b"r")
    os.read(go, 1)
    start = time.monotonic_ns()
    gate.set()
    for thread in threads:
        thread.join()
    os.write(results, f"{start} {max(ends)}\n".encode())


def run(port, kind, clients, count, tag):
    processes = min(clients, 8)
    ready_read, ready = os.pipe()
    go, go_write = os.pipe()
    results_read, results = os.pipe()
    pids = []
    for p in range(processes):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                child(port, kind, range(p, clients, processes), clients, count, tag, ready, go, results)
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    os.close(results)
    for _ in range(processes):
        os.read(ready_read, 1)
    os.write(go_write, b"g" * processes)
    if kind == "fan_out":
        time.sleep(0.3)  # by then all of them wait
        setter = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=LIMIT)
        start = time.monotonic_ns()
        setter.set(f"{tag}/go", "")
    failed = sum(os.waitpid(pid, 0)[1] != 0 for pid in pids)
    lines = os.read(results_read, 1 << 16).decode().split("\n")[:-1]
    for fd in (ready_read, ready, go, go_write, results_read):
        os.close(fd)
    if failed:
        return -1.0
    times = [tuple(map(int, line.split())) for line in lines]
    if kind != "fan_out":
        start = min(first for first, _ in times)
    return (max(last for _, last in times) - start) / 1e9


if sys.argv[1] == "serve":
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=LIMIT)
    print(server.port, flush=True)
    sys.stdin.read()
else:
    print("ready", flush=True)
    for line in sys.stdin:
        port, kind, clients, count, tag = line.split()
        print(run(int(port), kind, int(clients), int(count), tag), flush=True)
