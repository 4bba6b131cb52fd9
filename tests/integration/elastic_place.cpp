#include "tests/integration/elastic_place.hpp"

namespace ddp::test {

const ElasticPlace& elastic_place() {
  static const ElasticPlace place{DDP_ELASTIC_WORKER, DDP_ELASTIC_KILLS, DDP_ELASTIC_TIMEOUT_MS};
  return place;
}

}  // namespace ddp::test
