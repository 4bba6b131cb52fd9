// A set of group ranks, a bit each: of a round of which somebody claims that it has many nodes.
//
// Threads: one caller at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace ddp::rendezvous {

class RankSet {
 public:
  RankSet() = default;
  // The ranks below `end`.
  static RankSet below(int end) {
    RankSet out;
    out.has_.assign(static_cast<std::size_t>(end), true);
    out.size_ = static_cast<std::size_t>(end);
    return out;
  }

  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  bool has(int rank) const { return rank >= 0 && static_cast<std::size_t>(rank) < has_.size() && has_[index(rank)]; }
  // Requires that it is not empty.
  int lowest() const { return static_cast<int>(std::find(has_.begin(), has_.end(), true) - has_.begin()); }
  // The lowest ones, at most `count_max`.
  std::vector<int> lowest(std::size_t count_max) const {
    std::vector<int> out;
    for (std::size_t i = 0; i < has_.size() && out.size() < count_max; ++i)
      if (has_[i]) out.push_back(static_cast<int>(i));
    return out;
  }

  // Returns whether it was there.
  bool erase(int rank) {
    if (!has(rank)) return false;
    has_[index(rank)] = false;
    --size_;
    return true;
  }
  void clear() { *this = {}; }

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

  std::vector<bool> has_;
  std::size_t size_ = 0;
};

}  // namespace ddp::rendezvous
