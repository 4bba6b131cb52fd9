#include "benchmarks/collectives/catalogue.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <thread>

namespace ddp::benchmarks {

namespace {

using Words = std::vector<std::string>;

// Their temporaries come from mmap by default, and go back after each call: page faults at every call.
const std::vector<std::pair<std::string, std::string>> kTunedMalloc = {{"MALLOC_MMAP_THRESHOLD_", "4294967296"},
                                                                       {"MALLOC_TRIM_THRESHOLD_", "8589934592"}};

bool starts_with(const std::string& text, const std::string& start) {
  return text.compare(0, start.size(), start) == 0;
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

std::optional<SideCommand> Catalogue::command(const std::string& side, int ranks, std::string& why) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  if (side == "zero-copy" || side == "yield loop") {
    const int processes = side == "zero-copy" ? std::min(ranks, cores) : ranks;
    return SideCommand{
        side,
        {own_program(), "--side=zero-copy", "{socket}", "{rank}", std::to_string(processes), std::to_string(ranks)},
        processes,
        true};
  }
  if (side == "bare sockets") {
    const auto fifo = folder_.new_path("port");
    if (::mkfifo(fifo.c_str(), S_IRUSR | S_IWUSR) != 0) {
      why = "no named pipe can be made at " + fifo;
      return std::nullopt;
    }
    return SideCommand{side, {own_program(), "--side=bare-sockets", "{socket}", "{rank}", fifo}, 2, true};
  }
  if (side == "ours" || side == "ours on two hosts") {
    if (side != "ours" && ::geteuid() != 0) {
      why = "only root may give ranks host names of their own";
      return std::nullopt;
    }
    return SideCommand{
        side,
        {sibling_program("ddprun"), "--standalone", "--nproc-per-node=" + std::to_string(ranks), "--log-dir=/dev/null",
         own_program(), side == "ours" ? "--side=ours" : "--side=ours-on-two-hosts", "{socket}"},
        ranks};
  }
  if (starts_with(side, "Open MPI") || starts_with(side, "MPICH")) return mpi(side, ranks, why);
  if (starts_with(side, "Gloo")) return gloo(has(side, "ring") ? "ring" : "bcube", ranks, why);
  if (side == "torch") return torch(ranks, why);
  why = "no such side";
  return std::nullopt;
}

std::optional<SideCommand> Catalogue::mpi(const std::string& side, int ranks, std::string& why) const {
  const bool is_open = starts_with(side, "Open MPI");
  const auto launcher = found_on_path(is_open ? "mpirun.openmpi" : "mpirun.mpich");
  const auto program = sibling_program(is_open ? "collectives_openmpi_side" : "collectives_mpich_side");
  if (launcher.empty() || ::access(program.c_str(), X_OK) != 0) {
    why = is_open ? "mpirun.openmpi or its side is missing (Debian: openmpi-bin, libopenmpi-dev)"
                  : "mpirun.mpich or its side is missing (Debian: mpich, libmpich-dev)";
    return std::nullopt;
  }
  SideCommand out{side, {launcher}, ranks};
  if (has(side, "tuned")) out.variables = kTunedMalloc;
  const bool is_crowded = ranks > static_cast<int>(std::thread::hardware_concurrency());
  const auto add = [&](const Words& words) { out.words.insert(out.words.end(), words.begin(), words.end()); };
  if (is_open) {
    add({"--allow-run-as-root", "--bind-to", "none", "--mca", "btl_vader_warn_component_unused", "0"});
    if (is_crowded) add({"--oversubscribe", "--mca", "mpi_yield_when_idle", "1"});
    if (has(side, "TCP")) add({"--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"});
  } else {
    add({"-launcher", "fork"});
    if (has(side, "TCP")) {
      out.variables.emplace_back("UCX_TLS", "tcp,self");
      out.variables.emplace_back("UCX_NET_DEVICES", "lo");
    }
  }
  add({"-n", std::to_string(ranks), program, "{socket}"});
  return out;
}

std::optional<SideCommand> Catalogue::gloo(const std::string& algorithm, int ranks, std::string& why) {
  const auto program = sibling_program("collectives_gloo_side");
  if (::access(program.c_str(), X_OK) != 0) {
    why = "its side was not built (Debian: libgloo-dev)";
    return std::nullopt;
  }
  const auto meeting = folder_.new_path("gloo");
  std::filesystem::create_directory(meeting);
  return SideCommand{
      "Gloo " + algorithm, {program, "{socket}", "{rank}", std::to_string(ranks), meeting, algorithm}, ranks, true};
}

std::optional<SideCommand> Catalogue::torch(int ranks, std::string& why) {
  const char* const given = std::getenv("DDP_TEST_PYTHON");
  const std::string python = given != nullptr ? given : DDP_BENCHMARK_PYTHON;
  if (::access(python.c_str(), X_OK) != 0) {
    why = "no Python with torch was found (DDP_TEST_PYTHON names one)";
    return std::nullopt;
  }
  return SideCommand{
      "torch",
      {python, DDP_BENCHMARK_TORCH_SIDE, "{socket}", "{rank}", std::to_string(ranks), folder_.new_path("torch")},
      ranks,
      true};
}

}  // namespace ddp::benchmarks
