"""A rank of three or two that raises while the others are in a collective with it: failing_torch.py RANK"""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    values = torch.ones(1000)
    for _ in range(5):
        dist.all_reduce(values)
    if dist.get_rank() == int(sys.argv[1]):
        raise ValueError("the batch is empty")
    while True:
        dist.all_reduce(values)


main()
