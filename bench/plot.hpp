// Speedup over the number of ranks, as an SVG picture. Pure.
#pragma once

#include <string>
#include <vector>

namespace ddp::bench {

struct PlotPoint {
  int ranks = 1;
  double speedup = 1;
};

// points: at least one, by rising ranks. subtitle: plain ASCII without <, > and &.
std::string speedup_plot(const std::vector<PlotPoint>& points, const std::string& subtitle);

}  // namespace ddp::bench
