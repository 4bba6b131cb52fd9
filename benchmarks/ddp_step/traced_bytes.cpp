#include "benchmarks/ddp_step/traced_bytes.hpp"

#include <cstddef>
#include <fstream>
#include <map>
#include <stdexcept>

#include <nlohmann/json.hpp>

namespace ddp::benchmarks {

namespace {

// By how often (N - 1) / N of the bytes are sent.
const std::map<std::string, double> kSendings = {
    {"all_reduce", 2}, {"all_gather", 1}, {"reduce_scatter", 1}, {"broadcast", 1}, {"coalesced", 0}};

}  // namespace

double sent_bytes(const std::vector<std::string>& paths) {
  double bytes = 0;
  for (const std::string& path : paths) {
    std::ifstream file(path);
    const auto trace = nlohmann::json::parse(file, nullptr, false);
    if (trace.is_discarded()) throw std::runtime_error("no trace at " + path);
    for (const auto& event : trace.at("traceEvents")) {
      if (event.value("cat", "") != "collective") continue;
      const auto sendings = kSendings.find(event.at("name").get<std::string>());
      if (sendings == kSendings.end()) throw std::runtime_error("unknown bytes of " + event.dump());
      bytes += sendings->second * event.at("args").at("bytes").get<double>();
    }
  }
  const auto ranks = static_cast<double>(paths.size());
  return bytes * (ranks - 1) / ranks / ranks;
}

}  // namespace ddp::benchmarks
