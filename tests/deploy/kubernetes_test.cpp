// The manifests of deploy/kubernetes played through on several hosts: each pod is a host, with the arguments and the
// environment that the kubelet and the Job's controller would give it, and the name that the headless Service would.
// The programs have the users, the rights, the root and the secret that the manifest says (pod.sh).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "tests/deploy/manifest.hpp"
#include "tests/integration/job.hpp"
#include "tests/multihost/multihost.hpp"
#include "tests/text.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::test {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr int kStoppedAtStep = 75, kDidNotMeet = 77;

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (auto at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

using Pods = std::vector<std::unique_ptr<HostProcess>>;

class Kubernetes : public Multihost {
 protected:
  Kubernetes() { std::ofstream(scratch_.path() / "token") << "7d3f0a5c_of_the_pods\n"; }

  // "train-0.train" and so on, which are the names of the Job's pods.
  Hosts* make_pods() {
    const auto job = train_.value("name");
    const auto service = train_.value("subdomain");
    return make_hosts(
        {.count = pods(), .alias = [=](int pod) { return job + "-" + std::to_string(pod) + "." + service; }});
  }
  int pods() const { return std::atoi(train_.value("completions").c_str()); }

  // A program as the container of a manifest.
  HostProcess run(Hosts& hosts, int host, const Manifest& manifest, std::vector<std::string> argv,
                  std::vector<std::string> environment) const {
    for (const auto& [name, key] : {std::pair{"RUN_AS_USER", "runAsUser"},
                                    {"RUN_AS_GROUP", "runAsGroup"},
                                    {"FS_GROUP", "fsGroup"},
                                    {"SECRET_MODE", "defaultMode"}})
      environment.push_back(name + ("=" + manifest.value(key)));
    environment.push_back("ASAN_OPTIONS=detect_leaks=0");
    const auto folder = fs::path(built("ddprun")).parent_path().string();
    const auto pod = std::string(DDP_TEST_SOURCE_DIR) + "/tests/deploy/pod.sh";
    argv.insert(argv.begin(), {"unshare", "--mount", pod, folder, scratch_.path().string()});
    return hosts.run(host, argv, environment);
  }

  std::unique_ptr<HostProcess> start(Hosts& hosts, int pod, const std::string& epochs) const {
    auto variables = train_.environment();
    variables.emplace_back("JOB_COMPLETION_INDEX", std::to_string(pod));
    variables.emplace_back("HOSTNAME", train_.value("name") + "-" + std::to_string(pod));
    std::vector<std::string> environment;
    for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);

    std::vector<std::string> argv{built("ddprun")};  // the image's entry point
    for (auto argument : train_.list("args")) {
      for (const auto& [name, value] : variables) replace_all(argument, "$(" + name + ")", value);
      if (argument.rfind("--epochs=", 0) == 0) argument = "--epochs=" + epochs;
      if (!join_timeout_.empty() && argument.rfind("--rdzv-conf=", 0) == 0)
        argument = "--rdzv-conf=join_timeout=" + join_timeout_;
      argv.push_back(argument);
    }
    return std::make_unique<HostProcess>(run(hosts, pod, train_, argv, environment));
  }
  Pods start_all(Hosts& hosts, const std::string& epochs) const {
    Pods all;
    for (int pod = 0; pod < pods(); ++pod) all.push_back(start(hosts, pod, epochs));
    return all;
  }

  void replace(Hosts& hosts, Pods& all, int pod) const {
    auto& lost = all[static_cast<std::size_t>(pod)];
    lost->kill(SIGKILL);
    lost->wait();
    lost = start(hosts, pod, "1000000");
  }

  // Waits until a checkpoint is there that is newer than all so far: then every worker asks whether to stop.
  bool trains() const {
    const long before = newest_step();
    return becomes_true([&] { return newest_step() > before; });
  }
  long newest_step() const {
    long newest = 0;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(checkpoints_, ignored)) {
      const std::string name = entry.path().stem();
      if (const auto at = name.rfind("_step_"); at != std::string::npos && entry.path().extension() == ".safetensors")
        newest = std::max(newest, std::strtol(name.c_str() + at + 6, nullptr, 10));
    }
    return newest;
  }

  // What the Job has after a SIGTERM to some pods: all have stopped after one step, and what follows goes on from
  // there.
  void expect_stop_and_go_on(Hosts& hosts, Pods& all, const std::vector<int>& told) {
    ASSERT_TRUE(trains()) << all[0]->err();
    for (const int pod : told) all[static_cast<std::size_t>(pod)]->kill(SIGTERM);
    for (auto& pod : all) EXPECT_EQ(pod->wait(), kStoppedAtStep) << pod->err();
    const auto stopped = all[0]->out().find("stopped after step ");
    ASSERT_NE(stopped, std::string::npos) << all[0]->out();
    const auto step = std::strtol(all[0]->out().c_str() + stopped + 19, nullptr, 10);

    auto next = start_all(hosts, "1");  // has been done long since: what is resumed ends at once
    for (auto& pod : next) EXPECT_EQ(pod->wait(), 0) << pod->err();
    EXPECT_THAT(next[0]->out(), HasSubstr("resumed after step " + std::to_string(step) + " from"));
  }

  Manifest train_{"train.yaml"};
  Manifest rendezvous_{"rendezvous.yaml"};
  std::string join_timeout_;  // empty: the manifest's

 private:
  ScratchDirectory scratch_;
  fs::path checkpoints_ = scratch_.path() / "checkpoints";
};

// The ground that the other tests here stand on.
TEST_F(Kubernetes, PodsRunWithTheRightsOfTheManifest) {
  Hosts* const hosts = make_hosts({});
  if (hosts == nullptr) return;
  const std::string look =
      "id; grep -E '^(Cap|NoNewPrivs)' /proc/self/status; cat /run/secrets/ddprun/token; "
      "touch /run/secrets/ddprun/token; touch /new; touch /tmp/new && echo wrote to /tmp";
  for (const auto* manifest : {&train_, &rendezvous_}) {
    auto pod = run(*hosts, 0, *manifest, {"sh", "-c", look}, {});
    pod.wait();
    EXPECT_THAT(pod.out(), HasSubstr("uid=65532 gid=65532 groups=65532\n"));
    for (const char* set : {"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"})
      EXPECT_THAT(pod.out(), HasSubstr(std::string(set) + ":\t0000000000000000\n"));
    EXPECT_THAT(pod.out(), HasSubstr("NoNewPrivs:\t1\n"));
    EXPECT_THAT(pod.out(), HasSubstr("\n7d3f0a5c_of_the_pods\n"));
    EXPECT_THAT(pod.out(), HasSubstr("\nwrote to /tmp\n"));
    EXPECT_THAT(pod.err(), HasSubstr("'/new': Read-only file system"));
    EXPECT_THAT(pod.err(), HasSubstr("'/run/secrets/ddprun/token': Permission denied"));
  }
}

TEST_F(Kubernetes, LogsOfAPodAreInItsTemporaryFolder) {
  Hosts* const hosts = make_hosts({});
  if (hosts == nullptr) return;
  auto pod = run(*hosts, 0, train_, {built("ddprun"), "--standalone", "--tee=3", "sh", "-c", "echo here"}, {});
  EXPECT_EQ(pod.wait(), 0);
  EXPECT_THAT(pod.err(), HasSubstr(" /tmp/ddprun_" + train_.value("runAsUser") + "/"));
}

TEST_F(Kubernetes, PodsOfAnIndexedJobMeetByTheirNumbersAndTrain) {
  Hosts* const hosts = make_pods();
  if (hosts == nullptr) return;
  auto all = start_all(*hosts, "3");
  for (auto& pod : all) EXPECT_EQ(pod->wait(), 0) << pod->err();
  EXPECT_THAT(all[0]->out(), HasSubstr(std::to_string(pods() * 2) + " workers"));
  EXPECT_THAT(all[0]->out(), HasSubstr("test accuracy"));
}

TEST_F(Kubernetes, APodThatIsMovedStopsAllAtOneStepWithACheckpoint) {
  Hosts* const hosts = make_pods();
  if (hosts == nullptr) return;
  auto all = start_all(*hosts, "1000000");
  expect_stop_and_go_on(*hosts, all, {pods() - 1});
}

TEST_F(Kubernetes, AJobThatIsDeletedStopsAtOneStepWithACheckpoint) {
  Hosts* const hosts = make_pods();
  if (hosts == nullptr) return;
  auto all = start_all(*hosts, "1000000");
  expect_stop_and_go_on(*hosts, all, {0, 1, 2});
}

TEST_F(Kubernetes, APodThatIsLostIsReplaced) {
  Hosts* const hosts = make_pods();
  if (hosts == nullptr) return;
  auto all = start_all(*hosts, "1000000");
  ASSERT_TRUE(trains()) << all[0]->err();
  replace(*hosts, all, 1);
  EXPECT_TRUE(all[0]->prints("resumed after step ")) << all[0]->err();
  expect_stop_and_go_on(*hosts, all, {1});
}

// Either the others find the new pod before they have agreed on another to serve the job, or all end and meet anew.
TEST_F(Kubernetes, ThePodThatServesTheMeetingIsReplaced) {
  Hosts* const hosts = make_pods();
  if (hosts == nullptr) return;
  join_timeout_ = "8";
  auto all = start_all(*hosts, "1000000");
  ASSERT_TRUE(trains()) << all[0]->err();
  replace(*hosts, all, 0);
  if (!all[0]->prints("resumed after step ")) {
    for (auto& pod : all) EXPECT_EQ(pod->wait(), kDidNotMeet) << pod->err();
    all = start_all(*hosts, "1000000");
    EXPECT_TRUE(all[0]->prints("resumed after step ")) << all[0]->err();
  }
  expect_stop_and_go_on(*hosts, all, {1});
}

TEST_F(Kubernetes, TheDaemonAnswersItsProbesFromElsewhere) {
  Hosts* const hosts = make_hosts({});
  if (hosts == nullptr) return;
  std::vector<std::string> argv{built("ddp-rendezvous")};
  for (const auto& argument : rendezvous_.list("args")) argv.push_back(argument);
  auto daemon = run(*hosts, 0, rendezvous_, argv, {});
  ASSERT_TRUE(daemon.prints("listens on")) << daemon.err();
  const auto port = rendezvous_.value("containerPort");
  const auto probe = "exec 3<>/dev/tcp/" + Hosts::ipv4(0) + "/" + port + "; printf 'GET " + rendezvous_.value("path") +
                     " HTTP/1.1\\r\\nHost: " + Hosts::ipv4(0) + ":" + port +
                     "\\r\\nConnection: close\\r\\n\\r\\n' >&3; cat <&3";
  auto kubelet = hosts->run(1, {"bash", "-c", probe});
  EXPECT_EQ(kubelet.wait(), 0) << kubelet.err();
  EXPECT_THAT(kubelet.out(), HasSubstr(" 200 "));
  daemon.kill(SIGTERM);
  daemon.wait();
}

}  // namespace
}  // namespace ddp::test
