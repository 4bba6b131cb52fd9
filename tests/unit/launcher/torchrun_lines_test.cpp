// Command lines as public documentation has them for torchrun mean here what they mean there.
//
// Each is told by the name of where its kind is found; the words are arranged for this test.
#include <sstream>

#include "tests/unit/launcher/a_machine.hpp"

namespace ddp::launcher {
namespace {

using Mode = RendezvousConfig::Mode;

std::string summary(const LaunchConfig& config) {
  const auto& meeting = config.rendezvous;
  std::ostringstream out;
  out << (meeting.mode == Mode::local ? "local" : meeting.mode == Mode::fixed ? "static" : "c10d");
  if (meeting.mode != Mode::local) {
    out << ' ' << meeting.nodes_min << ':' << meeting.nodes_max << " at " << meeting.host << ' ' << meeting.port
        << " id " << meeting.run_id;
    if (meeting.node_rank) out << " node " << *meeting.node_rank;
  }
  out << " | " << config.workers << " workers, " << config.restarts_max << " restarts |";
  for (const auto& word : config.command.arguments) out << ' ' << word;
  return out.str();
}

using TorchrunLines = AMachine;

TEST_F(TorchrunLines, MeanWhatTheyMeanThere) {
  gpus = 8;
  files["/opt/app/train.py"] = files["main.py"] = files["run_glue.py"] = FileKind::not_executable;
  const struct {
    const char* source;
    std::map<std::string, std::string> environment;
    std::vector<std::string> line;
    const char* want;
    int notices = 0;
  } cases[] = {
      {"PyTorch documentation, torchrun: single node, multiple workers",
       {},
       {"--standalone", "--nnodes=1", "--nproc-per-node=4", "train.py", "--arg1", "x"},
       "local | 4 workers, 0 restarts | /usr/bin/python3 -u train.py --arg1 x"},
      {"PyTorch documentation, torchrun: several jobs on one node",
       {},
       {"--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--nnodes=1", "--nproc-per-node=4", "train.py"},
       "local | 4 workers, 0 restarts | /usr/bin/python3 -u train.py"},
      {"PyTorch documentation, torchrun: fault tolerant",
       {},
       {"--nnodes=2", "--nproc-per-node=4", "--max-restarts=3", "--rdzv-id=42", "--rdzv-backend=c10d",
        "--rdzv-endpoint=node1.example.com", "train.py"},
       "c10d 2:2 at node1.example.com 29400 id 42 | 4 workers, 3 restarts | /usr/bin/python3 -u train.py"},
      {"PyTorch documentation, torchrun: elastic",
       {},
       {"--nnodes=1:4", "--nproc-per-node=4", "--max-restarts=3", "--rdzv-id=42", "--rdzv-backend=c10d",
        "--rdzv-endpoint=node1.example.com:29400", "train.py"},
       "c10d 1:4 at node1.example.com 29400 id 42 | 4 workers, 3 restarts | /usr/bin/python3 -u train.py"},
      {"PyTorch tutorial, multi-node training: underscores, and a range's short form",
       {},
       {"--nproc_per_node=gpu", "--nnodes=2", "--node_rank=1", "--rdzv_id=456", "--rdzv_backend=c10d",
        "--rdzv_endpoint=172.31.43.139:29603", "main.py", "50", "10"},
       "c10d 2:2 at 172.31.43.139 29603 id 456 node 1 | 8 workers, 0 restarts | /usr/bin/python3 -u main.py 50 10"},
      {"PyTorch tutorial, fault tolerance: everything by default",
       {},
       {"--standalone", "--nproc_per_node=gpu", "main.py", "50", "10"},
       "local | 8 workers, 0 restarts | /usr/bin/python3 -u main.py 50 10"},
      {"Hugging Face Transformers: the example scripts",
       {},
       {"--nproc_per_node", "8", "run_glue.py", "--model_name_or_path", "bert-base-cased", "--do_train"},
       "local | 8 workers, 0 restarts | /usr/bin/python3 -u run_glue.py --model_name_or_path bert-base-cased "
       "--do_train"},
      {"Hugging Face Accelerate: two machines, as its own launcher would say it",
       {},
       {"--nproc_per_node", "4", "--nnodes", "2", "--node_rank", "0", "--master_addr", "10.10.10.10", "--master_port",
        "8000", "-m", "pkg.train", "--mixed_precision", "bf16"},
       "static 2:2 at 10.10.10.10 8000 id none node 0 | 4 workers, 0 restarts | "
       "/usr/bin/python3 -u -m pkg.train --mixed_precision bf16"},
      {"Lightning: torchrun on a general purpose cluster",
       {},
       {"--nproc_per_node=2", "--nnodes=2", "--node_rank=1", "--master_addr=node-0", "--master_port=29500", "train.py",
        "--devices", "2"},
       "static 2:2 at node-0 29500 id none node 1 | 2 workers, 0 restarts | /usr/bin/python3 -u train.py --devices 2"},
      {"Slurm: srun starts one on each node, the head node's address in a variable",
       {},
       {"--nnodes", "4", "--nproc_per_node", "8", "--rdzv_id", "21517", "--rdzv_backend", "c10d", "--rdzv_endpoint",
        "10.0.3.17:29500", "--rdzv_conf", "join_timeout=900,timeout=900,is_host=0", "/opt/app/train.py", "50"},
       "c10d 4:4 at 10.0.3.17 29500 id 21517 | 8 workers, 0 restarts | /usr/bin/python3 -u /opt/app/train.py 50",
       1},
      {"Kubeflow Trainer: a static job, everything in the environment",
       {{"PET_NNODES", "2"},
        {"PET_NODE_RANK", "1"},
        {"PET_NPROC_PER_NODE", "auto"},
        {"PET_MASTER_ADDR", "job-node-0-0.job"},
        {"PET_MASTER_PORT", "29400"}},
       {"/opt/app/train.py"},
       "static 2:2 at job-node-0-0.job 29400 id none node 1 | 8 workers, 0 restarts | "
       "/usr/bin/python3 -u /opt/app/train.py"},
      {"Kubeflow Training Operator: an elastic job",
       {{"PET_RDZV_BACKEND", "c10d"},
        {"PET_RDZV_ENDPOINT", "job-worker-0:23456"},
        {"PET_NNODES", "1:3"},
        {"PET_NPROC_PER_NODE", "1"},
        {"PET_MAX_RESTARTS", "100"},
        {"PET_RDZV_ID", "job"},
        {"PET_STANDALONE", "0"}},
       {"/opt/app/train.py", "--epochs", "5"},
       "c10d 1:3 at job-worker-0 23456 id job | 1 workers, 100 restarts | "
       "/usr/bin/python3 -u /opt/app/train.py --epochs 5"},
      {"a C++ program, with logs of all ranks and a prefix of an option's name",
       {},
       {"--nproc-per-node=4", "--no-python", "--redirect=3", "-t0:3", "--log-dir=logs", "./trainer", "--node=3"},
       "local | 4 workers, 0 restarts | ./trainer --node=3"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.source);
    environment = c.environment;
    environment["PATH"] = "/usr/bin:/bin";
    const auto config = parse(c.line);
    EXPECT_EQ(summary(config), c.want);
    EXPECT_EQ(config.notices.size(), static_cast<std::size_t>(c.notices)) << ::testing::PrintToString(config.notices);
  }
}

}  // namespace
}  // namespace ddp::launcher
