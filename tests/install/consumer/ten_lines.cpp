#include <ddp/ddp.hpp>

#include <iostream>

int main() {
  auto world = ddp::init_process_group();
  std::vector<float> value{static_cast<float>(world.rank() + 1)};
  world.all_reduce(value);
  if (world.rank() == 0) std::cout << world.size() << " ranks, sum " << value[0] << std::endl;
}
