#include "launcher/gpu_faults/gpu_faults.hpp"

#include <algorithm>
#include <string_view>

#include "rendezvous/membership/failure.hpp"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kBefore = 1min;  // a collective's timeout may lie between
constexpr std::chrono::milliseconds kSameMoment = 100ms;
constexpr std::size_t kNamedMax = 4;

// Of the driver's words, those of the faults that end a program or need somebody's hand.
std::string_view meaning_of(std::uint64_t xid) {
  switch (xid) {
    case 13: return "an exception in a kernel, often an illegal address";
    case 31: return "a memory page fault, mostly of the program";
    case 43: return "the program was stopped after a fault of its own";
    case 45: return "the program was ended, mostly after an earlier fault";
    case 48: return "a memory error that ECC could not correct";
    case 62: return "the GPU's own controller has stopped";
    case 63: return "a memory row is to be remapped: reset the GPU";
    case 64: return "a memory row could not be remapped: replace the GPU";
    case 74: return "an error on NVLink";
    case 79: return "the GPU has fallen off the bus";
    case 92: return "many memory errors that ECC has corrected";
    case 94: return "a memory error that ended this program only";
    case 95: return "a memory error that may have hit any program: reset the GPU";
    case 109: return "a switch between programs timed out";
    case 119:
    case 120: return "the GPU's system processor does not answer: reset the GPU";
    case 140: return "a memory error that ECC could not correct";
    default: return {};
  }
}

std::string describe(const GpuFault& fault, std::chrono::milliseconds failed_at) {
  std::string out = "GPU " + std::to_string(fault.gpu) + " reported XID " + std::to_string(fault.xid);
  if (const auto meaning = meaning_of(fault.xid); !meaning.empty()) out += " (" + std::string(meaning) + ")";
  const auto before = failed_at - fault.job_time;
  if (before > kSameMoment) return out + " " + rendezvous::describe_duration(before) + " before";
  if (before < -kSameMoment) return out + " " + rendezvous::describe_duration(-before) + " after";
  return out + " at the same time";
}

}  // namespace

std::string describe_faults(const std::vector<GpuFault>& faults, std::chrono::milliseconds failed_at,
                            std::chrono::milliseconds round_began) {
  const auto since = std::max(failed_at - kBefore, round_began);
  std::vector<GpuFault> named;
  for (const auto& fault : faults) {
    const bool is_said = std::any_of(named.begin(), named.end(), [&](const GpuFault& other) {
      return other.gpu == fault.gpu && other.xid == fault.xid;
    });
    if (!is_said && named.size() < kNamedMax && fault.job_time >= since) named.push_back(fault);
  }
  std::string out;
  for (const auto& fault : named) out += (out.empty() ? "" : "; ") + describe(fault, failed_at);
  return out;
}

}  // namespace ddp::launcher
