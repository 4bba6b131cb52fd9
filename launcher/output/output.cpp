#include "launcher/output/output.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "base/file_thread.hpp"
#include "base/host_name.hpp"
#include "base/recorded_rounds.hpp"
#include "base/unique_file.hpp"
#include "launcher/command_line/usage_error.hpp"
#include "launcher/output/console.hpp"
#include "launcher/output/console_reader.hpp"
#include "launcher/output/line_prefix.hpp"
#include "launcher/output/line_tail.hpp"
#include "launcher/output/log_thread.hpp"
#include "launcher/output/log_tree.hpp"
#include "launcher/output/stream_ends.hpp"

namespace ddp::launcher {
namespace {

constexpr const char* kNoFiles = "/dev/null";
constexpr std::int64_t kOutdatedAtOnceMax = 64;
constexpr std::chrono::seconds kFilesEndLimit{2};  // at the end of ddprun: what is left matters little

bool is_in(const std::vector<RankRange>& ranges, int rank) {
  return ranges.empty() || std::any_of(ranges.begin(), ranges.end(), [&](const RankRange& range) {
           return range.first <= rank && rank <= range.last;
         });
}

// Whose flight recorder files are too old once this round begins. Numbers may leave out some.
std::vector<std::uint32_t> outdated_by(const Output::RoundFacts& before, const Output::RoundFacts& round) {
  std::vector<std::uint32_t> out;
  const auto first = before.job == round.job ? std::int64_t{before.number} + 1 : std::int64_t{round.number};
  for (auto number = std::max(first, std::int64_t{round.number} - kOutdatedAtOnceMax); number <= round.number; ++number)
    if (number >= base::kRecordedRoundsMax)
      out.push_back(static_cast<std::uint32_t>(number - base::kRecordedRoundsMax));
  return out;
}

// Never waits for a disk: the kernel keeps /dev in memory.
base::UniqueFd open_nothing(int flags) {
  base::UniqueFd fd(::open("/dev/null", flags | O_CLOEXEC));
  if (!fd) throw std::system_error(errno, std::generic_category(), "/dev/null for a worker");
  return fd;
}

// The folders and files of a round on their way. run() is the disk thread's, `is_wanted` is the loop's.
struct Opening {
  std::optional<LogTree> tree;  // empty: there are none
  std::string job;
  std::uint32_t round = 0;
  std::vector<int> ranks{};                         // global ones; each gets a folder
  std::vector<std::uint32_t> old_rounds{};          // whose flight recorder files are removed
  std::map<std::string, base::UniqueFile> files{};  // by their paths
  std::exception_ptr error{};
  bool is_wanted = true;

  void run() {
    try {
      for (const int rank : ranks) tree->make_rank_directory(job, round, rank);
      if (!ranks.empty()) tree->point_latest_at(job);
      for (auto& [path, file] : files) file = open_log_file(path);
    } catch (...) {
      error = std::current_exception();
    }
    remove_old();
  }

  void remove_old() const {
    for (const auto old : old_rounds) tree->remove_recordings(job, old);
  }

  base::UniqueFile take(const std::string& path) { return std::move(files.at(path)); }
};

// The streams of workers whose last round is over, while the rest of them is written.
struct Closing {
  std::vector<int> local_ranks;
  std::function<void()> written;
  bool is_wanted = true;
};

}  // namespace

class Output::Impl {
 public:
  Impl(boost::asio::io_context& io, OutputOptions options, std::string scratch_directory,
       std::function<void()> reader_gone)
      : io_(io),
        options_(std::move(options)),
        scratch_directory_(std::move(scratch_directory)),
        tree_(open_tree()),
        console_(io, console_options(std::move(reader_gone))) {
    if (tree_) disk_.emplace(io, base::FileThread::Options{.end_limit = kFilesEndLimit});
  }

  ~Impl() {
    give_up_opening();
    if (closing_) closing_->is_wanted = false;
    if (log_thread_) log_thread_->stop();
  }

  void begin_round(const RoundFacts& round, const std::vector<int>& kept, Opened opened) {
    end_round(kept, [] {});  // of who did not; nothing otherwise
    finish_closing();
    const auto before = std::exchange(round_, round);
    workers_.resize(static_cast<std::size_t>(round.workers));
    console_.set_workers(round.workers);
    std::vector<int> begun;
    for (int rank = 0; rank < round.workers; ++rank) {
      auto& worker = worker_of(rank);
      for (int stream : {1, 2}) worker.prefix[stream - 1] = LinePrefix(prefix_template(rank, stream), facts_of({rank}));
      if (worker.is_open) continue;
      worker = WorkerStreams{.prefix = worker.prefix, .is_open = true};
      worker.directory = directory_of_round(rank);
      begun.push_back(rank);
    }
    are_several_on_console_ = workers_on_console() > 1;
    opening_ = opening_of(begun);
    if (tree_) opening_->old_rounds = outdated_by(before, round_);
    auto go_on = [this, opening = opening_, begun, opened = std::move(opened)] {
      if (opening->is_wanted) opened(open_streams(begun));
    };
    if (opening_->ranks.empty()) {
      if (tree_) static_cast<void>(disk_->post([opening = opening_] { opening->remove_old(); }, [] {}));
      return boost::asio::post(io_, std::move(go_on));
    }
    if (disk_->post([opening = opening_] { opening->run(); }, go_on)) return;
    opening_->error = std::make_exception_ptr(
        UsageError("log files can't be opened, because their disk has not answered for many rounds",
                   options_.log_directory, "`--log-dir` on another disk"));
    boost::asio::post(io_, std::move(go_on));
  }

  std::array<int, 3> worker_side(int local_rank) const {
    const auto& side = worker_of(local_rank).side;
    return {side[0].get(), side[1].get(), side[2].get()};
  }

  void worker_is_spawned(int local_rank) {
    auto& worker = worker_of(local_rank);
    for (auto& side : worker.side) side.reset();
  }

  void end_round(const std::vector<int>& kept, std::function<void()> written) {
    give_up_opening();
    finish_closing();
    closing_ = std::make_shared<Closing>(Closing{{}, std::move(written)});
    for (int rank = 0; rank < static_cast<int>(workers_.size()); ++rank)
      if (worker_of(rank).is_open && std::find(kept.begin(), kept.end(), rank) == kept.end())
        closing_->local_ranks.push_back(rank);
    for (const int rank : closing_->local_ranks) worker_is_spawned(rank);
    auto go_on = [this, closing = closing_] {
      if (!closing->is_wanted) return;
      finish_closing();
      closing->written();
    };
    if (closing_->local_ranks.empty() || !log_thread_) return boost::asio::post(io_, std::move(go_on));
    log_thread_->drain(kept, std::move(go_on));
  }

  std::string error_file(int local_rank) const {
    const auto& directory = worker_of(local_rank).directory;
    if (tree_) return directory + "/error.json";
    if (options_.log_directory == kNoFiles) return {};
    return directory + "_error.json";
  }

  std::string round_directory() const {
    if (tree_) return tree_->round_directory(round_.job, round_.number);
    return options_.log_directory == kNoFiles ? kNoFiles : "";
  }

  std::string stderr_file(int local_rank) const { return file_of(local_rank, 2); }

  std::vector<std::string> stderr_tail(int local_rank) const { return worker_of(local_rank).stderr_tail.lines(); }

  void print(std::string_view message) { console_.print(message); }
  void log(std::string_view line) { console_.log(line); }

  void resize() {
    console_.resized();
    const auto size = console_.terminal_size();
    if (!size) return;
    for (int rank = 0; rank < static_cast<int>(workers_.size()); ++rank)
      for (int stream : {1, 2})
        if (const auto& reader = worker_of(rank).readers[static_cast<std::size_t>(stream - 1)])
          reader->resize(narrowed(*size, columns_taken(rank, stream)));
    if (log_thread_) log_thread_->resize(*size);
  }

  int highest_round(const std::string& run_id) const { return tree_ ? tree_->highest_round(run_id) : -1; }

  OpenFile own_log(const std::string& job, const std::string& host_name) const {
    if (!tree_) return nullptr;
    return [tree = *tree_, job, host_name] { return tree.open_own_log(job, host_name); };
  }

  OpenFile report() const {
    if (!tree_ || round_.job.empty()) return nullptr;
    return [tree = *tree_, job = round_.job] { return tree.open_report(job); };
  }

  void print_where() {
    if (tree_ && !round_.job.empty() && !std::exchange(told_where_, true)) say_folder();
  }

  void when_drained(std::function<void()> done) {
    finish_closing();
    console_.when_drained(std::move(done));
  }

 private:
  struct WorkerStreams {
    std::array<base::UniqueFile, 3> side{};
    std::array<std::shared_ptr<ConsoleReader>, 2> readers{};  // of what goes to the console only; else null
    std::array<LinePrefix, 2> prefix{};
    LineTail stderr_tail{};   // where stderr goes to the console only
    std::string directory{};  // of the round and the rank that it began with; its files are there
    bool is_open = false;     // until the end of the last round that it takes part in
  };

  // --- what the options mean ---

  std::optional<LogTree> open_tree() const {
    if (options_.log_directory == kNoFiles) return {};
    if (!options_.log_directory.empty()) return LogTree::at(options_.log_directory);
    if (!options_.redirects.is_empty() || !options_.tee.is_empty()) return LogTree::in_temporary_directory();
    return {};
  }

  Console::Options console_options(std::function<void()> reader_gone) {
    Console::Options out;
    out.reader_gone = std::move(reader_gone);
    if (options_.prefix_lines)
      out.prefix = [this](LineMerger::Source source, bool several) { return prefix_of(source, several); };
    if (options_.merge_equal_lines)
      out.prefix_of_many = [this](int stream, const std::vector<int>& ranks) { return prefix_of_many(stream, ranks); };
    return out;
  }

  bool is_shown(int local_rank) const {
    return is_in(options_.local_ranks_shown, local_rank) && is_in(options_.ranks_shown, round_.rank_first + local_rank);
  }

  const std::vector<std::string>& wanted_duplicates(int stream) const {
    return stream == 1 ? options_.stdout_duplicates : options_.stderr_duplicates;
  }

  std::string file_of(int local_rank, int stream) const {
    if (!tree_ || !(options_.redirects.has(local_rank, stream) || options_.tee.has(local_rank, stream))) return {};
    return worker_of(local_rank).directory + (stream == 1 ? "/stdout.log" : "/stderr.log");
  }

  std::string directory_of_round(int local_rank) const {
    const int rank = round_.rank_first + local_rank;
    if (tree_) return tree_->rank_directory(round_.job, round_.number, rank);
    return scratch_directory_ + "/round_" + std::to_string(round_.number) + "_rank_" + std::to_string(rank);
  }

  // --- prefixes ---

  PrefixFacts facts_of(const std::vector<int>& local_ranks) const {
    std::vector<int> ranks;
    for (const int rank : local_ranks) ranks.push_back(round_.rank_first + rank);
    return {round_.role, rank_ranges(ranks), rank_ranges(local_ranks), host_};
  }

  // Whoever gives a template, or asks for what torchrun puts a prefix before, has it always.
  bool is_always_prefixed(int local_rank, int stream) const {
    return !options_.prefix_template.empty() || options_.tee.has(local_rank, stream);
  }

  std::string prefix_template(int local_rank, int stream) const {
    if (!options_.prefix_template.empty()) return options_.prefix_template;
    return options_.tee.has(local_rank, stream) ? kTeePrefix : kShortPrefix;
  }

  std::string prefix_of(LineMerger::Source source, bool several) const {
    const auto rank = static_cast<std::size_t>(source.rank);
    if (rank >= workers_.size()) return {};  // the end of a round whose disk was slow
    const bool is_wanted = (console_.is_terminal(source.stream) && several) ||
                           (console_.is_file(source.stream) && (several || are_several_on_console_));
    if (!is_always_prefixed(source.rank, source.stream) && !is_wanted) return {};
    return workers_[rank].prefix[static_cast<std::size_t>(source.stream - 1)].text();
  }

  // The workers of this round that can print to the console. A file has prefixes from its first line on if there are
  // several: who reads it later does not see which worker was the first one to print.
  int workers_on_console() const {
    int count = 0;
    for (int rank = 0; rank < round_.workers; ++rank) {
      const auto prints = [&](int stream) {
        return options_.tee.has(rank, stream) || !options_.redirects.has(rank, stream);
      };
      if (is_shown(rank) && (prints(1) || prints(2))) ++count;
    }
    return count;
  }

  // What a prefix may take of each row of the terminal. A progress bar that filled the row would wrap behind it, and
  // each drawing of it begin another row.
  std::size_t columns_taken(int rank, int stream) const {
    if (!options_.prefix_lines || (round_.workers == 1 && !is_always_prefixed(rank, stream))) return 0;
    return worker_of(rank).prefix[static_cast<std::size_t>(stream - 1)].text().size();
  }

  std::string prefix_of_many(int stream, const std::vector<int>& local_ranks) const {
    if (!options_.prefix_lines) return {};
    if (round_.workers == 1 && !is_always_prefixed(local_ranks.front(), stream)) return {};
    return LinePrefix(prefix_template(local_ranks.front(), stream), facts_of(local_ranks)).text();
  }

  // --- streams ---

  // ddprun's own, be it a file, a pipe or the terminal itself, where line editing and hidden input work as usual.
  static base::UniqueFd open_stdin(bool is_inherited) {
    base::UniqueFd fd =
        is_inherited ? base::UniqueFd(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)) : open_nothing(O_RDONLY);
    if (!fd) throw std::system_error(errno, std::generic_category(), "stdin of a worker");
    return fd;
  }

  std::shared_ptr<Opening> opening_of(const std::vector<int>& local_ranks) const {
    auto out = std::make_shared<Opening>(Opening{tree_, round_.job, round_.number});
    if (!tree_) return out;
    for (const int rank : local_ranks) {
      out->ranks.push_back(round_.rank_first + rank);
      for (int stream : {1, 2}) {
        const auto file = file_of(rank, stream);
        if (!file.empty()) out->files[file];
        if (!file.empty() && options_.tee.has(rank, stream) && !wanted_duplicates(stream).empty())
          out->files[duplicates_file(stream)];
      }
    }
    return out;
  }

  // Whatever the disk has not taken yet is still written, and shown if it is in time.
  void finish_closing() {
    const auto closing = std::exchange(closing_, nullptr);
    if (!closing) return;
    closing->is_wanted = false;
    for (const int rank : closing->local_ranks) {
      worker_of(rank).is_open = false;
      for (const auto& reader : worker_of(rank).readers)
        if (reader) reader->drain();
    }
    console_.end(closing->local_ranks);
  }

  void give_up_opening() {
    if (!opening_) return;
    opening_->is_wanted = false;
    opening_.reset();
  }

  // The streams of workers whose files are open.
  std::exception_ptr open_streams(const std::vector<int>& local_ranks) {
    const auto opening = std::exchange(opening_, nullptr);
    try {
      if (opening->error) std::rethrow_exception(opening->error);
      const auto size = console_.terminal_size();
      std::vector<LogThread::Stream> streams;
      std::shared_ptr<DuplicateFile> duplicates[2];
      for (const int rank : local_ranks) {
        worker_of(rank).side[0] = open_stdin(rank == 0 && round_.rank_first == 0 && round_.may_read);
        for (int stream : {1, 2}) open_stream(rank, stream, size, *opening, duplicates[stream - 1], streams);
      }
      if (!streams.empty()) log_thread().add(std::move(streams));
      for (const int rank : local_ranks)
        for (const auto& reader : worker_of(rank).readers)
          if (reader) reader->start();
    } catch (...) {
      return std::current_exception();
    }
    if (options_.log_directory.empty()) print_where();
    return nullptr;
  }

  void say_folder() {
    if (options_.is_quiet) return;
    print("ddprun: " + (tree_->notice().empty() ? "" : tree_->notice() + ", so ") + "log files are in " +
          tree_->job_directory(round_.job));
  }

  void open_stream(int rank, int stream, const std::optional<winsize>& size, Opening& opening,
                   std::shared_ptr<DuplicateFile>& duplicates, std::vector<LogThread::Stream>& streams) {
    auto& worker = worker_of(rank);
    auto& side = worker.side[static_cast<std::size_t>(stream)];
    const bool shown = is_shown(rank);
    const bool tee = options_.tee.has(rank, stream);
    const auto file = file_of(rank, stream);
    if (!file.empty() && (!tee || (!shown && wanted_duplicates(stream).empty()))) {
      side = opening.take(file);
      return;
    }
    if (file.empty() && (!shown || (!tee && options_.redirects.has(rank, stream)))) {
      side = open_nothing(O_WRONLY);
      return;
    }
    const auto taken = columns_taken(rank, stream);
    auto ends = shown && console_.is_terminal(stream)
                    ? open_terminal(size ? std::optional(narrowed(*size, taken)) : std::nullopt)
                    : open_pipe();
    side = std::move(ends.worker);
    if (file.empty()) {
      worker.readers[static_cast<std::size_t>(stream - 1)] =
          std::make_shared<ConsoleReader>(io_, std::move(ends.agent), [this, rank, stream](std::string_view bytes) {
            if (stream == 2) worker_of(rank).stderr_tail.remember(bytes);
            console_.feed({rank, stream}, bytes);
          });
      return;
    }
    if (!duplicates && !wanted_duplicates(stream).empty()) duplicates = duplicates_of(stream, opening);
    streams.push_back({{rank, stream},
                       std::move(ends.agent),
                       LogFile(opening.take(file), file),
                       shown,
                       taken,
                       duplicates,
                       options_.prefix_lines ? worker.prefix[static_cast<std::size_t>(stream - 1)] : LinePrefix()});
  }

  // One per node, because two machines that append to one file of a network's file system tear its lines.
  std::string duplicates_file(int stream) const {
    return tree_->round_directory(round_.job, round_.number) + "/filtered_" + (stream == 1 ? "stdout" : "stderr") +
           (round_.rank_first == 0 ? "" : "_from_rank_" + std::to_string(round_.rank_first)) + ".log";
  }

  std::shared_ptr<DuplicateFile> duplicates_of(int stream, Opening& opening) const {
    const auto path = duplicates_file(stream);
    return std::make_shared<DuplicateFile>(DuplicateFile{LogFile(opening.take(path), path), wanted_duplicates(stream)});
  }

  LogThread& log_thread() {
    if (!log_thread_) {
      LogThread::Options options;
      options.read = [this](LineMerger::Source source, std::string_view bytes) { console_.feed(source, bytes); };
      options.warn = [this](const std::string& message) { print(message); };
      log_thread_ = std::make_shared<LogThread>(io_, std::move(options));
      log_thread_->start();
    }
    return *log_thread_;
  }

  WorkerStreams& worker_of(int local_rank) { return workers_.at(static_cast<std::size_t>(local_rank)); }
  const WorkerStreams& worker_of(int local_rank) const { return workers_.at(static_cast<std::size_t>(local_rank)); }

  boost::asio::io_context& io_;
  OutputOptions options_;
  std::string scratch_directory_;
  std::string host_ = base::host_name();
  std::optional<LogTree> tree_;  // empty: no log files
  Console console_;
  RoundFacts round_;
  bool are_several_on_console_ = false;  // workers of this round
  std::vector<WorkerStreams> workers_;
  std::optional<base::FileThread> disk_;   // where there are log files
  std::shared_ptr<Opening> opening_;       // of this round, until it is done
  std::shared_ptr<Closing> closing_;       // of the last round, until it is done
  std::shared_ptr<LogThread> log_thread_;  // once something is tee'd
  bool told_where_ = false;
};

Output::Output(boost::asio::io_context& io, OutputOptions options, std::string scratch_directory,
               std::function<void()> reader_gone)
    : impl_(std::make_unique<Impl>(io, std::move(options), std::move(scratch_directory), std::move(reader_gone))) {}

Output::~Output() = default;

void Output::begin_round(const RoundFacts& round, const std::vector<int>& kept, Opened opened) {
  impl_->begin_round(round, kept, std::move(opened));
}
std::array<int, 3> Output::worker_side(int local_rank) const { return impl_->worker_side(local_rank); }
void Output::worker_is_spawned(int local_rank) { impl_->worker_is_spawned(local_rank); }
void Output::end_round(const std::vector<int>& kept, std::function<void()> written) {
  impl_->end_round(kept, std::move(written));
}
std::string Output::error_file(int local_rank) const { return impl_->error_file(local_rank); }
std::string Output::round_directory() const { return impl_->round_directory(); }
std::string Output::stderr_file(int local_rank) const { return impl_->stderr_file(local_rank); }
std::vector<std::string> Output::stderr_tail(int local_rank) const { return impl_->stderr_tail(local_rank); }
void Output::print(std::string_view message) { impl_->print(message); }
void Output::log(std::string_view line) { impl_->log(line); }
void Output::resize() { impl_->resize(); }
int Output::highest_round(const std::string& run_id) const { return impl_->highest_round(run_id); }
Output::OpenFile Output::own_log(const std::string& job, const std::string& host_name) const {
  return impl_->own_log(job, host_name);
}
Output::OpenFile Output::report() const { return impl_->report(); }
void Output::print_where() { impl_->print_where(); }
void Output::when_drained(std::function<void()> done) { impl_->when_drained(std::move(done)); }

}  // namespace ddp::launcher
