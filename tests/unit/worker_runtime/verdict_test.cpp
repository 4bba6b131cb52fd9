#include "worker_runtime/core/failure/verdict.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>

#include "ddp/error.hpp"
#include "tests/integration/thrown_by.hpp"

namespace ddp::core {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::thrown_by;

TEST(Verdict, IsThrownAsItsKind) {
  EXPECT_THAT(thrown_by<TimeoutError>([] {
                throw_verdict({Verdict::Kind::timeout, "t", {2}});
              })->ranks(),
              ElementsAre(2));
  EXPECT_THAT(thrown_by<RankFailure>([] {
                throw_verdict({Verdict::Kind::rank_failure, "r", {1}});
              })->ranks(),
              ElementsAre(1));
  thrown_by<MismatchError>([] { throw_verdict({Verdict::Kind::mismatch, "m", {}}); });
  EXPECT_STREQ(thrown_by<AbortedError>([] {
                 throw_verdict({Verdict::Kind::aborted, "it was aborted: x", {}});
               })->what(),
               "the process group is of no further use: it was aborted: x");
  thrown_by<RoundOver>([] { throw_verdict({Verdict::Kind::round_over, "over", {}}); });
  EXPECT_STREQ(thrown_by<AbortedError>([] {
                 throw_unusable({Verdict::Kind::timeout, "t", {2}});
               })->what(),
               "the process group is of no further use: t");
}

TEST(Verdict, IsTheSameAfterEncodingAndDecoding) {
  for (const Verdict& verdict :
       {Verdict{Verdict::Kind::rank_failure, "ranks 1 and 3 ended\nwhere: here", {1, 3}},
        Verdict{Verdict::Kind::timeout, "", {12}}, Verdict{Verdict::Kind::mismatch, "m", {}},
        Verdict{Verdict::Kind::error, "e", {}}, Verdict{Verdict::Kind::round_over, "over", {}}}) {
    const Verdict read = decode_verdict(encode(verdict));
    EXPECT_EQ(read.kind, verdict.kind);
    EXPECT_EQ(read.message, verdict.message);
    EXPECT_EQ(read.ranks, verdict.ranks);
  }
}

TEST(Verdict, MalformedTextIsAnErrorsMessage) {
  for (const char* text : {"", "nonsense", "lost 1\nx"}) {
    SCOPED_TRACE(text);
    EXPECT_EQ(decode_verdict(text).kind, Verdict::Kind::error);
    EXPECT_EQ(decode_verdict(text).message, text);
  }
  EXPECT_THAT(decode_verdict("timeout x\nt").ranks, IsEmpty());
  EXPECT_EQ(decode_verdict("timeout x\nt").message, "t");
}

TEST(Verdict, OfAnErrorThrowsAnErrorLikeIt) {
  const auto thrown = [](const std::exception& error) { throw_verdict(decode_verdict(encode(verdict_of(error)))); };
  EXPECT_THAT(thrown_by<RankFailure>([&] { thrown(RankFailure("r", {1, 2})); })->ranks(), ElementsAre(1, 2));
  EXPECT_THAT(thrown_by<TimeoutError>([&] { thrown(TimeoutError("t", {0})); })->ranks(), ElementsAre(0));
  EXPECT_STREQ(thrown_by<MismatchError>([&] { thrown(MismatchError("m")); })->what(), "m");
  EXPECT_STREQ(thrown_by<Error>([&] { thrown(InvalidArgument("i")); })->what(), "i");
}

}  // namespace
}  // namespace ddp::core
