// A file whose disk does not answer holds up neither ddprun's loop nor its guardian's.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/pidfd.hpp"
#include "base/unique_file.hpp"
#include "launcher/agent/guardian_requests.hpp"
#include "launcher/agent/reason_files.hpp"
#include "launcher/guardian/guardian.hpp"
#include "launcher/guardian/protocol.hpp"
#include "tests/integration/fuse_disk.hpp"
#include "tests/no_threads.hpp"
#include "tests/text.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using guardian::ReportKind;
using guardian::RequestKind;

constexpr int kPatienceMs = 60'000;

class StalledDisk : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(folder_);
    try {
      disk_.emplace(folder_, test::FuseDisk::Options{});
    } catch (const std::runtime_error& error) {
      GTEST_SKIP() << error.what();
    }
  }

  base::UniqueFd file() const {
    base::UniqueFd fd(::open((folder_ / "file").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    EXPECT_TRUE(fd);
    return fd;
  }

  test::ScratchDirectory scratch_;
  const std::filesystem::path folder_ = scratch_.path() / "disk";
  std::optional<test::FuseDisk> disk_;
};

TEST_F(StalledDisk, HoldsUpNobodyWhoClosesAFile) {
  base::UniqueFile first = file(), second = file();
  disk_->stall();
  first.reset();
  second = base::UniqueFile();
  EXPECT_TRUE(disk_->holds_a_call()) << "on another thread";
  disk_->heal();
}

TEST_F(StalledDisk, IsNotAskedWhetherADescriptorIsAFile) {
  const auto fd = file();
  disk_->stall();
  EXPECT_TRUE(base::is_file(fd.get()));
  disk_->heal();
}

TEST_F(StalledDisk, HoldsUpNoRequestsThatWaitedForTheGuardian) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
  const base::UniqueFd ours(pair[0]), its(pair[1]);
  const auto log = file();
  boost::asio::io_context io{1};
  int lost = 0;
  GuardianRequests requests(io, ours.get(), [&] { ++lost; });
  constexpr int kCount = 2000;  // more than the socket holds
  for (int i = 0; i < kCount; ++i) requests.send({RequestKind::signal_tree, 0, i, {}}, {});
  requests.send({RequestKind::spawn, 0, 0, {}}, std::array{log.get()});
  requests.send({RequestKind::signal_tree, 0, kCount, {}}, {});
  disk_->stall();
  bool closed = false;
  int newest = -1;
  std::vector<base::UniqueFile> received;  // this process closes nothing meanwhile
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
  while (newest != kCount && std::chrono::steady_clock::now() < deadline) {
    io.poll();
    while (auto request = guardian::receive_request(its.get(), closed)) {
      for (auto& descriptor : request->descriptors) received.emplace_back(std::move(descriptor));
      newest = request->content.signal_number;
    }
  }
  EXPECT_EQ(newest, kCount);
  EXPECT_EQ(received.size(), 1U);
  EXPECT_TRUE(disk_->holds_a_call());
  EXPECT_EQ(lost, 0);
  disk_->heal();
}

TEST_F(StalledDisk, HoldsUpNoGuardianThatStartsAWorkerWithALogFile) {
  guardian::GuardianOptions options{{"/bin/true", {"true"}}, {}, {}, {1024, 1024}, {}, ""};
  sigemptyset(&options.worker_signal_mask);
  auto handle = guardian::start_guardian(options);
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  const base::UniqueFd agent(pair[0]), worker(pair[1]), null(::open("/dev/null", O_RDWR | O_CLOEXEC)), log = file();
  disk_->stall();
  guardian::send_request(handle.socket.get(), guardian::packet_of({RequestKind::spawn, 0, 0, {}}),
                         std::array{null.get(), log.get(), log.get(), worker.get()});
  guardian::send_request(handle.socket.get(), guardian::packet_of({RequestKind::forward_signal, 0, SIGUSR1, {}}), {});
  std::string reports;
  pollfd answer{handle.socket.get(), POLLIN, 0};
  bool closed = false;
  while (reports.find("forwarded") == std::string::npos && !closed && ::poll(&answer, 1, kPatienceMs) == 1)
    if (const auto received = guardian::receive_reports(handle.socket.get(), closed))
      for (const auto& report : received->content)
        reports += report.kind == ReportKind::spawned     ? "spawned "
                   : report.kind == ReportKind::forwarded ? "forwarded "
                                                          : "other ";
  EXPECT_EQ(reports, "spawned forwarded ");
  disk_->heal();
  const base::UniqueFd ended = base::open_pidfd(handle.pid);
  handle.socket.reset();
  pollfd wait{ended.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&wait, 1, kPatienceMs), 1);
  ::waitpid(handle.pid, nullptr, 0);
}

// What a worker leaves for its failure's report. read() opens it as a regular file first, which asks the disk.
class StalledErrorFile : public StalledDisk {
 protected:
  void read(ReasonFiles& files) {
    files.read({{(folder_ / "file").string()}, {}}, [this](const Reasons& reasons) {
      ++answers_;
      for (const auto& message : reasons.messages) messages_ += message;
    });
  }

  boost::asio::io_context io_{1};
  int answers_ = 0;
  std::string messages_;
};

TEST_F(StalledErrorFile, IsNotReadIfThoseOfManyRoundsWait) {
  constexpr std::string_view kText = R"({"message": "no data "})";
  ASSERT_EQ(::write(file().get(), kText.data(), kText.size()), static_cast<ssize_t>(kText.size()));
  ReasonFiles files(io_);
  disk_->stall();
  for (int round = 0; round < 20; ++round) read(files);
  io_.poll();
  EXPECT_EQ(answers_, 4);
  EXPECT_EQ(messages_, "");
  disk_->heal();
  io_.restart();
  io_.run();
  EXPECT_EQ(answers_, 20);
  EXPECT_EQ(test::occurrences(messages_, "no data "), 16);
}

TEST_F(StalledErrorFile, IsNotReadOnTheLoopIfThreadsRunOut) {
  file();
  ReasonFiles files(io_);
  const testing::NoThreads none;
  disk_->stall();
  read(files);
  EXPECT_EQ(answers_, 0) << "later, from the loop";
  io_.run();
  EXPECT_EQ(answers_, 1);
  disk_->heal();
}

}  // namespace
}  // namespace ddp::launcher
