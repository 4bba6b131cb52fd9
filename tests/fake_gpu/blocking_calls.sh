#!/usr/bin/env bash
# blocking_calls.sh FOLDER: fails where libddp's sources call CUDA in a way in which a thread sits until a device is
# done: nobody could get it out when a collective hangs. Those that are allowed go before memory is freed, which waits
# too, and before elastic state is restored, when the group is gone.
set -u
found=$(grep -REn 'cuda(Stream|Event|Device)Synchronize|cuda(Memcpy|Memset)(2D|3D|Peer|ToSymbol|FromSymbol)?\(' "$1" |
  grep -vE '^[^:]*:[0-9]*: *//' |
  grep -vE '/backends/nccl/(group|cuda)_memory\.cpp:[0-9]*: *(static_cast<void>|check)\(cudaDeviceSynchronize\(\)')
[ -z "$found" ] || { printf 'calls that block the host:\n%s\n' "$found"; exit 1; }
