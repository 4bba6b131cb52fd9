// What tests do with text.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace ddp::test {

// Empty where it can't be read. Of files under /proc too, of a process that ends meanwhile.
inline std::string contents_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  try {
    return {std::istreambuf_iterator<char>(file), {}};
  } catch (const std::ios_base::failure&) {
    return {};
  }
}

inline int occurrences(const std::string& where, const std::string& what) {
  int count = 0;
  for (auto at = where.find(what); at != std::string::npos; at = where.find(what, at + what.size())) ++count;
  return count;
}

}  // namespace ddp::test
