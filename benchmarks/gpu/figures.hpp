// What the benchmarks of this folder share: numbers as options, and figures as rows of a table.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace ddp::benchmarks {

constexpr int kExitWrongUse = 2;

// --name=NUMBER for each name, and --json=FILE.
class Numbers {
 public:
  struct Option {
    std::string name;
    std::size_t value = 1;
    std::size_t max = 1'000'000;
  };

  // Ends the process with 2 where an argument is none of them.
  Numbers(int argc, char** argv, const std::vector<Option>& options) : program_(argv[0]) {
    for (const auto& option : options) values_[option.name] = option.value;
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      const auto equals = std::min(word.find('='), word.size());
      const std::string name = word.substr(0, equals);
      const std::string value = equals < word.size() ? word.substr(equals + 1) : "";
      if (name == "--json" && !value.empty()) {
        json_ = value;
        continue;
      }
      const auto option =
          std::find_if(options.begin(), options.end(), [&](const auto& one) { return "--" + one.name == name; });
      const bool is_number =
          !value.empty() && value.size() < 10 && value.find_first_not_of("0123456789") == std::string::npos;
      const std::size_t number = is_number ? std::stoul(value) : 0;
      if (option == options.end() || number < 1 || number > option->max) refuse(word, options);
      values_[option->name] = number;
    }
  }

  std::size_t operator[](const std::string& name) const { return values_.at(name); }
  const std::string& json() const { return json_; }  // a file's path; empty: none

 private:
  [[noreturn]] void refuse(const std::string& word, const std::vector<Option>& options) const {
    std::string known = " --json=FILE";
    for (const auto& option : options) known += " --" + option.name + "=" + std::to_string(option.value);
    std::fprintf(stderr,
                 "error: '%s' is none of its options, or no number in range\nwhere: the command line\ntry:   %s%s\n",
                 word.c_str(), program_.c_str(), known.c_str());
    std::exit(kExitWrongUse);
  }

  std::string program_;
  std::map<std::string, std::size_t> values_;
  std::string json_;
};

// Prints each figure as a row of a Markdown table, and keeps them for a file.
class Figures {
 public:
  explicit Figures(std::string benchmark) : benchmark_(std::move(benchmark)) {}

  void add(const std::string& what, double value, const std::string& unit, int digits = 2) {
    std::printf("| %s | %.*f %s |\n", what.c_str(), digits, value, unit.c_str());
    rows_.push_back({{"what", what}, {"value", value}, {"unit", unit}});
  }

  // Does nothing for an empty path.
  void write(const std::string& path) const {
    if (path.empty()) return;
    std::ofstream file(path);
    file << nlohmann::json{{"benchmark", benchmark_}, {"rows", rows_}}.dump() << "\n";
    if (!file.flush()) throw std::runtime_error("can't write " + path);
  }

 private:
  std::string benchmark_;
  nlohmann::json rows_ = nlohmann::json::array();
};

}  // namespace ddp::benchmarks
