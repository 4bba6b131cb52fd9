#include "base/bounded_output.hpp"

#include <algorithm>

namespace ddp::base {

void BoundedOutput::push(std::string_view bytes) {
  if (bytes.empty()) return;
  if (dropped_lines_ > 0 || front().size() + bytes.size() > bytes_max_) {
    dropped_lines_ += std::max<std::size_t>(1, static_cast<std::size_t>(std::count(bytes.begin(), bytes.end(), '\n')));
    return;
  }
  queue_ += bytes;
  mid_line_ = bytes.back() != '\n';
}

void BoundedOutput::push_always(std::string_view bytes) {
  if (bytes.empty()) return;
  if (dropped_lines_ > 0) tell_dropped();
  queue_ += bytes;
  mid_line_ = bytes.back() != '\n';
}

void BoundedOutput::pop(std::size_t bytes) {
  written_ += bytes;
  if (written_ == queue_.size()) {
    queue_.clear();
    written_ = 0;
  } else if (written_ > queue_.size() / 2) {
    queue_.erase(0, written_);
    written_ = 0;
  }
  if (dropped_lines_ > 0 && front().size() <= bytes_max_ / 2) tell_dropped();
}

void BoundedOutput::tell_dropped() {
  if (mid_line_) queue_ += '\n';
  queue_ += program_ + ": dropped " + std::to_string(dropped_lines_) +
            " lines of output here, because they came faster than they were read\n";
  dropped_lines_ = 0;
  mid_line_ = false;
}

}  // namespace ddp::base
