#include "bench/command_line.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <optional>
#include <set>
#include <string_view>

#include "base/man_page.hpp"

namespace ddp::bench {
namespace {

constexpr int kRanksMax = 1024;
constexpr std::size_t kParametersMin = 1'000;
constexpr std::size_t kParametersMax = 10'000'000'000;
constexpr std::size_t kBatchMax = 4'096;
constexpr std::size_t kStepsMax = 9'999;  // StepReportOptions::every takes one more
constexpr const char* kAsRank = "--as-rank";

template <class Number>
std::optional<Number> number_in(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

[[noreturn]] void refuse_ranks(const std::string& text) {
  throw UsageError("--ranks: \"" + text + "\" is no list of numbers from 1 to " + std::to_string(kRanksMax) +
                   ", such as 1,2,4 or 1-4");
}

// "1,2,4", "1-4". All numbers are compared with one rank, so 1 is always there.
std::vector<int> ranks_in(const std::string& text) {
  std::set<int> ranks{1};
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view item = std::string_view(text).substr(begin, end - begin);
    const std::size_t dash = item.find('-');
    const auto first = number_in<int>(item.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : number_in<int>(item.substr(dash + 1));
    if (!first || !last || *first < 1 || *last < *first || *last > kRanksMax) refuse_ranks(text);
    for (int count = *first; count <= *last; ++count) ranks.insert(count);
    begin = end + 1;
  }
  return {ranks.begin(), ranks.end()};
}

// Powers of two, and as many as there are cores.
std::vector<int> default_ranks(int core_count) {
  const int last = std::clamp(core_count, 1, kRanksMax);
  std::vector<int> ranks;
  for (int count = 1; count < last; count *= 2) ranks.push_back(count);
  ranks.push_back(last);
  return ranks;
}

// "25M", "1000000", "1.5G".
std::size_t parameters_in(const std::string& text) {
  std::string_view digits = text;
  double unit = 1;
  if (!digits.empty()) {
    const char suffix = digits.back();
    if (suffix == 'k' || suffix == 'K') unit = 1e3;
    if (suffix == 'M') unit = 1e6;
    if (suffix == 'G') unit = 1e9;
    if (unit != 1) digits.remove_suffix(1);
  }
  const auto number = number_in<double>(digits);
  const double count = number.value_or(-1) * unit;
  if (!(count >= static_cast<double>(kParametersMin)) || !(count <= static_cast<double>(kParametersMax))) {
    throw UsageError("--parameters: \"" + text + "\" is no number from 1k to 10G, such as 25M");
  }
  return static_cast<std::size_t>(count);
}

void declare_settings(CLI::App& app, Settings& settings, std::string& parameters) {
  app.add_option("--parameters", parameters, "About how many float32 parameters the model has")
      ->type_name("NUMBER")
      ->capture_default_str();
  app.add_option("--batch", settings.batch, "Samples of each rank in a step")
      ->type_name("NUMBER")
      ->check(CLI::Range(std::size_t{1}, kBatchMax))
      ->capture_default_str();
  app.add_option("--steps", settings.steps, "Steps to measure, after three steps that do not count")
      ->type_name("NUMBER")
      ->check(CLI::Range(std::size_t{1}, kStepsMax))
      ->capture_default_str();
}

}  // namespace

std::variant<ShowText, Measure, RunRank> parse_command_line(const std::vector<std::string>& arguments, int core_count,
                                                            const std::string& version) {
  CLI::App app(
      "Measures how data-parallel training scales on this machine. It trains a synthetic model with libddp's gradient\n"
      "engine, once with each number of ranks. ddprun, in the same folder, starts the ranks. The result is a table:\n"
      "samples per second, speedup and efficiency compared with one rank, the parts of a step, the latency of a "
      "barrier.",
      "ddp-bench");
  bool show_version = false, show_man_page = false;
  app.add_flag("--print-man-page", show_man_page, "For the build")->group("");
  app.add_flag("--version", show_version, "Print the version and exit");
  Measure measure;
  std::string ranks;
  std::string parameters = "10M";
  app.add_option(
         "--ranks", ranks,
         "Numbers of ranks to measure, such as 1,2,4 or 1-4. 1 is always measured. Default: powers of two up to "
         "the number of cores")
      ->type_name("LIST");
  declare_settings(app, measure.settings, parameters);
  app.add_option("--json", measure.json_file, "Also write the results as JSON")->type_name("FILE");
  app.add_option("--svg", measure.svg_file, "Also draw the speedup")->type_name("FILE");
  app.add_option("--save-single", measure.single_file,
                 "Write the samples per second of one rank, for StepReportOptions::single_rank_file")
      ->type_name("FILE");
  bool is_rank = false;
  app.add_flag(kAsRank, is_rank, "Be one of the ranks")->group("");  // an empty group: not in the help
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // it takes the last word first
  } catch (const CLI::CallForHelp&) {
    return ShowText{app.help()};
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
  if (show_man_page)
    return ShowText{
        base::man_page("ddp-bench", "measures how data-parallel training scales on this machine", version, app.help())};
  if (show_version) return ShowText{"ddp-bench " + version + "\n"};
  measure.settings.parameters = parameters_in(parameters);
  if (is_rank) return RunRank{measure.settings};
  measure.ranks = ranks.empty() ? default_ranks(core_count) : ranks_in(ranks);
  return measure;
}

std::vector<std::string> rank_arguments(const Settings& settings) {
  return {kAsRank, "--parameters=" + std::to_string(settings.parameters), "--batch=" + std::to_string(settings.batch),
          "--steps=" + std::to_string(settings.steps)};
}

}  // namespace ddp::bench
