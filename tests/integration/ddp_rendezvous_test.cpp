#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "rendezvous/store/client.hpp"
#include "tests/integration/job.hpp"

namespace ddp::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class StoreProgram : public Job {
 public:
  explicit StoreProgram(std::vector<std::string> options = {}) : Job(with_store(std::move(options)), program()) {}

  static Options program() {
    Options options;
    options.program = "ddp-rendezvous";
    return options;
  }
  store::Client client() {
    const auto port = static_cast<std::uint16_t>(number_after("listens on port "));
    return store::Client::connect({.host = "127.0.0.1", .port = port, .deadline = patience()});
  }
  static store::TimePoint patience() { return std::chrono::steady_clock::now() + kPatience; }

 private:
  static std::vector<std::string> with_store(std::vector<std::string> options) {
    options.insert(options.begin(), {"store", "--port", "0"});
    return options;
  }
};

TEST(DdpRendezvous, StoreServesClientsUntilASignalEndsIt) {
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) {
    SCOPED_TRACE(number);
    StoreProgram program;
    auto first = program.client(), second = program.client();
    first.set("key", "value", StoreProgram::patience());
    EXPECT_EQ(second.get("key", StoreProgram::patience()), "value");
    program.kill(number);
    EXPECT_EQ(program.wait(), 1000 + number);  // as the signal itself would end it
    EXPECT_THAT(program.out(), MatchesRegex("ddp-rendezvous: the store listens on port [0-9]+ of all addresses\n"));
    EXPECT_EQ(program.err(), "");
  }
}

TEST(DdpRendezvous, ListensWhereItIsTold) {
  StoreProgram program({"--host", "127.0.0.1,127.0.0.2", "--store-allow=10.0.0.0/8,any"});
  program.client().set("key", "value", StoreProgram::patience());
  program.kill(SIGTERM);
  EXPECT_EQ(program.wait(), 1000 + SIGTERM);
  EXPECT_THAT(program.out(), HasSubstr(" of 127.0.0.1, 127.0.0.2\n"));
}

TEST(DdpRendezvous, ReaderOfItsOutputMayLeave) {
  StoreProgram program;
  auto client = program.client();
  program.close_stdout();
  client.set("key", "value", StoreProgram::patience());
  EXPECT_EQ(client.get("key", StoreProgram::patience()), "value");
}

TEST(DdpRendezvous, TakenPortIsAnErrorInThreeParts) {
  StoreProgram program({"--host", "127.0.0.1"});
  const auto port = std::to_string(program.number_after("listens on port "));
  Job second({"store", "--host=127.0.0.1", "--port", port}, StoreProgram::program());
  EXPECT_EQ(second.wait(), 1);
  EXPECT_THAT(second.err(), AllOf(HasSubstr("error: can't listen on 127.0.0.1:" + port + ": Address already in use"),
                                  HasSubstr("\nwhere: starting"), HasSubstr("\ntry:   ")));
}

TEST(DdpRendezvous, WrongUseIsNamedAndEndsWithTwo) {
  const struct {
    std::vector<std::string> arguments;
    const char* want;
  } cases[] = {{{}, "error: nothing to do: `store` is missing"},
               {{"stor"}, "error: "},
               {{"store", "--bogus"}, "--bogus"},
               {{"store", "--port", "65536"}, "65536"},
               {{"store", "--port", "x"}, "--port"},
               {{"store", "--port"}, "--port"},
               {{"store", "--host", "localhost"}, "--host: \"localhost\" is no IPv4 or IPv6 address"},
               {{"store", "--store-allow", "10.0.0.0/33"}, "--store-allow: \"10.0.0.0/33\" is no block"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.want);
    Job job(c.arguments, StoreProgram::program());
    EXPECT_EQ(job.wait(), 2);
    EXPECT_EQ(job.out(), "");
    EXPECT_THAT(job.err(), AllOf(HasSubstr(c.want), HasSubstr("\nwhere: the command line of ddp-rendezvous\ntry:   ")));
  }
}

TEST(DdpRendezvous, HelpAndVersionArePrinted) {
  for (const auto& [arguments, want] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{{{"--help"}, "Usage: ddp-rendezvous [OPTIONS]"},
                                                                     {{"store", "--help"}, "--store-allow"},
                                                                     {{"--version"}, "ddp-rendezvous 0."}}) {
    SCOPED_TRACE(want);
    Job job(arguments, StoreProgram::program());
    EXPECT_EQ(job.wait(), 0);
    EXPECT_THAT(job.out(), HasSubstr(want));
  }
}

}  // namespace
}  // namespace ddp::test
