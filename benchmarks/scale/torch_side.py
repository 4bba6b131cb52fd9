"""torchrun's c10d rendezvous at N nodes, for scale_benchmark: prints one line.

Each node is a process, forked from this one, which has imported torch; the store that they share is in this one. The
times are from the moment at which nodes may begin to the last node's stamp of having its rank.
"""
import ctypes
import logging
import os
import pickle
import signal
import sys
import time
from datetime import timedelta

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

logging.disable(logging.CRITICAL)
NODES = int(sys.argv[1])
LIMIT = timedelta(seconds=280)


def connect(port, is_master=False):
    return TCPStore("127.0.0.1", port, is_master=is_master, multi_tenant=True, wait_for_workers=False, timeout=LIMIT)


def node(index, go, tell):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it goes with the benchmark, whatever it waits for

    def wait_for(letter):
        assert os.read(go, 1) == letter

    port = int(os.read(go, 5))
    store = connect(port)
    handler = DynamicRendezvousHandler.from_backend(
        "scale", store, C10dRendezvousBackend(store, "scale"), NODES, NODES, local_addr="127.0.0.1")
    os.write(tell, b"%20d\n" % 0)
    for letter in (b"1", b"2"):
        wait_for(letter)
        handler.next_rendezvous()
        os.write(tell, b"%20d\n" % time.monotonic_ns())
    wait_for(b"3")
    return 0


def last_stamp(pipe, count):
    text = b""
    while len(text) < 21 * count:
        more = os.read(pipe, 21 * count - len(text))
        assert more, "a node failed"
        text += more
    return max(map(int, text.split()))


def participants(backend):
    state = backend.get_state()
    return len(pickle.loads(state[0]).participants) if state else 0


gates, (told, tell) = [], os.pipe()
for i in range(NODES):
    go, gate = os.pipe()
    if os.fork() == 0:
        code = 1
        try:
            for other in gates + [gate, told]:
                os.close(other)
            code = node(i, go, tell)
        finally:
            os._exit(code)
    os.close(go)
    gates.append(gate)
os.close(tell)
store = connect(0, is_master=True)
backend = C10dRendezvousBackend(store, "scale")
for gate in gates:
    os.write(gate, b"%05d" % store.port)
last_stamp(told, NODES)  # all are connected

begin = time.monotonic_ns()
for gate in gates[1:]:
    os.write(gate, b"1")
while participants(backend) < NODES - 1:
    time.sleep(0.05)
joined = time.monotonic_ns() - begin
begin = time.monotonic_ns()
os.write(gates[0], b"1")
first = last_stamp(told, NODES) - begin
begin = time.monotonic_ns()
for gate in gates:
    os.write(gate, b"2")
again = last_stamp(told, NODES) - begin
for gate in gates:
    os.write(gate, b"3")
for _ in gates:
    os.wait()
times = os.times()
cpu = times.user + times.system + times.children_user + times.children_system
print(f"all but one join {joined / 1e9:.2f} s, the last one joins -> all have ranks {first / 1e9:.2f} s, "
      f"all again {again / 1e9:.2f} s; CPU of all {cpu:.1f} s", flush=True)
os._exit(0)
