// The text that the model learns: its characters as numbers, cut into samples.
//
// Every rank reads the whole file; a DistributedSampler then says which samples are its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace transformer {

// Samples of `context` characters each, and after each of these characters the one that follows it in the text.
struct Batch {
  std::size_t context = 0;
  std::vector<std::size_t> inputs;   // [samples, context]
  std::vector<std::size_t> targets;  // [samples, context]
};

class Text {
 public:
  // Characters are bytes. The vocabulary is those that occur, in the order of their codes.
  explicit Text(const std::string& bytes);

  std::size_t vocabulary() const { return vocabulary_; }

  // Samples do not overlap. What is left at the end is no sample.
  std::size_t sample_count(std::size_t context) const;

  Batch batch(const std::vector<std::int64_t>& samples, std::size_t context) const;

 private:
  std::size_t vocabulary_ = 0;
  std::vector<std::uint8_t> characters_;  // each below vocabulary_
};

// Throws train::InputError for a file that can't be read.
Text read_text(const std::filesystem::path& path);

}  // namespace transformer
