"""Prints which programs listen on the port of the store once a process group is there."""

import glob
import os

import torch.distributed as dist


def listening_sockets(port):
    """Inodes of the sockets that listen on a TCP port of this host."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table) as file:
            rows = [line.split() for line in file.readlines()[1:]]
        inodes |= {row[9] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == port}
    return inodes


def owners_of(inodes):
    names = set()
    for path in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            if os.readlink(path) in {f"socket:[{inode}]" for inode in inodes}:
                names.add(os.path.basename(os.readlink(path.split("/fd/")[0] + "/exe")))
        except OSError:
            pass  # it has ended, or is another user's
    return names


dist.init_process_group("gloo")
owners = owners_of(listening_sockets(int(os.environ["MASTER_PORT"])))
dist.barrier()
print(f"rank {dist.get_rank()}: the store is served by {sorted(owners)},"
      f" TORCHELASTIC_USE_AGENT_STORE={os.environ['TORCHELASTIC_USE_AGENT_STORE']}", flush=True)
dist.destroy_process_group()
