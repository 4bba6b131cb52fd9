// Makes sure that all ranks built the same model before anything depends on it.
//
// A model is described by lines of text: the options first, then one for each parameter. In the usual case ranks
// exchange two numbers, a hash and a count; only where those differ do they look for the first line that does.
#pragma once

#include <string>
#include <vector>

#include "ddp/distributed_data_parallel.hpp"

namespace ddp::gradient_engine {

// What this rank alone can find wrong. Throws InvalidArgument for a model without parameters, a name that is empty or
// used twice, a shape that does not fit, and a type, a device or an address that is not supported.
void check_model(const std::vector<Parameter>& parameters, Device device);

// The same of the options and their buffers.
void check_options(const std::vector<Parameter>& parameters, const DistributedDataParallelOptions& options,
                   Device device);

std::vector<std::string> describe_model(const std::vector<Parameter>& parameters,
                                        const DistributedDataParallelOptions& options);

// Collective. Throws MismatchError on every rank, the same message on each, unless all give the same lines.
void check_same_on_all_ranks(ProcessGroup& group, const std::vector<std::string>& lines, CollectiveOptions options);

}  // namespace ddp::gradient_engine
