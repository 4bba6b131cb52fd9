#include "rendezvous/slurm/host_list.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "ddp/error.hpp"

namespace ddp::slurm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SlurmHostList, IsReadAsScontrolReadsIt) {
  const struct {
    const char* list;
    std::vector<std::string> hosts;
  } cases[] = {
      {"n1", {"n1"}},
      {"n[1-3,7]", {"n1", "n2", "n3", "n7"}},
      {"n[08-11]", {"n08", "n09", "n10", "n11"}},
      {"n[8-11]", {"n8", "n9", "n10", "n11"}},
      {"n[001-3]", {"n001", "n002", "n003"}},
      {"n[1-03]", {"n1", "n2", "n3"}},
      {"n[99-101,005]", {"n99", "n100", "n101", "n005"}},
      {"n[3,1,1]", {"n3", "n1", "n1"}},
      {"a[1-2][3-4]", {"a13", "a14", "a23", "a24"}},
      {"a[1-2]b[1-2]c[1-2]", {"a1b1c1", "a1b1c2", "a2b1c1", "a2b1c2", "a1b2c1", "a1b2c2", "a2b2c1", "a2b2c2"}},
      {"a[01-02]b[1-2],c-3,[4-5]", {"a01b1", "a01b2", "a02b1", "a02b2", "c-3", "4", "5"}},
      {",b,,a b\tc\n", {"b", "a", "b", "c"}},
      {"", {}},
      {"n[1-2]-ib,n[3]x[4]y", {"n1-ib", "n2-ib", "n3x4y"}},  // which scontrol does not take
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.list);
    EXPECT_EQ(expand_host_list(c.list), c.hosts);
  }
}

TEST(SlurmHostList, WhatIsMalformedIsRefusedWithTheReason) {
  const struct {
    std::string list;
    const char* told;
  } cases[] = {
      {"n[1-2", "a [ without its ]"},
      {"n1-2]", "a ] without its ["},
      {"n[1]]", "a ] without its ["},
      {"n[2-1]", "the range '2-1' ends before it begins"},
      {"n[]", "'' in its brackets is no number"},
      {"n[1,]", "'' in its brackets"},
      {"n[1-]", "'1-' in its brackets"},
      {"n[-1]", "'-1' in its brackets"},
      {"n[1--2]", "'1--2' in its brackets"},
      {"n[1-2-3]", "'1-2-3' in its brackets"},
      {"n[[1]]", "'[1' in its brackets"},
      {"n[x]", "'x' in its brackets"},
      {"n[1 -2]", "'1 -2' in its brackets"},
      {"n[99999999999999999999]", "in its brackets"},
      {"n[0-65536]", "more than 65536 hosts"},
      {"n[0-255]x[0-256]", "more than 65536 hosts"},
      {"n[0-65535],m", "more than 65536 hosts"},
      {"n[0-65535,7]", "more than 65536 hosts"},
      {std::string(256, 'n'), "too long"},
      {"n[1-2" + std::string(1u << 20, ','), "more than 1048576 bytes"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.list.substr(0, 50));
    try {
      expand_host_list(c.list);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr(c.told));
      EXPECT_LT(std::string(error.what()).size(), 400u);
    }
  }
  EXPECT_EQ(expand_host_list("n[0-65535]").size(), 65'536u);
}

TEST(SlurmHostList, ManyFullBracketsAreRefusedInLittleMemory) {
  const auto peak_kib = [] {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  std::string list;
  for (int i = 0; i < 200; ++i) list += "[0-65535]";  // 2 MiB each
  const auto before = peak_kib();
  EXPECT_THROW(expand_host_list(list), InvalidArgument);
  EXPECT_LT(peak_kib() - before, 64 << 10);
}

// --- beside the real one ---

// A configuration is all that `scontrol show hostnames` needs.
class Scontrol {
 public:
  Scontrol() : folder_(std::filesystem::temp_directory_path() / ("ddp_host_list_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ / "slurm.conf") << "ClusterName=test\nSlurmctldHost=localhost\nAuthType=auth/none\n"
                                             "CredType=cred/none\nNodeName=n1\nPartitionName=p Nodes=n1\n";
  }
  ~Scontrol() { std::filesystem::remove_all(folder_); }

  std::vector<std::string> hosts(const std::string& list) const {
    return lines(command() + "'" + list + "' 2>/dev/null");
  }
  bool is_here() const { return hosts("a[1-2]") == std::vector<std::string>{"a1", "a2"}; }

 private:
  std::string command() const {
    return "SLURM_CONF=" + (folder_ / "slurm.conf").string() + " timeout 10 scontrol show hostnames ";
  }
  static std::vector<std::string> lines(const std::string& command) {
    std::string text;
    FILE* const output = ::popen(command.c_str(), "r");
    for (int byte = std::fgetc(output); byte != EOF; byte = std::fgetc(output)) text += static_cast<char>(byte);
    ::pclose(output);
    std::vector<std::string> out;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) out.push_back(line);
    return out;
  }

  std::filesystem::path folder_;
};

class RandomLists {
 public:
  explicit RandomLists(std::uint32_t seed) : random_(seed) {}

  std::string list() {
    std::string out = item();
    for (auto more = below(4); more > 0; --more) out += "," + item();
    return out;
  }

 private:
  std::uint32_t below(std::uint32_t end) { return random_() % end; }
  std::string word() {
    constexpr const char* kWords[] = {"n", "rack", "a-b", "x0", "gpu-", "", "c9", "z."};
    return kWords[below(8)];
  }
  std::string number(std::uint32_t value) {
    const auto digits = std::to_string(value);
    return below(3) == 0 ? std::string(below(3), '0') + digits : digits;
  }
  std::string range() {
    const auto first = below(120);
    return below(2) == 0 ? number(first) : number(first) + "-" + number(first + below(12));
  }
  std::string brackets() {
    std::string out = "[" + range();
    for (auto more = below(3); more > 0; --more) out += "," + range();
    return out + "]";
  }
  std::string item() {
    const auto count = below(4);
    if (count == 0) return "host" + word() + "1";
    std::string out;
    for (std::uint32_t i = 0; i < count; ++i) out += word() + brackets();
    return out;
  }

  std::mt19937 random_;
};

TEST(SlurmHostList, OfRandomListsTheHostsAreThoseOfTheRealScontrol) {
  const Scontrol scontrol;
  if (!scontrol.is_here()) GTEST_SKIP() << "there is no scontrol (Debian's package slurm-client)";
  for (std::uint32_t seed = 1; seed <= 300; ++seed) {
    const auto list = RandomLists(seed).list();
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + list);
    EXPECT_EQ(expand_host_list(list), scontrol.hosts(list));
  }
}

}  // namespace
}  // namespace ddp::slurm
