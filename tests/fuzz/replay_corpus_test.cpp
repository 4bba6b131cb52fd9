// Runs every input that the fuzzer found worth keeping; one that fails aborts, and the trace names it.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

TEST(StoreParserFuzz, CorpusHolds) {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(DDP_TEST_SOURCE_DIR "/tests/fuzz/corpus")) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    RecordProperty("input", entry.path().filename().string());
    EXPECT_EQ(LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()), 0);
    ++count;
  }
  EXPECT_GT(count, 0u);
}

}  // namespace
