#include "launcher/output/log_disk.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "tests/text.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;

constexpr int kPipeBytes = 4096;

// A FIFO stands for the disk: it stalls while nobody reads it.
class LogDiskTest : public ::testing::Test {
 protected:
  LogDiskTest() {
    EXPECT_EQ(::mkfifo(path_.c_str(), 0600), 0);
    reading_.reset(::open(path_.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
    EXPECT_EQ(::fcntl(reading_.get(), F_SETPIPE_SZ, kPipeBytes), kPipeBytes);
    file_ = std::make_shared<LogFile>(base::UniqueFd(::open(path_.c_str(), O_WRONLY | O_CLOEXEC)), path_);
  }

  LogDisk::Options options(std::size_t queued_bytes_max, std::chrono::milliseconds hold_limit) {
    return {queued_bytes_max, hold_limit, [this](const LogFile&, int error) {
              ++lost_;
              EXPECT_EQ(error, 0);
            }};
  }

  // All that is written until it ends with `last`.
  std::string read_until(const std::string& last) const {
    std::string out;
    std::array<char, kPipeBytes> bytes{};
    pollfd more{reading_.get(), POLLIN, 0};
    while (!out.ends_with(last) && ::poll(&more, 1, 60'000) == 1) {
      const auto count = ::read(reading_.get(), bytes.data(), bytes.size());
      if (count > 0) out.append(bytes.data(), static_cast<std::size_t>(count));
    }
    return out;
  }

  const test::ScratchDirectory scratch_;
  const std::string path_ = (scratch_.path() / "disk").string();
  base::UniqueFd reading_;
  LogDisk::File file_;
  std::atomic<int> lost_{0};
};

TEST_F(LogDiskTest, DropsWhatAStalledDiskDoesNotTakeAndSaysHowMuchInTheFile) {
  LogDisk disk(options(2 * kPipeBytes, 1ms));
  const std::string first = std::string(3 * kPipeBytes / 2, 'a') + "\nmid line";
  disk.append(file_, first);                                    // more than the disk takes
  disk.append(file_, std::string(2 * kPipeBytes, 'b') + "\n");  // does not fit, so it is dropped
  EXPECT_EQ(lost_, 1);
  disk.append(file_, "cut");  // would fit, but the order says that it came later
  EXPECT_EQ(lost_, 1) << "said once";
  std::promise<void> done;
  disk.then([&] { done.set_value(); });
  EXPECT_EQ(read_until("mid line"), first);
  ASSERT_EQ(done.get_future().wait_for(60s), std::future_status::ready);
  disk.append(file_, " off\nagain\n");  // the rest of a line whose beginning is missing
  EXPECT_EQ(read_until("again\n"), "\nddprun: " + std::to_string(2 * kPipeBytes + 1 + 3 + 5) +
                                       " bytes of output are missing here, because they could not be written\nagain\n");
}

TEST_F(LogDiskTest, LosesNothingIfTheDiskIsOnlySlower) {
  std::string all;
  std::string written;
  {
    LogDisk disk(options(1000, 60s));
    std::thread reader([&] { written = read_until("end\n"); });
    for (int i = 0; i < 3000; ++i) {
      const auto line = std::to_string(i) + std::string(90, '.') + "\n";
      all += line;
      disk.append(file_, line);
    }
    all += "end\n";
    disk.append(file_, "end\n");
    reader.join();
  }
  EXPECT_EQ(lost_, 0);
  EXPECT_EQ(written, all);
}

}  // namespace
}  // namespace ddp::launcher
