// Finds ranks whose parameters have drifted apart:
//
//   ddp::check_parameters_equal(world, parameters);   // every rank calls it, say every 1000 steps
//
// StepReportOptions::check_every does so every n steps.
#pragma once

#include <vector>

#include "ddp/export.hpp"
#include "ddp/parameter.hpp"
#include "ddp/process_group.hpp"

namespace ddp {
inline namespace DDP_ABI {

// Collective. Compares the parameters of all ranks, bit for bit, by a hash of 64 bits of each (so 0 and -0 differ, and
// a NaN equals the same NaN). If they differ, throws MismatchError on all ranks, with the same text, which names the
// first parameter that differs, and the ranks that differ from the majority. The group stays usable then. Names, types,
// sizes and the number of parameters are compared too.
//
// Cost: one reading of the parameters, at about the speed of memory, and an all_gather of 16 bytes per rank. Only where
// something differs, 8 bytes for each parameter and rank more.
// Memory: of the host, or of the group's GPU; each parameter may be on the one or the other. A GPU computes the hashes
// where the parameters are, behind what the stream of the options holds, and the host waits for 8 bytes of each. Throws
// InvalidArgument, before anything is sent, for parameters of another GPU, and for a libddp that was built without
// nvcc.
DDP_EXPORT void check_parameters_equal(ProcessGroup& group, const std::vector<Parameter>& parameters,
                                       CollectiveOptions options = {});

}  // namespace DDP_ABI
}  // namespace ddp
