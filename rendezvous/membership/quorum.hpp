// Which part of a round's nodes may go on where some of them fell silent. Two sides that a network keeps apart can't
// both be that, whichever of them begin their membership anew.
//
// The greater part of a set of nodes: more than half of those whose end is not proven, or just half with the lowest
// group rank among them. It has to be that of the current round; and, while not every member has started that one, of
// the last round that all had started too: the others may not have heard of the newer one and reckon with the older.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "rendezvous/membership/rank_set.hpp"

namespace ddp::rendezvous {

class Quorum {
 public:
  // A round begins with these members, group rank to node key, all of which are here.
  void begin(const std::map<int, std::string>& members);

  // A round that another membership began: its members are silent until they come. The one of `lost` is not expected.
  // Once all have come it is established.
  void adopt(int group_world_size, std::optional<int> lost);
  void seat(int group_rank, const std::string& node_key);  // one of them comes
  void end(int group_rank, const std::string& node_key);   // one of them has ended for certain; its key may be unknown

  // A member has started the round. Returns whether it was the last one to do so: the round is established.
  bool start(const std::string& node_key);
  void establish() { current_.is_established = true; }

  void come(const std::string& node_key);
  void leave(const std::string& node_key, bool is_end_proven);

  bool is_greater_part_here() const { return is_greater_part_without({}); }
  // The same if these, which are here, are to have no part in the next round.
  bool is_greater_part_without(const std::set<std::string>& node_keys) const;
  bool is_established() const { return current_.is_established; }
  bool knows(const std::string& node_key) const;
  int silent_count() const;  // of the round in question that has more of them
  // No node of the last round that ran is here, and some may still run: what its workers have kept is with them alone.
  bool are_all_away() const;

 private:
  enum class Standing { here, gone, silent };
  struct Member {
    int group_rank = 0;
    Standing standing = Standing::here;
    bool has_started = false;
  };
  struct RoundMembers {
    std::map<std::string, Member> members;  // by node key
    RankSet unheard;                        // group ranks of an adopted round whose nodes have not come yet
    std::optional<int> lost;
    int unstarted = 0;
    bool is_adopted = false, is_established = false;
  };
  struct Count {
    int here = 0, silent = 0;
    std::optional<int> lowest_here, lowest_silent;  // group ranks
    bool is_greater_part() const;
  };

  static Count count(const RoundMembers& round, const std::set<std::string>& without = {});
  static void set(RoundMembers& round, const std::string& node_key, Standing standing);

  RoundMembers current_, established_;  // the last established one before the current
};

}  // namespace ddp::rendezvous
