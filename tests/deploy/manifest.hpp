// What a test needs of a manifest in deploy/kubernetes: the list under a key, one item a line, and the variables under
// `env:`, as the kubelet would hand them to a container.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/text.hpp"

namespace ddp::test {

class Manifest {
 public:
  explicit Manifest(const std::string& name)
      : lines_(lines_of(contents_of(std::string(DDP_TEST_SOURCE_DIR) + "/deploy/kubernetes/" + name))) {}

  // The items under the first such key, without their comments; none where there is no such key.
  std::vector<std::string> list(const std::string& key) const {
    std::vector<std::string> items;
    for (std::size_t i = line_with(key + ":") + 1; i < lines_.size(); ++i) {
      const auto text = trimmed(lines_[i]);
      if (text.rfind("- ", 0) != 0) break;
      items.push_back(text.substr(2));
    }
    return items;
  }

  // The value under the first such key.
  std::string value(const std::string& key) const {
    const auto at = line_with(key + ": ");
    return at == lines_.size() ? "" : unquoted(trimmed(lines_[at]).substr(key.size() + 2));
  }

  // The names and values under `env:`.
  std::vector<std::pair<std::string, std::string>> environment() const {
    std::vector<std::pair<std::string, std::string>> out;
    for (std::size_t i = line_with("env:") + 1; i + 1 < lines_.size(); i += 2) {
      const auto name = trimmed(lines_[i]);
      const auto value = trimmed(lines_[i + 1]);
      if (name.rfind("- name: ", 0) != 0 || value.rfind("value: ", 0) != 0) break;
      out.emplace_back(name.substr(8), unquoted(value.substr(7)));
    }
    return out;
  }

 private:
  static std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> out;
    for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
      end = text.find('\n', begin);
      out.push_back(text.substr(begin, end == std::string::npos ? end : end - begin));
    }
    return out;
  }
  static std::string trimmed(const std::string& line) {
    const auto begin = line.find_first_not_of(' ');
    if (begin == std::string::npos) return "";
    const auto comment = line.find(" #", begin);
    const auto end = line.find_last_not_of(' ', comment == std::string::npos ? comment : comment - 1);
    return line.substr(begin, end + 1 - begin);
  }
  static std::string unquoted(const std::string& text) {
    return text.size() > 1 && text.front() == '"' ? text.substr(1, text.size() - 2) : text;
  }
  std::size_t line_with(const std::string& begin) const {
    std::size_t i = 0;
    while (i < lines_.size() && trimmed(lines_[i]).rfind(begin, 0) != 0) ++i;
    return i;
  }

  std::vector<std::string> lines_;
};

}  // namespace ddp::test
