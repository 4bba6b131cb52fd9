"""Every method of torch's own TCPStore client against the store of the job, from each of its workers at once, and its
own process group not used. Prints one line if all is as it should be."""

import datetime
import os
import sys

import torch.distributed as dist

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
VALUE_BYTES_MAX = 8 << 20
SHORT = datetime.timedelta(milliseconds=200)


def connect():
    return dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, use_libuv=True,
                         timeout=datetime.timedelta(seconds=100))


def raises(kind, call):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def check(name, got, want):
    assert got == want, f"{name}: {got!r} is not {want!r}"


def meet(store, name):
    """All workers are here: a barrier of the oldest two commands."""
    if store.add(f"meet/{name}", 1) == SIZE:
        store.set(f"meet/{name}/all", "")
    store.wait([f"meet/{name}/all"])


def one_workers_keys(store):
    own = dist.PrefixStore(f"worker{RANK}", store)
    own.set("text", "v")
    check("get", own.get("text"), b"v")
    own.set("bytes", b"\0\xff" * 100)
    check("get of bytes", own.get("bytes"), b"\0\xff" * 100)
    own.append("text", "w")
    check("append", own.get("text"), b"vw")
    own.append("new", "w")
    check("append to nothing", own.get("new"), b"w")
    check("add", [own.add("n", 5), own.add("n", -7), own.get("n")], [5, -2, b"-2"])
    check("check", [own.check(["text", "n"]), own.check(["text", "nowhere"])], [True, False])
    check("compare_set of nothing", own.compare_set("c", "", "a"), b"a")
    check("compare_set", own.compare_set("c", "a", "b"), b"b")
    check("compare_set of another", own.compare_set("c", "x", "y"), b"b")
    check("compare_set of nothing, expecting", own.compare_set("nowhere", "x", "y"), b"x")
    check("compare_set changed nothing", own.check(["nowhere"]), False)
    own.multi_set(["m1", "m2", "m3"], ["1", "", "3"])
    check("multi_get", own.multi_get(["m3", "m2", "m1"]), [b"3", b"", b"1"])
    check("delete_key", [own.delete_key("m1"), own.delete_key("m1"), own.check(["m1"])], [True, False, False])
    own.wait(["text", "n"])


def waits_time_out(store):
    message = raises(dist.DistStoreError, lambda: store.wait([f"nowhere{RANK}"], SHORT))
    assert "timeout" in message and f"nowhere{RANK}" in message, message
    store.set_timeout(SHORT)
    raises(dist.DistStoreError, lambda: store.get(f"nowhere{RANK}"))
    raises(dist.DistStoreError, lambda: store.multi_get([f"nowhere{RANK}"]))
    store.set_timeout(datetime.timedelta(seconds=100))
    store.set(f"nowhere{RANK}", "here")  # the connection is as good as new
    check("get after a timeout", store.get(f"nowhere{RANK}"), b"here")


def keys_of_all(store):
    """What the workers do with each other's keys."""
    store.add("meet/counted", 0)  # from here on the others make no key until rank 0 has counted
    meet(store, "before")
    if RANK == 0:
        counts = [store.num_keys(), store.set("one more", ""), store.num_keys(), store.delete_key("one more"),
                  store.num_keys()]
        check("num_keys", counts, [counts[0], None, counts[0] + 1, True, counts[0]])
    meet(store, "counted")
    if RANK == 0:
        store.set("from 0", "x" * VALUE_BYTES_MAX)
    check("the largest value", len(store.get("from 0")), VALUE_BYTES_MAX)
    for _ in range(100):
        store.add("counter", 1)
    meet(store, "added")
    check("counter", store.add("counter", 0), 100 * SIZE)
    copy = store.clone()
    check("clone", copy.get("counter"), str(100 * SIZE).encode())
    meet(store, "done")
    if RANK == 0:
        check("compare_set of the largest", len(store.compare_set("from 0", "x", "y")), VALUE_BYTES_MAX)
        check("delete_key", store.delete_key("from 0"), True)


def queues(store):
    queue = f"queue{RANK}"
    check("queue_len of nothing", store.queue_len(queue), 0)
    raises(dist.QueueEmptyError, lambda: store.queue_pop(queue, block=False))
    store.queue_push(queue, "a")
    store.queue_push(queue, "b")
    check("queue_len", store.queue_len(queue), 2)
    check("check of a queue", store.check([queue]), True)
    store.wait([queue])
    check("queue_pop", [store.queue_pop(queue), store.queue_pop(queue, block=False)], [b"a", b"b"])
    check("check of an empty queue", store.check([queue]), False)
    store.set_timeout(SHORT)
    raises(dist.DistStoreError, lambda: store.queue_pop(queue))
    store.set_timeout(datetime.timedelta(seconds=100))
    meet(store, "queues")
    # Each pops one of what its neighbour pushes, and waits for it.
    other = store.clone()
    store.queue_push(f"to {(RANK + 1) % SIZE}", str(RANK))
    check("queue of a neighbour", other.queue_pop(f"to {RANK}"), str((RANK - 1) % SIZE).encode())


def list_keys(store):
    store.set(f"listed {RANK}", "")
    meet(store, "listed")
    keys = store.list_keys()
    for rank in range(SIZE):
        assert f"listed {rank}" in keys, keys
    assert all(not key.startswith(("/", "init")) for key in keys), keys
    check("number of keys", len(keys), len(set(keys)))


def barriers(store):
    store.barrier("b", SIZE)
    store.barrier("b", SIZE)  # stays open
    message = raises(dist.DistStoreError, lambda: store.barrier(f"alone {RANK}", 2, SHORT))
    assert f"alone {RANK}" in message, message
    meet(store, "barriers done")
    check("the key of a barrier", store.get("b"), str(2 * SIZE).encode())


def too_large(store):
    for what, call in (("value", lambda s: (s.set("k", "x" * (VALUE_BYTES_MAX + 1)), s.get("counter"))),
                       ("key", lambda s: s.check(["k" * 8193]))):
        own = store.clone()
        message = raises(dist.DistNetworkError, lambda: call(own))
        print(f"a {what} too large: {message.splitlines()[0]}")
        raises(dist.DistNetworkError, lambda: own.get("counter"))  # PyTorch does not connect again
    check("others go on", store.get("counter"), str(100 * SIZE).encode())


def main():
    store = connect()
    check("constructor", (store.host, store.port), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
    for part in (one_workers_keys, waits_time_out, keys_of_all, queues, list_keys, barriers, too_large):
        if len(sys.argv) < 2 or part.__name__ in sys.argv[1:]:
            meet(store, part.__name__)
            part(store)
            print(f"rank {RANK}: {part.__name__} as it should be", flush=True)


main()
