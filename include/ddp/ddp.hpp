// Everything of libddp's C++ interface. Needs C++17 and the standard library only.
#pragma once

#include "ddp/bootstrap.hpp"
#include "ddp/checkpoint.hpp"
#include "ddp/communication_hook.hpp"
#include "ddp/distributed_data_parallel.hpp"
#include "ddp/distributed_sampler.hpp"
#include "ddp/elastic.hpp"
#include "ddp/error.hpp"
#include "ddp/gradient_compression.hpp"
#include "ddp/gradient_scaling.hpp"
#include "ddp/local_sgd.hpp"
#include "ddp/memory.hpp"
#include "ddp/parameter.hpp"
#include "ddp/process_group.hpp"
#include "ddp/round.hpp"
#include "ddp/sync_batch_norm.hpp"
#include "ddp/trace.hpp"
