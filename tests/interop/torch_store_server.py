"""A TCPStore server of torch's own, until it is ended."""

import signal

import torch.distributed as dist

store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=True)
store.set("from torch", "hello")
print(f"torch's store listens on {store.port}", flush=True)
signal.pause()
