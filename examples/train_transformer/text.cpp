#include "text.hpp"

#include <array>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <system_error>

#include "input_error.hpp"

namespace transformer {
namespace {

std::uint8_t code_of(char byte) { return static_cast<std::uint8_t>(byte); }

}  // namespace

Text::Text(const std::string& bytes) {
  std::array<bool, 256> occurs{};
  for (const char byte : bytes) occurs[code_of(byte)] = true;
  std::array<std::uint8_t, 256> number{};
  for (std::size_t code = 0; code < occurs.size(); ++code) {
    if (occurs[code]) number[code] = static_cast<std::uint8_t>(vocabulary_++);
  }
  for (const char byte : bytes) characters_.push_back(number[code_of(byte)]);
}

std::size_t Text::sample_count(std::size_t context) const {
  return characters_.empty() ? 0 : (characters_.size() - 1) / context;
}

Batch Text::batch(const std::vector<std::int64_t>& samples, std::size_t context) const {
  Batch batch{context, {}, {}};
  for (const std::int64_t sample : samples) {
    const std::uint8_t* const first = characters_.data() + static_cast<std::size_t>(sample) * context;
    batch.inputs.insert(batch.inputs.end(), first, first + context);
    batch.targets.insert(batch.targets.end(), first + 1, first + context + 1);
  }
  return batch;
}

Text read_text(const std::filesystem::path& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  if (bytes.str().empty()) {
    const std::string reason = errno == 0 ? "the file is empty" : std::generic_category().message(errno);
    throw train::InputError("can't read the text: " + reason + "\nwhere: " + path.string() +
                            "\ntry:   --data with a text file");
  }
  return Text(bytes.str());
}

}  // namespace transformer
