#include "worker_runtime/engine/faults.hpp"

#include "worker_runtime/engine/fault_reports.hpp"
#include "worker_runtime/process_group/all_gather_words.hpp"

namespace ddp::gradient_engine {
namespace {

std::string where_of(const FaultyWindow& window) {
  return "\nwhere: DistributedDataParallel::Step::finish, step " + std::to_string(window.number) + "; " +
         (window.is_last ? "the last step's" : "this step's") + " gradients are undefined on every rank\ntry:   ";
}

}  // namespace

void tell(ProcessGroup& group, CollectiveOptions options, const std::vector<std::string>& names,
          const FindUnused& action) {
  const auto bitmaps = process_group::all_gather_words(group, to_bitmap(action.missing, names.size()),
                                                       process_group::Within::unused_check, options);
  throw GradientError(describe_unused(names, bitmaps, group.size()) + where_of(action.window) +
                      "call ready() for it on every rank, with zeros (what begin_step leaves) where a rank did "
                      "not use it; set the option unused; or leave it out of the model on all ranks");
}

void tell(ProcessGroup& group, CollectiveOptions options, const std::vector<std::string>& names,
          const FindMiscounts& action) {
  const auto words =
      process_group::all_gather_words(group, miscount_words(action.own), process_group::Within::unused_check, options);
  throw GradientError(describe_miscounts(names, words, group.size()) + where_of(action.window) +
                      "leave the option static_graph off if steps differ; or call ready() equally often in every step");
}

void tell(ProcessGroup& group, CollectiveOptions options, const std::vector<std::string>& names,
          const FindNonFinite& action) {
  const auto bitmaps = process_group::all_gather_words(group, to_bitmap(action.parameters, names.size()),
                                                       process_group::Within::unused_check, options);
  throw GradientError(describe_non_finite(names, bitmaps, group.size()) + where_of(action.window) +
                      "leave the optimizer's step out on every rank; lower the learning rate or the loss's scale if it "
                      "happens again");
}

void tell(ProcessGroup& group, CollectiveOptions options, const std::vector<std::string>& names,
          const FindFrozen& action) {
  std::vector<std::size_t> frozen;
  for (std::size_t parameter = 0; parameter < action.own.size(); ++parameter) {
    if (action.own[parameter]) frozen.push_back(parameter);
  }
  const auto bitmaps = process_group::all_gather_words(group, to_bitmap(frozen, names.size()),
                                                       process_group::Within::unused_check, options);
  throw FrozenMismatch(describe_frozen(names, bitmaps, group.size()) + where_of(action.window) +
                       "call set_frozen() with the same arguments on every rank, between the same steps");
}

void tell(ProcessGroup&, CollectiveOptions, const std::vector<std::string>&, const TellCancelled& action) {
  throw GradientError("rank " + std::to_string(action.rank) + " cancelled the step" + where_of(action.window) +
                      "see what that rank says; the next begin_step() starts anew");
}

}  // namespace ddp::gradient_engine
