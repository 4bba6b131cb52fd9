// How many rounds of a job keep their flight recorder files. ddprun removes older ones from the folder of its log
// files, libddp from its own folder.
#pragma once

#include <cstdint>

namespace ddp::base {

constexpr std::uint32_t kRecordedRoundsMax = 4;  // with 8 full recorders each, some 80 MB

}  // namespace ddp::base
