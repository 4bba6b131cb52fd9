#include "launcher/remote/host_reports.hpp"

#include <algorithm>

#include "launcher/output/report_pipe.hpp"

namespace ddp::launcher {

void HostReports::add(std::size_t host, std::string_view text) {
  text = text.substr(0, kReportBytesMax);
  if (text.empty() || !hosts_.insert(host).second) return;
  const auto is_equal = [text](const Report& other) { return other.text == text; };
  if (std::none_of(reports_.begin(), reports_.end(), is_equal)) reports_.push_back({host, std::string(text)});
}

std::vector<HostReports::Report> HostReports::take_new() {
  std::vector<Report> out(reports_.begin() + static_cast<std::ptrdiff_t>(taken_), reports_.end());
  taken_ = reports_.size();
  return out;
}

}  // namespace ddp::launcher
