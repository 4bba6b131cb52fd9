// Runs every input that the fuzzers found worth keeping. An input that fails aborts; the last line of the output is its
// name.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <string_view>

#include "tests/fuzz/targets.hpp"

namespace {

void replay(const std::string& corpus, void (*target)(std::string_view)) {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(DDP_TEST_SOURCE_DIR "/tests/fuzz/corpus/" + corpus)) {
    std::cout << entry.path().filename().string() << std::endl;
    std::ifstream file(entry.path(), std::ios::binary);
    target(std::string{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()});
    ++count;
  }
  EXPECT_GT(count, 0u);
}

TEST(FuzzCorpus, CpuHandshakeHolds) { replay("cpu_handshake", ddp::fuzz::cpu_handshake); }
TEST(FuzzCorpus, ErrorJsonHolds) { replay("error_json", ddp::fuzz::error_json); }
TEST(FuzzCorpus, FirstBytesHold) { replay("first_bytes", ddp::fuzz::first_bytes); }
TEST(FuzzCorpus, MembershipHolds) { replay("membership", ddp::fuzz::membership); }
TEST(FuzzCorpus, SlurmListsHold) { replay("slurm_lists", ddp::fuzz::slurm_lists); }
TEST(FuzzCorpus, StoreParserHolds) { replay("store_parser", ddp::fuzz::store_parser); }
TEST(FuzzCorpus, WorkerLinkHolds) { replay("worker_link", ddp::fuzz::worker_link); }

}  // namespace
