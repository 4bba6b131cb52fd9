// What parts a checkpoint has, which rank keeps a copy of which, and from where each is read.
#include "worker_runtime/checkpoint/candidates.hpp"
#include "worker_runtime/checkpoint/checkpoint_memory.hpp"
#include "worker_runtime/checkpoint/manifest.hpp"
#include "worker_runtime/checkpoint/part_image.hpp"

#include "ddp/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace ddp::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const CheckpointId kId{{1'700'000'000, 7, 3}, 42};

// Tensors of all ranks, as bytes, and where they are: what each rank has of each.
struct World {
  std::vector<std::vector<std::int32_t>> tensors;
  std::vector<std::vector<std::byte>> images;  // by rank
  Manifest manifest;

  World(std::mt19937& random, int ranks) {
    const int count = 1 + static_cast<int>(random() % 5);
    std::vector<Entry> entries;
    for (int t = 0; t < count; ++t) {
      tensors.emplace_back(random() % 40);
      for (auto& each : tensors.back()) each = static_cast<std::int32_t>(random());
    }
    for (int t = 0; t < count; ++t) entries.push_back(entry(t, 0, tensors[static_cast<std::size_t>(t)].size()));
    std::vector<Manifest> manifests;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<Entry> share = share_of(entries, rank, ranks);
      const PartLayout layout(share, kId, rank, ranks);
      std::vector<std::byte> image(layout.bytes());
      for (std::size_t i = 0; i < share.size(); ++i) {
        if (share[i].values.count == 0) continue;
        std::memcpy(image.data() + layout.offset_of(i), share[i].values.data, share[i].values.bytes());
      }
      manifests.push_back(layout.manifest(layout.seal(image.data())));
      images.push_back(std::move(image));
    }
    manifest = parse_manifest(encode(merge(manifests)));
  }

  Entry entry(int t, std::size_t first, std::size_t count) {
    auto& tensor = tensors[static_cast<std::size_t>(t)];
    return {{kAllRanks, "t" + std::to_string(t)},
            {static_cast<std::int64_t>(tensor.size())},
            first,
            MemoryRange(tensor.data() + first, count)};
  }
};

TEST(Parts, GiveBackAnyPieceOfAnyTensorWhateverTheNumberOfRanks) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(round);
    World world(random, 1 + static_cast<int>(random() % 6));
    std::vector<WantedPiece> wanted;
    std::vector<std::vector<std::int32_t>> got;
    for (std::size_t t = 0; t < world.tensors.size(); ++t) {
      const auto size = world.tensors[t].size();
      const std::uint64_t first = size == 0 ? 0 : random() % size;
      const std::uint64_t count = size == first ? 0 : random() % (size - first + 1);
      wanted.push_back(
          {{kAllRanks, "t" + std::to_string(t)}, DataType::int32, {static_cast<std::int64_t>(size)}, first, count});
      got.emplace_back(count, -1);
    }
    std::size_t part = 0;
    for (const Read& read : plan_reads(world.manifest, wanted)) {
      ASSERT_GE(read.part, part);
      part = read.part;
      std::memcpy(reinterpret_cast<std::byte*>(got[read.wanted].data()) + read.to,
                  world.images[read.part].data() + read.from, read.bytes);
    }
    for (std::size_t t = 0; t < got.size(); ++t) {
      const auto begin = world.tensors[t].begin() + static_cast<std::ptrdiff_t>(wanted[t].first);
      EXPECT_EQ(got[t], std::vector(begin, begin + static_cast<std::ptrdiff_t>(wanted[t].count)));
    }
  }
}

TEST(Parts, SharesDifferByAnElementAtMost) {
  std::vector<double> large(1000), small(3);
  std::vector<std::uint8_t> bytes(5);
  const std::vector<Entry> entries{{{kAllRanks, "large"}, {1000}, 0, large},
                                   {{kAllRanks, "bytes"}, {5}, 0, bytes},
                                   {{kAllRanks, "small"}, {3}, 0, small}};
  for (int rank = 0; rank < 7; ++rank) {
    std::size_t share_bytes = 0;
    for (const Entry& entry : share_of(entries, rank, 7)) share_bytes += entry.values.bytes();
    EXPECT_NEAR(static_cast<double>(share_bytes), (8000 + 5 + 24) / 7.0, 8);
  }
}

template <class Call>
std::string refusal_of(const Call& call) {
  try {
    static_cast<void>(call());
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Manifest, RefusesWhatContradictsItself) {
  const std::string good =
      R"({"format":"ddprun checkpoint 1","manifest_xxh3_64":"0000000000000000",)"
      R"("round":"1700000000-0000000000000007-3","step":1,"ranks":1,)"
      R"("parts":[{"bytes":100,"data_at":60,"data_xxh3_64":"0123456789abcdef"}],)"
      R"("tensors":[{"name":"w","dtype":"F32","shape":[2,5],"pieces":[{"part":0,"first":0,"count":10,"offset":60}]}]})";
  const std::string sealed = encode(parse_manifest(good));
  EXPECT_EQ(encode(parse_checked_manifest(sealed)), sealed);
  for (const char* change : {"\"count\":10", "\"step\":1", "0123456789abcdef"}) {
    std::string changed = sealed;
    ++changed[changed.find(change) + 8];
    EXPECT_THAT(refusal_of([&] { return parse_checked_manifest(changed); }), HasSubstr("manifest")) << changed;
  }
  const struct {
    const char* from;
    const char* to;
    const char* want;
  } cases[] = {
      {"ddprun checkpoint 1", "ddprun checkpoint 2", "another format"},
      {"-3\"", "-x\"", "round is"},
      {"\"step\":1,", "", "no number step"},
      {"\"bytes\":100", "\"bytes\":50", "data of a part begin behind"},
      {"0123456789abcdef", "0123456789abcdeg", "16 hexadecimal digits"},
      {"\"part\":0", "\"part\":1", "a part that is not there"},
      {"\"count\":10", "\"count\":11", "elements beyond the tensor"},
      {"\"first\":0", "\"first\":1", "elements beyond the tensor"},
      {"\"offset\":60", "\"offset\":61", "bytes beyond its part"},
      {"\"offset\":60", "\"offset\":59", "before the data"},
      {"\"offset\":60", "\"offset\":-1", "no number offset"},
      {"[2,5]", "[2,\"5\"]", "not made of numbers"},
      {"[2,5]", "[4294967296,4294967296]", "overflows"},
      {"F32", "F33", "unknown"},
      {"\"tensors\":[", "\"tensors\":[{\"name\":\"w\",\"dtype\":\"U8\",\"shape\":[],\"pieces\":[]},", "stands twice"},
      {"{\"format\"", "[\"format\"", "not a JSON object"},
  };
  for (const auto& each : cases) {
    std::string bad = good;
    bad.replace(bad.find(each.from), std::string(each.from).size(), each.to);
    EXPECT_THAT(refusal_of([&] { return parse_manifest(bad); }), HasSubstr(each.want)) << bad;
  }
}

TEST(Manifest, ATensorThatIsNotSavedAsAWholeIsRefusedAtOnce) {
  std::vector<float> a(4), b(4);
  const Entry entry_a{{kAllRanks, "a"}, {4}, 0, a}, entry_b{{kAllRanks, "b"}, {4}, 0, b};
  std::vector<Manifest> manifests;
  for (int rank = 0; rank < 2; ++rank) {  // rank 0 does not know of b
    const std::vector<Entry> all = rank == 0 ? std::vector{entry_a} : std::vector{entry_a, entry_b};
    manifests.push_back(PartLayout(share_of(all, rank, 2), kId, rank, 2).manifest({}));
  }
  try {
    merge(manifests);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const MismatchError& error) {
    EXPECT_THAT(error.what(), HasSubstr("elements 2 and on of tensor a are saved by no rank"));
  }
}

TEST(Manifest, ATensorOfWhichElementsAreMissingIsNotRead) {
  std::mt19937 random(1);
  World world(random, 3);
  auto& tensor = world.manifest.tensors.begin()->second;
  const auto count = static_cast<std::uint64_t>(tensor.shape[0]);
  ASSERT_GT(count, 0u);
  tensor.pieces.erase(tensor.pieces.begin());
  const std::vector<WantedPiece> wanted{{{kAllRanks, "t0"}, DataType::int32, tensor.shape, 0, count}};
  EXPECT_THAT(refusal_of([&] { return plan_reads(world.manifest, wanted); }),
              HasSubstr("elements 0 and on of tensor t0 are missing"));
}

Offer offer(std::uint64_t step, Source source, std::vector<std::size_t> parts, std::size_t part_count = 2) {
  return {{kId.round, step}, source, part_count, 1, std::move(parts), "place", "", true};
}

TEST(Candidates, AreTheNewestFirstAndMemoryBeforeDisk) {
  const std::vector<std::vector<Offer>> offers{
      {offer(1, Source::parts, {0, 1}), offer(2, Source::parts, {0})},
      {offer(2, Source::memory, {0, 1}), offer(2, Source::parts, {1}), offer(3, Source::memory, {0})}};
  std::string text;
  for (const Candidate& each : candidates_of(offers)) {
    text += std::to_string(each.id.step) + (each.source == Source::memory ? "m" : "d");
    for (const int provider : each.providers) text += " " + std::to_string(provider);
    text += each.problem.empty() ? "; " : " (" + each.problem + "); ";
  }
  EXPECT_EQ(text, "3m 1 (no rank has the part of rank 1 of 2); 2m 1 1; 2d 0 1; 1d 0 0; ");
}

TEST(Candidates, PartsOfTwoCheckpointsOfOneIdAreNeverMixed) {
  Offer other = offer(1, Source::memory, {1});
  other.manifest_checksum = 2;
  std::string text;
  for (const Candidate& each : candidates_of({{offer(1, Source::memory, {0})}, {other}})) text += each.problem + "; ";
  EXPECT_EQ(text, "no rank has the part of rank 1 of 2; no rank has the part of rank 0 of 2; ");
}

TEST(Candidates, AreNotCompleteIfAManifestIsMissingOnSomeRank) {
  Offer unfinished = offer(1, Source::parts, {}, 0);
  unfinished.manifest_checksum = 0;
  unfinished.is_complete = false;
  for (const Candidate& each : candidates_of({{offer(1, Source::parts, {0})}, {unfinished}})) {
    EXPECT_FALSE(each.is_complete) << each.problem;
  }
}

TEST(Candidates, OffersKeepTheirFieldsOnTheWay) {
  Offer sent = offer(7, Source::single, {0, 1, 2, 5, 7, 8}, 9);
  sent.problem = "a \"problem\"";
  sent.is_complete = false;
  const Offer got = parse_offers(encode({sent})).at(0);
  EXPECT_EQ(got.id, sent.id);
  EXPECT_EQ(got.source, sent.source);
  EXPECT_EQ(got.part_count, sent.part_count);
  EXPECT_EQ(got.manifest_checksum, sent.manifest_checksum);
  EXPECT_EQ(got.parts, sent.parts);
  EXPECT_EQ(got.place, sent.place);
  EXPECT_EQ(got.problem, sent.problem);
  EXPECT_EQ(got.is_complete, sent.is_complete);
}

std::string steps_of(const CheckpointMemory::Impl& memory) {
  std::string text;
  for (const HeldCheckpoint& each : memory.held()) text += std::to_string(each.manifest.id.step) + " ";
  return text;
}

TEST(CheckpointMemory, MakesRoomByTheOldestAlsoIfThatCameLast) {
  CheckpointMemory::Impl memory;
  const auto keep = [&](std::uint64_t step) { memory.keep({{{kId.round, step}, {}, {}, 1}, {}}); };
  keep(2), keep(3), keep(1), keep(3);
  EXPECT_EQ(steps_of(memory), "1 2 3 ");
  memory.make_room();
  EXPECT_EQ(steps_of(memory), "3 ");
}

TEST(CheckpointMemory, ACheckpointOfWhichPartsAreLostDoesNotOutliveTheWholeOne) {
  CheckpointMemory::Impl memory;
  memory.keep({{{kId.round, 1}, {}, {}, 1}, {}});
  memory.keep({{{kId.round, 2}, {}, {}, 1}, {}});  // on this rank only
  memory.keep_only(CheckpointId{kId.round, 1});
  memory.make_room();
  EXPECT_EQ(steps_of(memory), "1 ");
  memory.keep_only({});
  EXPECT_EQ(steps_of(memory), "");
}

TEST(CopyHolders, AreOnAnotherHostWhereThereIsOne) {
  EXPECT_THAT(copy_holders({0}), ElementsAre(0));
  EXPECT_THAT(copy_holders({0, 0, 0}), ElementsAre(1, 2, 0));
  EXPECT_THAT(copy_holders({0, 0, 1, 1}), ElementsAre(2, 3, 0, 1));
  EXPECT_THAT(copy_holders({0, 0, 0, 1}), ElementsAre(3, 0, 1, 2)) << "one host has more than half";
  for (const std::vector<int>& hosts :
       {std::vector{0, 1, 0, 1}, {0, 0, 0, 1, 1, 1, 2, 2, 2}, {0, 0, 0, 1, 1, 2}, {0, 1, 2, 3}}) {
    const std::vector<int> holders = copy_holders(hosts);
    std::vector<int> sorted = holders;
    std::sort(sorted.begin(), sorted.end());
    for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
      EXPECT_EQ(sorted[rank], static_cast<int>(rank)) << "each rank keeps one copy";
      EXPECT_NE(hosts[rank], hosts[static_cast<std::size_t>(holders[rank])]);
    }
  }
}

}  // namespace
}  // namespace ddp::checkpoint
