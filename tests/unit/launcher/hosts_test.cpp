#include "launcher/remote/hosts.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/command_line/usage_error.hpp"

namespace ddp::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

RemoteHost host(const std::string& name, std::optional<int> workers = {}, const std::string& user = "") {
  return {user, name, workers};
}

template <class Read>
std::string error_of(Read read) {
  try {
    read();
  } catch (const UsageError& error) {
    return std::string(error.what()) + " | " + error.where();
  }
  return "accepted";
}

TEST(Hosts, ListHasNamesNumbersUsersAddressesAndRanges) {
  EXPECT_THAT(hosts_of_list("a,b:8,user@[fe80::1%eth0]:4,n[08-10]:2,[::1]", "--hosts"),
              ElementsAre(host("a"), host("b", 8), host("fe80::1%eth0", 4, "user"), host("n08", 2), host("n09", 2),
                          host("n10", 2), host("::1")));
}

TEST(Hosts, HostNamedTwiceHasTheSumOfItsWorkers) {
  EXPECT_THAT(hosts_of_list("a:2,b:1,a:3", "--hosts"), ElementsAre(host("a", 5), host("b", 1)));
}

TEST(Hosts, ListThatIsWrongIsRefusedWithTheReason) {
  const struct {
    const char *list, *says;
  } cases[] = {
      {"", "the name of a host is empty"},
      {"a,,b", "the name of a host is empty"},
      {"a:0", "a number of workers from 1 to 4096 is wanted, not ':0'"},
      {"a:x", "is wanted, not ':x'"},
      {"a:", "is wanted, not ':'"},
      {"fe80::1", "an IPv6 address stands in brackets: [fe80::1]"},
      {"[fe80::1", "has no ]"},
      {"[fe80::1]x", "is wanted, not 'x'"},
      {"u@v@a", "has two @"},
      {"@a", "'' is no name of a user"},
      {"-oProxyCommand=x", "is no name of a host"},
      {"-l@a", "'-l' is no name of a user"},
      {"a b", "'a b' is no name of a host"},
      {"a;b", "'a;b' is no name of a host"},
      {"n[3-1]", "n[3-1]"},
      {"a,a", "host a is named twice"},
      {"a:4000,a:4000", "host a has more than 4096 workers"},
      {"n[1-257]", "more than 256 hosts"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.list);
    const auto error = error_of([&] { hosts_of_list(c.list, "--hosts=" + std::string(c.list)); });
    EXPECT_THAT(error, HasSubstr(c.says));
    EXPECT_THAT(error, HasSubstr("| --hosts="));
  }
}

TEST(Hosts, FileHasSlotsCommentsAndRanges) {
  std::vector<std::string> notices;
  const auto hosts = hosts_of_file(
      "# all of them\n"
      "a slots=2  # the first\n"
      "\n"
      "user@b\tslots = 4 max_slots=8\r\n"
      "n[1-2] slots=1\n"
      "[fe80::1]\n"
      "a slots=1",
      "hosts", notices);
  EXPECT_THAT(hosts, ElementsAre(host("a", 3), host("b", 4, "user"), host("n1", 1), host("n2", 1), host("fe80::1")));
  EXPECT_THAT(notices, ElementsAre("without effect: max_slots in hosts"));
}

TEST(Hosts, FileThatIsWrongIsRefusedWithItsLine) {
  const struct {
    const char *text, *says;
  } cases[] = {
      {"a\nb slots=x", "slots takes a number from 1 to 4096, not 'x' | hosts, line 2"},
      {"a slots", "slots takes a number from 1 to 4096, not '' | hosts, line 1"},
      {"a cores=2", "'cores=2' is no setting of a host | hosts, line 1"},
      {"\n\na:2", "here it is `slots=N` | hosts, line 3"},
      {"a@b@c", "'a@b@c' has two @ | hosts, line 1"},
      {"# nothing\n", "the host file names no host | hosts"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    std::vector<std::string> notices;
    EXPECT_THAT(error_of([&] { hosts_of_file(c.text, "hosts", notices); }), HasSubstr(c.says));
  }
}

}  // namespace
}  // namespace ddp::launcher
