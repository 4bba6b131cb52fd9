"""A rank of several that fails while the others are in a collective with it: failing_torch.py HOW RANK

raise   raises an exception under @record, which writes it to an error file
plain   raises an exception without @record
exit    calls sys.exit(3)
abort   calls os.abort()
kill    is killed by SIGKILL
"""

import os
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


def fail(how):
    if how == "exit":
        sys.exit(3)
    if how == "abort":
        os.abort()
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError("the batch is empty")


def main():
    how, rank = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    values = torch.ones(1000)
    for _ in range(5):
        dist.all_reduce(values)
    if dist.get_rank() == rank:
        fail(how)
    while True:
        dist.all_reduce(values)


main() if sys.argv[1] == "plain" else record(main)()
