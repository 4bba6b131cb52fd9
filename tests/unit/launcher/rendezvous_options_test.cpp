// Where the nodes meet, as the command line says it, and which settings have no say in it.
#include "launcher/command_line/rendezvous_options.hpp"

#include "tests/unit/launcher/a_machine.hpp"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Mode = RendezvousConfig::Mode;
using Words = std::vector<std::string>;

class RendezvousOptions : public AMachine {
 protected:
  RendezvousConfig meet(Words options) {
    options.insert(options.begin(), "--nproc-per-node=1");
    const auto config = parse_options(std::move(options));
    notices = config.notices;
    return config.rendezvous;
  }
  RendezvousConfig meet_by_c10d(Words options) {
    options.insert(options.end(), {"--rdzv-backend=c10d", "--rdzv-endpoint=node0", "--rdzv-id=x"});
    return meet(std::move(options));
  }

  std::vector<std::string> notices;
};

TEST_F(RendezvousOptions, OneNodeWithoutAnAddressIsLocal) {
  for (const auto& options : std::vector<Words>{{},
                                                {"--standalone"},
                                                {"--nnodes=1"},
                                                {"--nnodes=1:1", "--rdzv-backend=static"},
                                                {"--master-addr=127.0.0.1"},
                                                {"--master-addr=localhost", "--master-port=0"},
                                                {"--rdzv-backend=c10d"},
                                                {"--rdzv-backend=c10d", "--rdzv-endpoint="},
                                                {"--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"},
                                                {"--rdzv-backend=c10d", "--rdzv-endpoint=[::1]:0"},
                                                {"--standalone", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"},
                                                {"--standalone", "--node-rank=0"},
                                                {"--node-rank=0"}}) {
    SCOPED_TRACE(::testing::PrintToString(options));
    const auto meeting = meet(options);
    EXPECT_EQ(meeting.mode, Mode::local);
    EXPECT_EQ(meeting.nodes_max, 1);
    EXPECT_EQ(meeting.host, "");
    EXPECT_EQ(meeting.run_id, "");
    EXPECT_EQ(meeting.node_rank, std::nullopt);
    EXPECT_THAT(notices, IsEmpty());
  }
  EXPECT_EQ(meet({"--standalone", "--rdzv-id=mine"}).run_id, "mine");  // names the log folder
  const auto ports = meet({"--port-range=2000-2100"});
  EXPECT_EQ(ports.port_first, 2000);
  EXPECT_EQ(ports.port_last, 2100);
}

TEST_F(RendezvousOptions, StandaloneSaysWhatItOverrides) {
  const auto meeting =
      meet({"--standalone", "--rdzv-backend=static", "--rdzv-endpoint=node0:29400", "--master-addr=node0",
            "--master-port=29501", "--node-rank=2", "--rdzv-conf=timeout=3", "--local-addr=node1"});
  EXPECT_EQ(meeting.mode, Mode::local);
  EXPECT_EQ(meeting.local_address, "");
  EXPECT_EQ(meeting.join_timeout, RendezvousConfig().join_timeout);
  for (const auto* option : {"--rdzv-backend", "--rdzv-endpoint", "--master-addr", "--master-port", "--node-rank",
                             "--rdzv-conf", "--local-addr"})
    EXPECT_THAT(notices, Contains(HasSubstr(option))) << option;
  EXPECT_EQ(notices.size(), 7U);
}

TEST_F(RendezvousOptions, StaticNodesKnowTheirRankAndTheAddress) {
  auto meeting = meet({"--nnodes=2", "--node-rank=1", "--master-addr=node0", "--master-port=1234"});
  EXPECT_EQ(meeting.mode, Mode::fixed);
  EXPECT_EQ(meeting.nodes_min, 2);
  EXPECT_EQ(meeting.nodes_max, 2);
  EXPECT_EQ(meeting.host, "node0");
  EXPECT_EQ(meeting.port, 1234);
  EXPECT_EQ(meeting.node_rank, 1);
  EXPECT_EQ(meeting.run_id, "none");
  EXPECT_EQ(meeting.join_timeout, 900s);
  EXPECT_THAT(notices, IsEmpty());

  meeting = meet({"--nnodes=2", "--node-rank=1"});  // two on one machine
  EXPECT_EQ(meeting.host, "127.0.0.1");
  EXPECT_EQ(meeting.port, 29500);
  EXPECT_THAT(notices, ElementsAre(HasSubstr("127.0.0.1:29500, which is this machine only")));

  meeting = meet({"--nnodes=2", "--master-addr=node0"});
  EXPECT_EQ(meeting.node_rank, 0);
  EXPECT_THAT(notices, ElementsAre(HasSubstr("this is node 0 of 2 (--node-rank)")));

  meeting = meet({"--nnodes=3", "--rdzv-endpoint=[fd00::1]", "--rdzv-conf=rank=2,timeout=20", "--rdzv-id=x"});
  EXPECT_EQ(meeting.host, "fd00::1");
  EXPECT_EQ(meeting.port, 29500);
  EXPECT_EQ(meeting.node_rank, 2);
  EXPECT_EQ(meeting.run_id, "x");
  EXPECT_EQ(meeting.join_timeout, 20s);
  EXPECT_EQ(meet({"--nnodes=3", "--node-rank=1", "--rdzv-conf=rank=2"}).node_rank, 1);

  EXPECT_EQ(meet({"--master-port=29501"}).mode, Mode::fixed);  // one node, but the user wants this port
  EXPECT_EQ(meet({"--master-addr=node5"}).host, "node5");
  EXPECT_EQ(meet({"--master-addr=node5", "--master-port=0"}).port, 0);
}

TEST_F(RendezvousOptions, ByC10dNodesGetTheirRanks) {
  auto meeting =
      meet({"--nnodes=1:4", "--rdzv-backend=c10d", "--rdzv-endpoint=node0", "--rdzv-id=bert", "--local-addr=10.0.0.7"});
  EXPECT_EQ(meeting.mode, Mode::dynamic);
  EXPECT_EQ(meeting.nodes_min, 1);
  EXPECT_EQ(meeting.nodes_max, 4);
  EXPECT_EQ(meeting.host, "node0");
  EXPECT_EQ(meeting.port, 29400);
  EXPECT_EQ(meeting.run_id, "bert");
  EXPECT_EQ(meeting.node_rank, std::nullopt);
  EXPECT_EQ(meeting.local_address, "10.0.0.7");
  EXPECT_EQ(meeting.join_timeout, 600s);
  EXPECT_THAT(notices, IsEmpty());

  EXPECT_EQ(meet_by_c10d({"--nnodes=4", "--node-rank=2"}).node_rank, 2);
  EXPECT_EQ(meet_by_c10d({"--nnodes=4", "--node-rank=5"}).node_rank, 5);  // a spare's wish
  EXPECT_EQ(meet({"--rdzv-backend=c10d", "--rdzv-endpoint=localhost:29400"}).mode, Mode::dynamic);
  EXPECT_EQ(meet({"--rdzv-backend=c10d", "--rdzv-endpoint=node0:0"}).port, 0);

  EXPECT_EQ(meet({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=node0:29400"}).run_id, "none");
  EXPECT_THAT(notices, ElementsAre(HasSubstr("no id: it would meet any other without one at node0:29400")));
  meet({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=node0", "--rdzv-id=none"});
  EXPECT_THAT(notices, IsEmpty());  // that is what the user wants
}

TEST_F(RendezvousOptions, ConfSetsItsLimits) {
  auto meeting = meet_by_c10d({"--nnodes=2", "--rdzv-conf=join_timeout=60,last_call_timeout=1.5,is_host=True"});
  EXPECT_EQ(meeting.join_timeout, 60s);
  EXPECT_EQ(meeting.last_call_timeout, 1500ms);
  EXPECT_EQ(meeting.is_host, true);
  EXPECT_EQ(meeting.heartbeat_timeout, 3s);
  EXPECT_THAT(notices, IsEmpty());
  for (const auto& [conf, want] :
       std::map<std::string, std::chrono::milliseconds>{{"heartbeat_timeout=10", 10s},
                                                        {"keep_alive_interval=2", 6s},
                                                        {"keep_alive_max_attempt=4", 20s},
                                                        {"keep_alive_interval=1,keep_alive_max_attempt=2", 2s},
                                                        {"keep_alive_interval=1,heartbeat_timeout=7", 7s},
                                                        {" heartbeat_timeout = 9 , is_host = n ", 9s},
                                                        {"'heartbeat_timeout=8,join_timeout=5'", 8s},
                                                        {"\"heartbeat_timeout=8\"", 8s},
                                                        {"", 3s}})
    EXPECT_EQ(meet_by_c10d({"--nnodes=2", "--rdzv-conf", conf}).heartbeat_timeout, want) << conf;
  EXPECT_EQ(meet_by_c10d({"--nnodes=2", "--rdzv-conf=is_host=0"}).is_host, false);
  EXPECT_EQ(meet_by_c10d({"--nnodes=2", "--rdzv-conf=rank=1"}).node_rank, 1);
}

TEST_F(RendezvousOptions, StoreMemoryHoldsHoweverNodesMeet) {
  EXPECT_EQ(meet({}).store_memory_mib, 1024);
  EXPECT_EQ(meet({"--rdzv-conf=store_memory=64"}).store_memory_mib, 64);
  EXPECT_THAT(notices, IsEmpty());
  EXPECT_EQ(meet({"--standalone", "--rdzv-conf=store_memory=2048"}).store_memory_mib, 2048);
  EXPECT_EQ(meet({"--nnodes=2", "--node-rank=0", "--master-addr=a", "--rdzv-conf=store_memory=128"}).store_memory_mib,
            128);
  EXPECT_EQ(meet_by_c10d({"--nnodes=2", "--rdzv-conf=store_memory=1048576"}).store_memory_mib, 1'048'576);
  for (const auto* wrong : {"63", "1048577", "1GiB", "-1"}) {
    try {
      meet({"--rdzv-conf", std::string("store_memory=") + wrong});
      ADD_FAILURE() << wrong << " is taken";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("store_memory takes MiB from 64 to 1048576"));
    }
  }
}

TEST_F(RendezvousOptions, SettingsWithoutEffectAreNamed) {
  const struct {
    Words options;
    const char* says;
  } cases[] = {
      {{"--nnodes=2", "--node-rank=0", "--rdzv-endpoint=node0", "--master-port=1"},
       "--master-port=1: --rdzv-endpoint goes"},
      {{"--nnodes=2", "--node-rank=0", "--rdzv-endpoint=node0", "--master-addr=a"},
       "--master-addr=a: --rdzv-endpoint goes"},
      {{"--nnodes=2", "--node-rank=0", "--master-addr=a", "--rdzv-conf=is_host=1"}, "is_host: node 0"},
      {{"--nnodes=2", "--node-rank=0", "--master-addr=a", "--rdzv-conf=last_call_timeout=1"},
       "last_call_timeout: the number"},
      {{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=a", "--rdzv-id=x", "--master-port=1"},
       "--master-port=1: c10d"},
      {{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=a", "--rdzv-id=x", "--master-addr=b"},
       "--master-addr=b: c10d"},
      {{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=a", "--rdzv-id=x", "--rdzv-conf=timeout=1"},
       "timeout: c10d"},
      {{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=a", "--rdzv-id=x", "--rdzv-conf=read_timeout=1"},
       "read_timeout"},
      {{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=a", "--rdzv-id=x", "--rdzv-conf=close_timeout=1"},
       "close_timeout"},
      {{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=a", "--rdzv-id=x", "--rdzv-conf=store_type=tcp"},
       "store_type"},
      {{"--rdzv-backend=c10d", "--node-rank=3"}, "--node-rank=3: there is one node"},
      {{"--rdzv-conf=join_timeout=3,read_timeout=4"}, "--rdzv-conf=join_timeout=3,read_timeout=4: one node"},
      {{"--local-addr=a"}, "--local-addr=a: there is one node"},
      {{"--monitor-interval=5"}, "--monitor-interval=5: nothing polls"},
      {{"--start-method=spawn"}, "--start-method=spawn: every worker"},
      {{"--event-log-handler=console"}, "--event-log-handler=console: there are no"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(::testing::PrintToString(c.options));
    meet(c.options);
    EXPECT_THAT(notices, ElementsAre(::testing::AllOf(HasSubstr("without effect: "), HasSubstr(c.says))));
  }
  environment["PET_MASTER_PORT"] = "29501";
  meet_by_c10d({"--nnodes=2"});
  EXPECT_THAT(notices, ElementsAre(HasSubstr("environment variable PET_MASTER_PORT=29501: c10d")));
  for (const auto* option : {"--event-log-handler=null", "--logs-specs=default"}) {
    environment.erase("PET_MASTER_PORT");
    meet({option});
    EXPECT_THAT(notices, IsEmpty()) << option;
  }
}

}  // namespace
}  // namespace ddp::launcher
