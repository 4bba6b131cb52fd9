#include "data.hpp"

#include "input_error.hpp"

#include <ddp/distributed_sampler.hpp>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <fstream>
#include <string_view>
#include <system_error>

namespace train {
namespace {

constexpr std::size_t kSampleCountMax = 10'000'000;
constexpr std::size_t kFeatureCountMax = 100'000;
constexpr std::uint64_t kSplitSeed = 0;

// Goes through the lines of one file and knows where it is, for messages.
class CsvReader {
 public:
  explicit CsvReader(const std::filesystem::path& path) : path_(path), file_(path) {
    std::error_code ignored;
    if (!file_ || std::filesystem::is_directory(path, ignored)) {
      refuse("can't read the data: " + std::generic_category().message(file_ ? EISDIR : errno), path.string());
    }
  }

  // The fields of the next line; false at the end of the file.
  bool next(std::vector<std::string_view>& fields) {
    if (!std::getline(file_, line_)) return false;
    ++line_number_;
    if (!line_.empty() && line_.back() == '\r') line_.pop_back();
    fields.clear();
    std::string_view rest = line_;
    for (std::size_t comma = 0; (comma = rest.find(',')) != std::string_view::npos; rest.remove_prefix(comma + 1)) {
      fields.push_back(rest.substr(0, comma));
    }
    fields.push_back(rest);
    return true;
  }

  std::size_t line_number() const { return line_number_; }

  [[noreturn]] void refuse_line(const std::string& what) const {
    refuse(what, path_.string() + ", line " + std::to_string(line_number_));
  }

  // column: index of the field
  [[noreturn]] void refuse_field(const std::string& what, std::size_t column) const {
    refuse(what, path_.string() + ", line " + std::to_string(line_number_) + ", column " + std::to_string(column + 1));
  }

 private:
  [[noreturn]] static void refuse(const std::string& what, const std::string& where) {
    throw InputError(what + "\nwhere: " + where + "\ntry:   another file with --data, or a fresh copy of this one");
  }

  std::filesystem::path path_;
  std::ifstream file_;
  std::string line_;
  std::size_t line_number_ = 0;  // from 1 on, as editors count
};

// The whole field as a number; text around it, and an empty field, are refused.
template <class Number>
Number parse_field(const CsvReader& reader, std::string_view text, std::size_t column) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string quoted = "`" + std::string(text) + "`";
  if (error == std::errc::result_out_of_range) reader.refuse_field(quoted + " is out of range", column);
  if (error != std::errc{} || end != text.data() + text.size()) {
    reader.refuse_field(quoted + " is not a number", column);
  }
  return value;
}

float parse_feature(const CsvReader& reader, std::string_view text, std::size_t column) {
  const auto value = parse_field<float>(reader, text, column);
  if (!std::isfinite(value)) reader.refuse_field("`" + std::string(text) + "` is not a finite number", column);
  return value;
}

std::size_t parse_count(const CsvReader& reader, std::string_view text, std::size_t column, std::size_t count_max) {
  const auto count = parse_field<std::size_t>(reader, text, column);
  if (count < 1 || count > count_max) {
    reader.refuse_field("`" + std::string(text) + "` is not a count from 1 to " + std::to_string(count_max), column);
  }
  return count;
}

int parse_label(const CsvReader& reader, std::string_view text, std::size_t column, std::size_t class_count) {
  const auto label = parse_field<std::size_t>(reader, text, column);
  if (label >= class_count) {
    reader.refuse_field("`" + std::string(text) + "` is not a class: there are " + std::to_string(class_count), column);
  }
  return static_cast<int>(label);
}

// Mean and standard deviation of one feature.
struct Scale {
  double mean = 0;
  double deviation = 1;
};

Scale scale_of(const Samples& samples, std::size_t feature) {
  const auto count = static_cast<double>(samples.size());
  double sum = 0;
  for (std::size_t i = feature; i < samples.features.size(); i += samples.feature_count) sum += samples.features[i];
  const double mean = sum / count;
  double squares = 0;
  for (std::size_t i = feature; i < samples.features.size(); i += samples.feature_count) {
    squares += (samples.features[i] - mean) * (samples.features[i] - mean);
  }
  const double deviation = std::sqrt(squares / count);
  return {mean, deviation > 0 ? deviation : 1};  // a feature that never changes becomes 0
}

void apply(const Scale& scale, Samples& samples, std::size_t feature) {
  for (std::size_t i = feature; i < samples.features.size(); i += samples.feature_count) {
    samples.features[i] = static_cast<float>((samples.features[i] - scale.mean) / scale.deviation);
  }
}

}  // namespace

Dataset read_csv(const std::filesystem::path& path) {
  CsvReader reader(path);
  std::vector<std::string_view> fields;
  if (!reader.next(fields)) reader.refuse_line("the file is empty");
  if (fields.size() < 4) reader.refuse_line("the first line is not `samples,features,class,class`");
  const std::size_t count = parse_count(reader, fields[0], 0, kSampleCountMax);
  const std::size_t feature_count = parse_count(reader, fields[1], 1, kFeatureCountMax);

  Dataset dataset;
  dataset.samples.feature_count = feature_count;
  dataset.class_names.assign(fields.begin() + 2, fields.end());
  while (reader.next(fields)) {
    if (fields.size() != feature_count + 1) {
      reader.refuse_line("the line has " + std::to_string(fields.size()) + " fields, not " +
                         std::to_string(feature_count) + " features and a class");
    }
    if (dataset.samples.size() == count) {
      reader.refuse_line("the first line announces " + std::to_string(count) + " samples, and here is one more");
    }
    for (std::size_t column = 0; column < feature_count; ++column) {
      dataset.samples.features.push_back(parse_feature(reader, fields[column], column));
    }
    dataset.samples.labels.push_back(
        parse_label(reader, fields[feature_count], feature_count, dataset.class_names.size()));
  }
  if (dataset.samples.size() < count) {
    reader.refuse_line("the file ends after " + std::to_string(dataset.samples.size()) + " samples, its first line " +
                       "announces " + std::to_string(count));
  }
  return dataset;
}

Split split_and_standardise(const Samples& samples) {
  const std::vector<std::int64_t> order = ddp::random_permutation(samples.size(), kSplitSeed);
  const auto middle = order.begin() + static_cast<std::ptrdiff_t>(samples.size() * 4 / 5);
  Split split = {select(samples, {order.begin(), middle}), select(samples, {middle, order.end()})};
  for (std::size_t feature = 0; feature < samples.feature_count; ++feature) {
    const Scale scale = scale_of(split.train, feature);
    apply(scale, split.train, feature);
    apply(scale, split.test, feature);
  }
  return split;
}

Samples select(const Samples& from, const std::vector<std::int64_t>& indices) {
  Samples selected;
  selected.feature_count = from.feature_count;
  for (const std::int64_t index : indices) {
    const auto row = from.features.begin() + index * static_cast<std::ptrdiff_t>(from.feature_count);
    selected.features.insert(selected.features.end(), row, row + static_cast<std::ptrdiff_t>(from.feature_count));
    selected.labels.push_back(from.labels[static_cast<std::size_t>(index)]);
  }
  return selected;
}

}  // namespace train
