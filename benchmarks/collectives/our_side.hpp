// libddp's ranks for collectives_benchmark, under ddprun.
#pragma once

namespace ddp::benchmarks {

// `SOCKET`; the exit status. With `own_host` every rank is a host of its own: it enters a UTS namespace and takes
// another name there, so that ranks of one machine talk by TCP on loopback. That takes CAP_SYS_ADMIN.
int be_our_rank(const char* socket_name, bool own_host);

}  // namespace ddp::benchmarks
