// Everything of libddp's C++ interface. Needs C++17 and the standard library only.
#pragma once

#include "ddp/bootstrap.hpp"
#include "ddp/checkpoint.hpp"
#include "ddp/chunked_sampler.hpp"
#include "ddp/distributed_data_parallel.hpp"
#include "ddp/distributed_sampler.hpp"
#include "ddp/elastic.hpp"
#include "ddp/error.hpp"
#include "ddp/evaluation_sampler.hpp"
#include "ddp/memory.hpp"
#include "ddp/process_group.hpp"
#include "ddp/round.hpp"
#include "ddp/sampler_cursor.hpp"
#include "ddp/sampling.hpp"
#include "ddp/stream_sampler.hpp"
#include "ddp/trace.hpp"
#include "ddp/weighted_sampler.hpp"
