// Names the process that started this one together with the other ranks of its host, where the environment has no name
// for the job: Hydra's (MPICH) proxy.
//
// Threads: any.
#pragma once

#include <optional>
#include <string>

namespace ddp::core {

// Its process id, and when it began, which keeps it apart from an earlier process of that id. Who it is the socket says
// whose number `pmi_fd` (PMI_FD) holds, also to what a script of a rank started; where that script has closed it, the
// nearest of this process's ancestors that has the name of such a proxy. Throws InvalidArgument where there is none.
std::string name_of_starter(const std::optional<std::string>& pmi_fd);

}  // namespace ddp::core
