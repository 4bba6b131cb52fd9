#include "worker_runtime/sampler/share.hpp"

#include "ddp/error.hpp"

namespace ddp::sampler {

void refuse(const Share& share, const std::string& what, const std::string& advice) {
  throw InvalidArgument(what + "\nwhere: " + share.sampler + " of rank " + std::to_string(share.rank) +
                        "\ntry:   " + advice);
}

void check_ranks(const Share& share) {
  if (share.replicas < 1) refuse(share, std::to_string(share.replicas) + " replicas", "replicas = world.size()");
  if (share.rank < 0 || share.rank >= share.replicas) {
    refuse(share,
           "rank " + std::to_string(share.rank) + " is not one of " + std::to_string(share.replicas) + " replicas",
           "rank = world.rank() and replicas = world.size()");
  }
}

void check_sample_count(const Share& share, std::uint64_t count) {
  if (count >= 1 && count <= kSampleCountMax) return;
  refuse(share, "a data set of " + std::to_string(count) + " samples", "a count above 0");
}

void check_position(const Share& share, const SamplerPosition& own, const SamplerPosition& given) {
  const auto differs = [&](const char* what, std::uint64_t of_given, std::uint64_t of_own, const char* advice) {
    refuse(share,
           "a position of " + std::string(what) + " " + std::to_string(of_given) + ", but the sampler has " +
               std::to_string(of_own),
           advice);
  };
  if (given.sample_count != own.sample_count) {
    differs("sample count", given.sample_count, own.sample_count,
            "the data set that the position was taken of, or start() of this sampler");
  }
  if (given.seed != own.seed) {
    differs("seed", given.seed, own.seed, "the seed that the position was taken with");
  }
  if (given.order != own.order) {
    refuse(share, "a position of another sampler, or of one with other options",
           "the kind of sampler and the options (shuffle, weights, chunks) that the position was taken with");
  }
  if (given.taken > given.sample_count) {
    refuse(share,
           "a position after " + std::to_string(given.taken) + " of " + std::to_string(given.sample_count) + " samples",
           "the position as start() and after() gave it");
  }
}

std::size_t size_of_share(std::uint64_t rest, const Share& share) {
  const auto replicas = static_cast<std::uint64_t>(share.replicas);
  const std::uint64_t left_over = rest % replicas;
  const bool has_one_more = (share.tail == Tail::pad && left_over != 0) ||
                            (share.tail == Tail::uneven && static_cast<std::uint64_t>(share.rank) < left_over);
  return rest / replicas + (has_one_more ? 1 : 0);
}

SamplerPosition position_after(const Share& share, SamplerPosition position, std::size_t count) {
  const std::uint64_t rest = position.sample_count - position.taken;
  const auto replicas = static_cast<std::uint64_t>(share.replicas);
  position.taken += count > rest / replicas ? rest : count * replicas;
  return position;
}

}  // namespace ddp::sampler
