// The store's protocol between ours and torch's own: its client against our server, our client against its server.
#include "rendezvous/store/client.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/interop/python.hpp"

namespace ddp::store {
namespace {

using test::Job;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Optional;
using ::testing::UnorderedElementsAre;
using TorchStore = test::PythonTest;

TimePoint patience() { return std::chrono::steady_clock::now() + test::kPatience; }

TEST_F(TorchStore, EveryMethodOfItsClientWorksInEightProcessesAtOnce) {
  auto options = test::python_job();
  options.environment.push_back("TORCH_CPP_LOG_LEVEL=ERROR");  // it prints a stack for each error that is wanted
  Job job({"--standalone", "--nproc-per-node=8", test::script("torch_store_client.py")}, options);
  EXPECT_EQ(job.wait(), 0) << job.out() << job.err();
  EXPECT_TRUE(job.prints("too_large as it should be", 8)) << job.out();
  EXPECT_THAT(job.err(), HasSubstr("SET: a value's length, 8388609 is beyond the limit of 8388608"));
}

// The store of torch in a process of its own, and our client of it.
class TorchServer : public test::PythonTest {
 protected:
  void SetUp() override {
    need_module("torch");
    if (IsSkipped()) return;
    auto options = test::python_job();
    options.program = test::python();
    server_ = std::make_unique<Job>(std::vector<std::string>{test::script("torch_store_server.py")}, options);
    port_ = server_->number_after("torch's store listens on ");
    ASSERT_GT(port_, 0) << server_->err();
  }
  Client client() {
    return Client::connect({.host = "127.0.0.1", .port = static_cast<std::uint16_t>(port_), .deadline = patience()});
  }

 private:
  std::unique_ptr<Job> server_;
  long port_ = 0;
};

TEST_F(TorchServer, AnswersEveryMethodOfOurClient) {
  auto client = this->client();
  EXPECT_EQ(client.get("/from torch", patience()), "hello");
  client.set("k", std::string("v\0\xff", 3), patience());
  EXPECT_EQ(client.get("k", patience()), std::string("v\0\xff", 3));
  client.append("k", "w", patience());
  EXPECT_EQ(client.get("k", patience()), std::string("v\0\xffw", 4));
  EXPECT_EQ(client.add("n", 5, patience()), 5);
  EXPECT_EQ(client.add("n", -7, patience()), -2);
  EXPECT_TRUE(client.check({"k", "n"}, patience()));
  EXPECT_FALSE(client.check({"k", "nowhere"}, patience()));
  client.wait({"k", "n"}, patience());
  EXPECT_THROW(client.wait({"nowhere"}, std::chrono::steady_clock::now() + std::chrono::milliseconds(50)),
               TimeoutError);
  EXPECT_EQ(client.compare_set("c", "", "a", patience()), "a");
  EXPECT_EQ(client.compare_set("c", "a", "b", patience()), "b");
  EXPECT_EQ(client.compare_set("c", "x", "y", patience()), "b");
  client.multi_set({{"m1", "1"}, {"m2", ""}}, patience());
  EXPECT_THAT(client.multi_get({"m2", "m1"}, patience()), ElementsAre("", "1"));
  client.queue_push("q", "x", patience());
  client.queue_push("q", "y", patience());
  EXPECT_EQ(client.queue_length("q", patience()), 2);
  EXPECT_THAT(client.queue_pop("q", patience()), Optional(std::string("x")));
  client.barrier("b", 1, patience());
  EXPECT_THROW(client.barrier("alone", 2, std::chrono::steady_clock::now() + std::chrono::milliseconds(50)),
               TimeoutError);
  EXPECT_THAT(client.list_keys(patience()),
              UnorderedElementsAre("/from torch", "k", "n", "c", "m1", "m2", "b", "alone"));
  const auto count = client.key_count(patience());
  EXPECT_TRUE(client.remove("k", patience()));
  EXPECT_FALSE(client.remove("k", patience()));
  EXPECT_EQ(client.key_count(patience()), count - 1);
}

TEST_F(TorchServer, IsNotSentWhatItWouldClose) {
  auto client = this->client();
  client.set("large", std::string(kValueBytesMax, 'x'), patience());
  EXPECT_EQ(client.get("large", patience()).size(), kValueBytesMax);
  EXPECT_THROW(client.set("larger", std::string(9 << 20, 'x'), patience()), InvalidArgument);
  EXPECT_THROW(client.set(std::string(kKeyBytesMax + 1, 'k'), "", patience()), InvalidArgument);
  EXPECT_FALSE(client.check({"larger"}, patience()));  // over the same connection
}

}  // namespace
}  // namespace ddp::store
