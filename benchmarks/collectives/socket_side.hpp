// The floor of all-reduces by TCP: two processes, one connection on loopback, nothing checked and no call that may wait
// without end. Both send all they have, or of more than 64 KiB the half that the other sums, then what they have
// summed.
#pragma once

namespace ddp::benchmarks {

// `SOCKET RANK FIFO`, the last being a named pipe, by which rank 0 tells its port; the exit status.
int be_socket_rank(char** arguments);

}  // namespace ddp::benchmarks
