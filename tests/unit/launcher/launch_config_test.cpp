#include "launcher/command_line/launch_config.hpp"

#include <csignal>

#include "launcher/command_line/machine.hpp"
#include "tests/unit/launcher/a_machine.hpp"

namespace ddp::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using LaunchConfigs = AMachine;

TEST_F(LaunchConfigs, WorkersFollowTheMachine) {
  EXPECT_EQ(parse({"true"}).workers, 1);
  EXPECT_THAT(parse({"true"}).notices, ElementsAre(HasSubstr("1 worker")));
  EXPECT_EQ(parse({"--nproc-per-node=cpu", "true"}).workers, 2);
  EXPECT_EQ(parse({"--nproc-per-node=auto", "true"}).workers, 2);
  EXPECT_THAT(parse({"--nproc-per-node=cpu", "true"}).notices, IsEmpty());
  gpus = 8;
  EXPECT_EQ(parse({"true"}).workers, 8);
  EXPECT_THAT(parse({"true"}).notices, ElementsAre(HasSubstr("one per GPU")));
  EXPECT_EQ(parse({"--nproc-per-node=gpu", "true"}).workers, 8);
  EXPECT_EQ(parse({"--nproc-per-node=auto", "true"}).workers, 8);
  EXPECT_EQ(parse({"--nproc-per-node=cpu", "true"}).workers, 2);
  xpus = 3;
  EXPECT_EQ(parse({"--nproc-per-node=xpu", "true"}).workers, 3);
}

TEST_F(LaunchConfigs, EnvironmentGivesDefaultsAndOursWins) {
  environment["PET_NPROC_PER_NODE"] = "3";
  environment["PET_MAX_RESTARTS"] = "7";
  EXPECT_EQ(parse({"true"}).workers, 3);
  EXPECT_EQ(parse({"true"}).restarts_max, 7);
  environment["DDPRUN_NPROC_PER_NODE"] = "5";
  EXPECT_EQ(parse({"true"}).workers, 5);
  EXPECT_EQ(parse({"--nproc-per-node=6", "true"}).workers, 6);
  environment["DDPRUN_NO_PREFIX"] = "1";
  EXPECT_FALSE(parse({"true"}).output.prefix_lines);
  environment["DDPRUN_NO_PREFIX"] = "0";
  EXPECT_TRUE(parse({"true"}).output.prefix_lines);
}

TEST_F(LaunchConfigs, GraceComesFromTheOptionThenTheVariable) {
  EXPECT_EQ(parse({"true"}).grace, std::chrono::seconds(30));
  environment["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = "120";
  EXPECT_EQ(parse({"true"}).grace, std::chrono::seconds(120));
  EXPECT_EQ(parse({"--shutdown-timeout=5", "true"}).grace, std::chrono::seconds(5));
}

TEST_F(LaunchConfigs, TimeLimitIsNoneUnlessAskedFor) {
  EXPECT_EQ(parse({"true"}).time_limit, std::chrono::seconds(0));
  environment["DDPRUN_TIMEOUT"] = "60";
  EXPECT_EQ(parse({"true"}).time_limit, std::chrono::seconds(60));
  EXPECT_EQ(parse({"--timeout=31622400", "true"}).time_limit, std::chrono::hours(366 * 24));
}

TEST_F(LaunchConfigs, ProgramIsLookedForInTheWorkingDirectoryOfWorkers) {
  files["/tmp/./only_there"] = files["/tmp/sub/run.py"] = FileKind::executable;
  EXPECT_EQ(parse({"--wdir=/tmp", "./only_there"}).command.path, "./only_there");
  EXPECT_EQ(parse({"--wdir=/tmp", "only_there"}).command.path, "./only_there");
  EXPECT_EQ(parse({"--wdir=/tmp", "sub/run.py"}).command.arguments.back(), "sub/run.py");
  EXPECT_EQ(parse({"--wdir=/tmp", "true"}).command.path, "/bin/true");
  EXPECT_EQ(parse({"--wdir=/tmp", "true"}).worker_directory, "/tmp");
  EXPECT_THROW(parse({"--wdir=/tmp", "./trainer"}), ProgramError) << "it is in ddprun's own directory";
}

TEST_F(LaunchConfigs, TheOrphanLimitIsThatOfSeveralNodes) {
  const std::vector<std::string> meeting{"--nnodes=2", "--node-rank=0", "--master-addr=10.0.0.1",
                                         "--master-port=29400"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), meeting.begin(), meeting.end());
    return parse(more).rendezvous.orphan_limit;
  };
  EXPECT_EQ(with({"--orphan-limit=5", "true"}), std::chrono::seconds(5));
  EXPECT_EQ(with({"true"}), std::chrono::seconds(60));
}

TEST_F(LaunchConfigs, ARestartWindowNeedsRestarts) {
  EXPECT_EQ(parse({"--restart-window=600", "true"}).restart_window, std::chrono::minutes(10));
  EXPECT_THAT(parse({"--nproc-per-node=1", "--restart-window=600", "true"}).notices,
              ElementsAre(HasSubstr("no restarts without --max-restarts")));
  EXPECT_THAT(parse({"--nproc-per-node=1", "--restart-window=600", "--max-restarts=1", "true"}).notices, IsEmpty());
}

TEST_F(LaunchConfigs, PythonScriptsRunByAnInterpreter) {
  EXPECT_THAT(parse({"train.py", "--lr", "1"}).command.arguments,
              ElementsAre("/usr/bin/python3", "-u", "train.py", "--lr", "1"));
  EXPECT_THAT(parse({"-m", "package.train", "x"}).command.arguments,
              ElementsAre("/usr/bin/python3", "-u", "-m", "package.train", "x"));
  environment["VIRTUAL_ENV"] = "/venv";
  EXPECT_EQ(parse({"train.py"}).command.path, "/venv/bin/python");
  environment["PYTHON_EXEC"] = "python3";
  EXPECT_EQ(parse({"train.py"}).command.path, "/usr/bin/python3");
}

TEST_F(LaunchConfigs, ProgramsAreFoundOnPathThenInTheWorkingDirectory) {
  EXPECT_EQ(parse({"true"}).command.path, "/bin/true");
  EXPECT_EQ(parse({"trainer"}).command.path, "./trainer");
  EXPECT_EQ(parse({"trainer", "-u", "x"}).program, "trainer");
  EXPECT_EQ(parse({"-m", "package.train", "x"}).program, "package.train");
  files["./train.py"] = FileKind::executable;
  EXPECT_EQ(parse({"--no-python", "./train.py"}).command.path, "./train.py");
}

TEST_F(LaunchConfigs, RunPathMeansPythonWhateverTheName) {
  for (const auto& words : {std::vector<std::string>{"--run-path"}, {"--run-path", "--no-python"}}) {
    auto line = words;
    line.insert(line.end(), {"notes.txt", "x"});
    EXPECT_THAT(parse(line).command.arguments, ElementsAre("/usr/bin/python3", "-u", "notes.txt", "x"));
  }
}

TEST_F(LaunchConfigs, OutputIsWhatTheLogOptionsSay) {
  const auto output = parse_options({"--log-dir=logs", "-r", "3", "-t0:1,2-12:2,7:0", "--local-ranks-filter=0,2-3",
                                     "--ranks-filter= 8-15 ", "--duplicate-stdout-filters=loss,,x,step,",
                                     "--duplicate-stderr-filters=", "--log_line_prefix_template=[${rank}]",
                                     "--no-prefix", "--merge-equal-lines"})
                          .output;
  EXPECT_EQ(output.log_directory, "logs");
  EXPECT_EQ(output.redirects.all, 3);
  EXPECT_EQ(output.tee.all, 0);
  for (const auto& [rank, streams] : std::map<int, int>{{0, 1}, {1, 0}, {2, 2}, {6, 2}, {7, 0}, {12, 2}, {13, 0}}) {
    EXPECT_EQ(output.tee.has(rank, 1), (streams & 1) != 0) << rank;
    EXPECT_EQ(output.tee.has(rank, 2), (streams & 2) != 0) << rank;
  }
  ASSERT_EQ(output.local_ranks_shown.size(), 2U);
  EXPECT_EQ(output.local_ranks_shown[0].first, 0);
  EXPECT_EQ(output.local_ranks_shown[0].last, 0);
  EXPECT_EQ(output.local_ranks_shown[1].first, 2);
  EXPECT_EQ(output.local_ranks_shown[1].last, 3);
  ASSERT_EQ(output.ranks_shown.size(), 1U);
  EXPECT_EQ(output.ranks_shown[0].last, 15);
  EXPECT_THAT(output.stdout_duplicates, ElementsAre("loss,x", "step"));
  EXPECT_THAT(output.stderr_duplicates, IsEmpty());
  EXPECT_EQ(output.prefix_template, "[${rank}]");
  EXPECT_FALSE(output.prefix_lines);
  EXPECT_TRUE(output.merge_equal_lines);

  const auto plain = parse({"true"}).output;
  EXPECT_TRUE(plain.log_directory.empty() && plain.redirects.is_empty() && plain.tee.is_empty() && plain.prefix_lines);
  EXPECT_FALSE(plain.merge_equal_lines);
}

TEST_F(LaunchConfigs, ThePrefixOfLinesIsTheOptionsThenThatOfItsVariables) {
  EXPECT_EQ(parse({"true"}).output.prefix_template, "");
  environment["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = "a";
  EXPECT_EQ(parse({"true"}).output.prefix_template, "a");
  EXPECT_EQ(parse_options({"--log-line-prefix-template="}).output.prefix_template, "a");
  environment["PET_LOG_LINE_PREFIX_TEMPLATE"] = "b";
  EXPECT_EQ(parse({"true"}).output.prefix_template, "b");
  environment["DDPRUN_LOG_LINE_PREFIX_TEMPLATE"] = "c";
  EXPECT_EQ(parse({"true"}).output.prefix_template, "c");
  EXPECT_EQ(parse_options({"--log-line-prefix-template", "${hostname}: "}).output.prefix_template, "${hostname}: ");
}

TEST_F(LaunchConfigs, SignalsAreThoseThatWereNamed) {
  EXPECT_THAT(parse({"true"}).stop_signals, ElementsAre(SIGTERM, SIGINT, SIGHUP, SIGQUIT));
  EXPECT_THAT(parse({"true"}).forward_signals, IsEmpty());
  const auto config = parse_options({"--signals-to-handle=SIGUSR2, term,TERM", "--forward-signals=usr1,SIGHUP"});
  EXPECT_THAT(config.stop_signals, ElementsAre(SIGUSR2, SIGTERM));
  EXPECT_THAT(config.forward_signals, ElementsAre(SIGUSR1, SIGHUP));
}

TEST_F(LaunchConfigs, ANodeThatIsToldToStopLeavesUnlessTheUserWantsTheJobToStop) {
  EXPECT_TRUE(parse({"true"}).leaves_when_stopped);
  EXPECT_TRUE(parse_options({"--on-node-stop=leave"}).leaves_when_stopped);
  EXPECT_FALSE(parse_options({"--on-node-stop=stop"}).leaves_when_stopped);
}

TEST_F(LaunchConfigs, TheRestIsWhatItsOptionsSay) {
  const auto config =
      parse_options({"--role=trainer", "--virtual-local-rank", "--max-restarts=4", "--numa-binding=core-complex",
                     "--display-binding", "--store-allow=10.0.0.0/8,fd00::/8"});
  EXPECT_EQ(config.role, "trainer");
  EXPECT_TRUE(config.virtual_local_rank);
  EXPECT_EQ(config.restarts_max, 4);
  EXPECT_EQ(config.binding.mode, BindingOptions::Mode::core_complex);
  EXPECT_TRUE(config.binding.display);
  EXPECT_THAT(config.store_allow, ElementsAre("10.0.0.0/8", "fd00::/8"));
  EXPECT_EQ(parse_options({"--numa-binding=node"}).binding.mode, BindingOptions::Mode::node);
  EXPECT_EQ(parse_options({"--numa-binding=socket"}).binding.mode, BindingOptions::Mode::socket);
  EXPECT_EQ(parse_options({"--numa-binding=exclusive"}).binding.mode, BindingOptions::Mode::exclusive);
  const auto plain = parse({"true"});
  EXPECT_EQ(plain.role, "default");
  EXPECT_EQ(plain.binding.mode, BindingOptions::Mode::none);
  EXPECT_FALSE(plain.virtual_local_rank || plain.binding.display);
}

TEST_F(LaunchConfigs, WorkersThatShareOneCoreAreToldOf) {
  one_core = true;
  EXPECT_THAT(parse_options({"--nproc-per-node=4"}).notices,
              ElementsAre(AllOf(HasSubstr("all 4 workers share one core"), HasSubstr("`srun --cpus-per-task=N`"))));
  EXPECT_THAT(parse_options({"--nproc-per-node=1"}).notices, IsEmpty());
  one_core = false;
  EXPECT_THAT(parse_options({"--nproc-per-node=4"}).notices, IsEmpty());
}

TEST_F(LaunchConfigs, AnOptionBehindTheProgramIsPointedOut) {
  EXPECT_THAT(parse({"--nproc-per-node=1", "train.py", "--lr=1", "--nproc_per_node=2"}).notices,
              ElementsAre(HasSubstr("--nproc_per_node=2 goes to train.py")));
  files["./python"] = FileKind::executable;
  EXPECT_THAT(
      parse({"--nproc-per-node=1", "--no-python", "python", "train.py", "--nnodes=2"}).notices,
      ElementsAre(AllOf(HasSubstr("--nnodes=2 goes to train.py"), HasSubstr("write before python: `--nnodes=2`"))));
  EXPECT_THAT(parse({"--nproc-per-node=1", "train.py", "--nproc", "--log-dir=x", "nnodes"}).notices, IsEmpty());
}

TEST_F(LaunchConfigs, AnOptionBehindTheProgramIsShownWithItsValue) {
  const struct {
    std::vector<std::string> words;
    const char *says, *instead;
  } cases[] = {
      {{"--hosts", "a,b"}, "--hosts a,b goes to train.py", "before train.py: `--hosts a,b`"},
      {{"--hostfile", "my hosts"}, "--hostfile 'my hosts' goes", "`--hostfile 'my hosts'`"},
      {{"--max_restarts=3", "7"}, "--max_restarts=3 goes", "`--max_restarts=3`"},
      {{"--standalone", "7"}, "--standalone goes", "`--standalone`"},
      {{"--nnodes"}, "--nnodes goes", "`--nnodes`"},
      {{"--nnodes", "--lr=1"}, "--nnodes goes", "`--nnodes`"},
      {{"-np", "4"}, "-np 4 goes to train.py", "`--nproc-per-node=4`"},
      {{"--num_processes=2"}, "--num_processes=2 goes", "`--nproc-per-node=2`"},
      {{"--num-processes", "2"}, "--num-processes 2 goes", "`--nproc-per-node=2`"},
      {{"--main_process_port", "29501"}, "--main_process_port 29501 goes", "`--master-port=29501`"},
      {{"--main_process_port"}, "--main_process_port goes", "`--master-port=PORT`"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(::testing::PrintToString(c.words));
    std::vector<std::string> line{"--nproc-per-node=1", "train.py"};
    line.insert(line.end(), c.words.begin(), c.words.end());
    EXPECT_THAT(parse(line).notices, ElementsAre(AllOf(HasSubstr(c.says), HasSubstr(c.instead))));
  }
}

TEST_F(LaunchConfigs, AnOptionThatScriptsOftenHaveIsTheScripts) {
  for (const char* word : {"-n", "-t", "-m", "--timeout", "--role", "--log-level=info", "--quiet", "--gpus", "--env",
                           "--num-proc", "---nnodes", "--", "-", "--=", "-nnodes", "nnodes", "--nnodes-max"})
    EXPECT_THAT(parse({"--nproc-per-node=1", "train.py", word, "3"}).notices, IsEmpty()) << word;
}

TEST_F(LaunchConfigs, ACommandLineInQuotesIsNoProgram) {
  for (const char* line : {"python train.py", "./trainer --lr=3", "train.py --lr 3"})
    expect_usage_error([&] { parse({line}); }, (std::string("no program or module named '") + line).c_str(),
                       "the program to run", (std::string("`ddprun ... ") + line + "`").c_str());
  expect_usage_error(
      [&] {
        parse({"-m", "train --lr 1"});
      },
      "no program or module named 'train --lr 1'", "the program to run", "`ddprun ... train --lr 1`");
  EXPECT_NO_THROW(parse({"train.py", "two words"}));
}

TEST_F(LaunchConfigs, CommandTellsWhetherPythonRunsTheProgram) {
  for (const auto* program : {"/usr/bin/env", "/bin/bash", "/usr/bin/python3.11"})
    files[program] = FileKind::executable;
  files["./serve"] = FileKind::python_script;
  const auto is_by_python = [&](const std::vector<std::string>& line) { return parse(line).command.runs_python; };
  EXPECT_TRUE(is_by_python({"train.py"}));
  EXPECT_TRUE(is_by_python({"-m", "package.train"}));
  EXPECT_TRUE(is_by_python({"./serve"}));
  EXPECT_TRUE(is_by_python({"/usr/bin/python3.11", "-m", "package.train"}));
  EXPECT_TRUE(is_by_python({"/usr/bin/env", "A=1", "-u", "B", "python", "x"}));
  EXPECT_FALSE(is_by_python({"/usr/bin/env", "bash", "python"}));
  EXPECT_FALSE(is_by_python({"/bin/bash", "python"}));
}

TEST_F(LaunchConfigs, ProgramsThatCannotRunSayWhy) {
  environment.erase("VIRTUAL_ENV");
  files["./run.sh"] = FileKind::windows_script;
  const struct {
    std::vector<std::string> line;
    int exit_code;
    const char* says;
  } cases[] = {{{"./missing"}, 127, "./missing does not exist"},
               {{"missing.py"}, 127, "missing.py does not exist"},
               {{"notes.txt"}, 126, "notes.txt is not executable"},
               {{"--no-python", "./notes.txt"}, 126, "not executable"},
               {{"./run.sh"}, 126, "the first line of ./run.sh ends as on Windows"},
               {{"/tmp"}, 126, "is a directory"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.says);
    try {
      parse(c.line);
      FAIL() << "accepted";
    } catch (const ProgramError& error) {
      EXPECT_EQ(rendezvous::exit_code_of(error.outcome()), c.exit_code);
      EXPECT_THAT(error.what(), HasSubstr(c.says));
      EXPECT_FALSE(error.where().empty());
      EXPECT_FALSE(error.try_this().empty());
    }
  }
}

// At least one wrong value of every option that takes one; of flags: a value.
TEST_F(LaunchConfigs, WrongUseOfEveryOptionNamesWhatWhereAndTheRemedy) {
  const struct {
    const char* option;
    std::vector<std::string> options;
    const char *says, *remedy;
  } cases[] = {
      {"nproc-per-node", {"--nproc-per-node=0"}, "not '0'", "--nproc-per-node=1"},
      {"nproc-per-node", {"--nproc-per-node", "-1"}, "not '-1'", "--nproc-per-node=1"},
      {"nproc-per-node", {"--nproc-per-node=99999999999"}, "not '99999999999'", "--nproc-per-node=1"},
      {"nproc-per-node", {"--nproc-per-node=2x"}, "not '2x'", "--nproc-per-node=1"},
      {"nproc-per-node", {"--nproc-per-node="}, "not ''", "--nproc-per-node=1"},
      {"nproc-per-node", {"--nproc-per-node=gpu"}, "no GPU can be used", "--nproc-per-node=cpu"},
      {"nproc-per-node", {"--nproc-per-node=xpu"}, "no GPU of Intel's", "--nproc-per-node=cpu"},
      {"nnodes", {"--nnodes=0"}, "not '0'", "--nnodes=1:4"},
      {"nnodes", {"--nnodes=4:2"}, "not '4:2'", "--nnodes=2:4"},
      {"nnodes", {"--nnodes=1:2:3"}, "not '1:2:3'", "--nnodes=1:4"},
      {"nnodes", {"--nnodes=:2"}, "not ':2'", "--nnodes=1:4"},
      {"nnodes", {"--nnodes=1:4"}, "a range, which the static backend can't have", "--rdzv-backend=c10d"},
      {"node-rank", {"--node-rank=-1"}, "not '-1'", "--node-rank=0"},
      {"node-rank", {"--nnodes=2", "--node-rank=2"}, "node 2 is beyond the 2 nodes", "--nnodes=3"},
      {"node-rank", {"--node-rank=1"}, "node 1 is beyond the only one", "--nnodes=2"},
      {"standalone", {"--standalone=1"}, "takes no value", "`--standalone`"},
      {"standalone", {"--standalone", "--nnodes=2"}, "--standalone is one node", "drop --standalone"},
      {"standalone", {"--standalone", "--nnodes=1:4"}, "--standalone is one node", "drop --standalone"},
      {"master-addr", {"--master-addr="}, "not ''", "--master-addr=10.0.0.1"},
      {"master-addr", {"--master-addr=tcp://node0"}, "not 'tcp://node0'", "--master-addr=10.0.0.1"},
      {"master-port", {"--master-port=65536"}, "not '65536'", "--master-port=0"},
      {"master-port", {"--nnodes=2", "--master-port=0"}, "port 0 is a free one", "--master-port=29500"},
      {"rdzv-backend", {"--rdzv-backend=etcd"}, "etcd is not to be had", "--rdzv-backend=c10d"},
      {"rdzv-backend", {"--rdzv-backend=etcd-v2"}, "etcd-v2 is not to be had", "--rdzv-backend=c10d"},
      {"rdzv-backend", {"--rdzv-backend=c10"}, "static or c10d, not 'c10'", "--rdzv-backend=c10d"},
      {"rdzv-backend", {"--rdzv-backend=c10d", "--nnodes=2"}, "needs an endpoint", "--rdzv-endpoint=HOST:29400"},
      {"rdzv-endpoint", {"--rdzv-endpoint=node0:x"}, "not 'node0:x'", "--rdzv-endpoint=node0:29400"},
      {"rdzv-endpoint", {"--rdzv-endpoint=node0:"}, "not 'node0:'", "--rdzv-endpoint=node0:29400"},
      {"rdzv-endpoint", {"--rdzv-endpoint=node0:65536"}, "not 'node0:65536'", "--rdzv-endpoint=node0:29400"},
      {"rdzv-endpoint", {"--rdzv-endpoint=:29400"}, "not ':29400'", "--rdzv-endpoint=node0:29400"},
      {"rdzv-endpoint", {"--rdzv-endpoint=fd00::1"}, "in brackets", "--rdzv-endpoint=[fd00::1]:29400"},
      {"rdzv-endpoint", {"--rdzv-endpoint=a:b:c"}, "HOST or HOST:PORT", "--rdzv-endpoint=node0:29400"},
      {"rdzv-endpoint", {"--rdzv-endpoint=[fd00::1"}, "HOST or HOST:PORT", "--rdzv-endpoint=node0:29400"},
      {"rdzv-endpoint",
       {"--rdzv-endpoint=node0:0", "--nnodes=2", "--rdzv-backend=c10d"},
       "port 0 is a free one",
       "--rdzv-endpoint=node0:29400"},
      {"rdzv-id", {"--rdzv-id=a\nb"}, "printable", "--rdzv-id=train"},
      {"rdzv-id",
       {"--rdzv-id=a\xc2\x9b"
        "b"},
       "printable",
       "--rdzv-id=train"},
      {"rdzv-id", {"--rdzv-id=caf\xe9"}, "printable", "--rdzv-id=train"},
      {"rdzv-id", {"--rdzv-id=" + std::string(201, 'x')}, "1 to 200", "--rdzv-id=train"},
      {"rdzv-id",
       {"--rdzv-id=", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=a"},
       "--rdzv-id is empty",
       "--rdzv-id=my-job"},
      {"rdzv-conf", {"--rdzv-conf=join_timeot=3"}, "no key 'join_timeot'", "`join_timeout`"},
      {"rdzv-conf", {"--rdzv-conf=qqqqqqqqqqqqqqqqqqq=3"}, "no key 'qqq", "all keys"},
      {"rdzv-conf", {"--rdzv-conf=join_timeout"}, "KEY=VALUE", "join_timeout=600"},
      {"rdzv-conf", {"--rdzv-conf==3"}, "KEY=VALUE", "join_timeout=600"},
      {"rdzv-conf", {"--rdzv-conf=join_timeout=1,"}, "KEY=VALUE", "join_timeout=600"},
      {"rdzv-conf", {"--rdzv-conf=join_timeout=0"}, "above 0", "join_timeout=30"},
      {"rdzv-conf", {"--rdzv-conf=read_timeout=nan"}, "above 0", "read_timeout=30"},
      {"rdzv-conf", {"--rdzv-conf=last_call_timeout=-1"}, "above 0", "last_call_timeout=30"},
      {"rdzv-conf", {"--rdzv-conf=heartbeat_timeout=1e9"}, "above 0", "heartbeat_timeout=30"},
      {"rdzv-conf", {"--rdzv-conf=keep_alive_interval=604801"}, "up to a week", "keep_alive_interval=30"},
      {"rdzv-conf", {"--rdzv-conf=keep_alive_max_attempt=0"}, "from 1 to 1000", "keep_alive_max_attempt=3"},
      {"rdzv-conf", {"--rdzv-conf=is_host=maybe"}, "true or false", "is_host=true"},
      {"rdzv-conf", {"--rdzv-conf=rank=-1"}, "a node's rank", "rank=0"},
      {"rdzv-conf", {"--rdzv-conf=store_type=file"}, "store_type=file is not to be had", "leave it out"},
      {"rdzv-conf", {"--nnodes=2", "--rdzv-conf=rank=2"}, "node 2 is beyond", "--nnodes=3"},
      {"local-addr", {"--local-addr=a b"}, "not 'a b'", "--local-addr=10.0.0.1"},
      {"local-addr", {"--local-addr=node1:29400"}, "not 'node1:29400'", "--local-addr=10.0.0.1"},
      {"local-addr", {"--local-addr=" + std::string(254, 'x')}, "not 'xxx", "--local-addr=10.0.0.1"},
      {"port-range", {"--port-range=2000"}, "not '2000'", "--port-range=20000-20100"},
      {"port-range", {"--port-range=3000-2000"}, "not '3000-2000'", "--port-range=20000-20100"},
      {"port-range", {"--port-range=0-2000"}, "not '0-2000'", "--port-range=20000-20100"},
      {"token-file", {"--nnodes=2", "--token-file="}, "a file, not ''", "--token-file=/run/secrets"},
      {"store-allow", {"--store-allow=10.0.0.0/99"}, "10.0.0.0/99", "--store-allow="},
      {"hosts", {"--hosts", "--tee=3"}, "needs a value", "=HOST[:N],..`"},
      {"hostfile", {"--hostfile", "--tee=3"}, "needs a value", "=FILE`"},
      {"export", {"-x", "--tee=3"}, "needs a value", "=NAME[=VALUE]`"},
      {"ssh-args", {"--ssh-args", "--tee=3"}, "needs a value", "=ARGS`"},
      {"module", {"--module=x"}, "takes no value", "`--module`"},
      {"module", {"-m", "--no-python"}, "exclude each other", "drop one"},
      {"no-python", {"--no-python=1"}, "takes no value", "`--no-python`"},
      {"run-path", {"--run-path=1"}, "takes no value", "`--run-path`"},
      {"role", {"--role="}, "not ''", "--role=train"},
      {"virtual-local-rank", {"--virtual-local-rank=1"}, "takes no value", "`--virtual-local-rank`"},
      {"start-method", {"--start-method=thread"}, "spawn, fork or forkserver", "--start-method="},
      {"log-dir", {"--log-dir="}, "a folder", "--log-dir=logs"},
      {"log-level", {"--log-level=warn"}, "not 'warn'", "--log-level=debug"},
      {"redirects", {"-r4"}, "not '4'", "--redirects=0:3,4-7:1"},
      {"redirects", {"-r", ""}, "not ''", "--redirects=0:3,4-7:1"},
      {"redirects", {"-r0:3,"}, "not '0:3,'", "--redirects=0:3,4-7:1"},
      {"redirects", {"-r7-4:3"}, "not '7-4:3'", "--redirects=0:3,4-7:1"},
      {"redirects", {"-r0-999999999:3"}, "not '0-999999999:3'", "--redirects=0:3,4-7:1"},
      {"tee", {"--tee=0:4"}, "not '0:4'", "--tee=0:3,4-7:1"},
      {"tee", {"--tee=a:1"}, "not 'a:1'", "--tee=0:3,4-7:1"},
      {"log-line-prefix-template", {"--log-line-prefix-template", "--tee=3"}, "needs a value", "=TEMPLATE`"},
      {"local-ranks-filter", {"--local-ranks-filter=0,x"}, "not '0,x'", "--local-ranks-filter=0,4-7"},
      {"ranks-filter", {"--ranks-filter=0,,1"}, "not '0,,1'", "--ranks-filter=0,4-7"},
      {"duplicate-stdout-filters", {"--duplicate-stdout-filters", "--tee=3"}, "needs a value", "=TEXT,.."},
      {"duplicate-stderr-filters", {"--duplicate-stderr-filters", "-t3"}, "needs a value", "=TEXT,.."},
      {"no-prefix", {"--no-prefix=1"}, "takes no value", "`--no-prefix`"},
      {"merge-equal-lines", {"--merge-equal-lines=1"}, "takes no value", "`--merge-equal-lines`"},
      {"quiet", {"--quiet=1"}, "takes no value", "`--quiet`"},
      {"logs-specs", {"--logs-specs=my_plugin"}, "takes default, not 'my_plugin'", "--logs-specs=default"},
      {"event-log-handler", {"--event-log-handler="}, "not ''", "--event-log-handler="},
      {"max-restarts", {"--max-restarts=-1"}, "not '-1'", "--max-restarts=0"},
      {"wdir", {"--wdir="}, "not ''", "--wdir=/data/run1"},
      {"wdir", {"--wdir=/nowhere"}, "the working directory /nowhere does not exist", "mkdir -p /nowhere"},
      {"wdir", {"--wdir=/closed"}, "the working directory /closed may not be entered", "ls -ld /closed"},
      {"wdir", {"--wdir=notes.txt"}, "notes.txt is no directory", "another path"},
      {"timeout", {"--timeout=0"}, "not '0'", "--timeout=1"},
      {"timeout", {"--timeout=1h"}, "not '1h'", "--timeout=1"},
      {"restart-window", {"--restart-window=0"}, "not '0'", "--restart-window=1"},
      {"report", {"--report="}, "not ''", "--report=report.json"},
      {"orphan-limit", {"--orphan-limit=0"}, "not '0'", "--orphan-limit=1"},
      {"orphan-limit", {"--orphan-limit=1m"}, "not '1m'", "--orphan-limit=1"},
      {"shutdown-timeout", {"--shutdown-timeout=soon"}, "not 'soon'", "--shutdown-timeout=0"},
      {"signals-to-handle", {"--signals-to-handle=SIGTREM"}, "no signal 'SIGTREM'", "=SIGTERM`"},
      {"signals-to-handle", {"--signals-to-handle=SIGKILL"}, "no program can handle it", "SIGUSR1"},
      {"signals-to-handle", {"--signals-to-handle=stop"}, "no program can handle it", "SIGUSR1"},
      {"signals-to-handle", {"--signals-to-handle=SIGCHLD"}, "ddprun needs it itself", "SIGUSR1"},
      {"signals-to-handle", {"--signals-to-handle=SIGSEGV"}, "a fault", "SIGUSR1"},
      {"signals-to-handle", {"--signals-to-handle="}, "at least one", "SIGTERM"},
      {"forward-signals", {"--forward-signals=SIGUSR3"}, "no signal 'SIGUSR3'", "=SIGUSR"},
      {"forward-signals", {"--forward-signals=SIGTERM"}, "a signal that stops the job", "--signals-to-handle"},
      {"on-node-stop", {"--on-node-stop=go"}, "leave or stop, not 'go'", "--on-node-stop=leave"},
      {"monitor-interval", {"--monitor-interval=0"}, "above 0", "--monitor-interval=0.1"},
      {"numa-binding", {"--numa-binding=nodes"}, "node, socket, exclusive or core-complex", "--numa-binding=node"},
      {"display-binding", {"--display-binding=1"}, "takes no value", "`--display-binding`"},
      {"dry-run", {"--dry-run=1"}, "takes no value", "`--dry-run`"},
      {"print-completion", {"--print-completion=tcsh"}, "bash, zsh or fish, not 'tcsh'", "--print-completion="},
      {"help", {"--help=1"}, "takes no value", "`--help`"},
      {"version", {"--version=1"}, "takes no value", "`--version`"},
      {"print-man-page", {"--print-man-page=1"}, "takes no value", "`--print-man-page`"},
  };
  std::map<std::string_view, int> cases_of;
  for (const auto& c : cases) {
    SCOPED_TRACE(::testing::PrintToString(c.options));
    expect_usage_error([&] { parse_options(c.options); }, c.says, "", c.remedy);
    ++cases_of[c.option];
  }
  for (const auto& option : option_table()) EXPECT_GT(cases_of[option.name], 0) << option.name;
}

TEST_F(LaunchConfigs, ValuesOfTheEnvironmentAreCheckedAlike) {
  for (const auto& [name, value] : std::map<std::string, std::string>{{"PET_MAX_RESTARTS", "many"},
                                                                      {"PET_START_METHOD", "thread"},
                                                                      {"DDPRUN_NUMA_BINDING", "all"},
                                                                      {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "-1"}}) {
    environment = {{"PATH", "/usr/bin:/bin"}, {name, value}};
    expect_usage_error([&] { parse({"true"}); }, ("'" + value + "'").c_str(), ("environment variable " + name).c_str(),
                       "");
  }
}

// Whatever stands on the line or in the environment ends in a configuration or in an error that names it.
TEST_F(LaunchConfigs, NonsenseIsRefusedByName) {
  const std::vector<std::string> odd{"",
                                     "-",
                                     "--",
                                     "=",
                                     ":",
                                     ",",
                                     "[",
                                     "]",
                                     "[]:",
                                     "]:[",
                                     "0",
                                     "1",
                                     "-1",
                                     "3",
                                     "1:4",
                                     "9:1",
                                     "0-7:3",
                                     "99999999999999999999",
                                     "1e308",
                                     "nan",
                                     "a",
                                     "a=b",
                                     "a=",
                                     "=b",
                                     "'",
                                     "''",
                                     "\"a",
                                     "localhost",
                                     "localhost:0",
                                     "::1",
                                     "[::1]:0",
                                     "node0:29400",
                                     "c10d",
                                     "static",
                                     "SIGTERM",
                                     "SIG",
                                     "sigusr1,,",
                                     "any",
                                     "10.0.0.0/8",
                                     "node",
                                     "default",
                                     "spawn",
                                     "2000-2100",
                                     "\xff\n",
                                     "join_timeout=1",
                                     "keep_alive_interval=1,keep_alive_max_attempt=1000",
                                     "train.py",
                                     "true"};
  std::uint32_t state = 1;
  const auto draw = [&state](std::size_t count) {  // the same on every machine
    state = state * 1664525 + 1013904223;
    return static_cast<std::size_t>(state >> 8) % count;
  };
  int parsed = 0;
  for (int run = 0; run < 5000; ++run) {
    std::vector<std::string> line;
    environment = {{"PATH", "/usr/bin:/bin"}};
    for (std::size_t left = 1 + draw(5); left > 0; --left) {
      const auto& option = option_table()[draw(option_table().size())];
      const auto name = std::string(option.name);
      const auto& value = odd[draw(odd.size())];
      switch (draw(6)) {
        case 0: line.insert(line.end(), {"--" + name, value}); break;
        case 1: line.push_back("--" + name.substr(0, 1 + draw(name.size())) + "=" + value); break;
        case 2: line.push_back("-" + std::string(1, "mrthx"[draw(5)]) + value); break;
        case 3: environment["DDPRUN_" + name] = value; break;
        default: line.push_back(option.value_name.empty() ? "--" + name : "--" + name + "=" + value);
      }
    }
    line.emplace_back("true");
    for (const auto& [name, value] : std::map<std::string, std::string>(environment)) {
      auto upper = name;
      for (auto& c : upper) c = c == '-' ? '_' : static_cast<char>(std::toupper(c));
      environment[upper] = value;
    }
    try {
      parse(line);
      ++parsed;
    } catch (const UsageError& error) {
      EXPECT_STRNE(error.what(), "");
      EXPECT_NE(error.where(), "");
      EXPECT_NE(error.try_this(), "");
    }
    if (HasFailure()) FAIL() << ::testing::PrintToString(line);
  }
  EXPECT_GT(parsed, 250);
}

TEST_F(LaunchConfigs, AProgramIsNeeded) {
  expect_usage_error([&] { parse({}); }, "no program given", "the end", "ddprun --nproc-per-node");
  expect_usage_error([&] { parse({"--nproc-per-node=2", ""}); }, "no program given", "the end", "ddprun");
}

TEST_F(LaunchConfigs, SomeOptionsOnlyShowSomething) {
  using Mode = LaunchConfig::Mode;
  EXPECT_EQ(parse({"--help"}).mode, Mode::show_help);
  EXPECT_EQ(parse({"-h", "nonsense"}).mode, Mode::show_help);
  EXPECT_EQ(parse({"--version"}).mode, Mode::show_version);
  EXPECT_EQ(parse({"--print-man-page"}).mode, Mode::show_man_page);
  EXPECT_EQ(parse({"--print-completion", "zsh"}).mode, Mode::show_completion);
  EXPECT_EQ(parse({"--print-completion", "zsh"}).completion_shell, "zsh");
  EXPECT_EQ(parse({"--dry-run", "true"}).mode, Mode::show_plan);
  EXPECT_EQ(parse({"true"}).mode, Mode::launch);
}

TEST(Machine, CountsTheGpusThatCudaVisibleDevicesLeaves) {
  EXPECT_EQ(visible_gpu_count(4, std::nullopt), 4);
  EXPECT_EQ(visible_gpu_count(4, ""), 0);
  EXPECT_EQ(visible_gpu_count(4, "0,2"), 2);
  EXPECT_EQ(visible_gpu_count(4, " 1 , 3 "), 2);
  EXPECT_EQ(visible_gpu_count(4, "0,7,1"), 1);  // what follows an invalid entry is invisible
  EXPECT_EQ(visible_gpu_count(4, "-1"), 0);
  EXPECT_EQ(visible_gpu_count(4, "GPU-8932f937,MIG-GPU-1/2/3"), 2);
  EXPECT_EQ(visible_gpu_count(0, "0,1"), 0);
}

TEST_F(LaunchConfigs, ATokenIsForJobsOfSeveralNodes) {
  const std::vector<std::string> two_nodes{"--nproc-per-node=1", "--nnodes=2", "--node-rank=0", "--master-addr=node0"};
  const auto with = [&two_nodes](const std::string& option) {
    auto out = two_nodes;
    out.push_back(option);
    return out;
  };
  EXPECT_FALSE(parse_options({"--nproc-per-node=1"}).rendezvous.tokens);
  EXPECT_THAT(parse_options({"--nproc-per-node=1", "--token-file=/run/token"}).notices,
              ElementsAre(HasSubstr("without effect: --token-file=/run/token")));
  EXPECT_THAT(token_looked_for_at, IsEmpty());
  EXPECT_TRUE(parse_options(two_nodes).rendezvous.tokens->has("secret_of_a_test"));
  EXPECT_THAT(parse_options(with("--token-file=/run/token")).notices, IsEmpty());
  environment["DDPRUN_TOKEN_FILE"] = "/run/other";
  EXPECT_TRUE(parse_options(two_nodes).rendezvous.tokens);
  EXPECT_THAT(token_looked_for_at, ElementsAre(std::nullopt, "/run/token", "/run/other"));
  expect_usage_error([&] { parse_options(with("--token-file=")); }, "a file",
                     "--token-file=", "--token-file=/run/secrets");
  token.reset();
  EXPECT_THAT(parse_options(two_nodes).notices,
              ElementsAre(HasSubstr("the job is open: whoever reaches its endpoint")));
}

}  // namespace
}  // namespace ddp::launcher
