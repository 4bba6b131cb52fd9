/* A program in C11 over ddp/ddp.h: c_interface_worker PART [DIRECTORY]. It ends with 0 if all was as expected, else it
   says what was not, and ends with 1. c_interface_test.cpp runs it. */
#define _POSIX_C_SOURCE 200809L

#include <ddp/ddp.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                             \
  do {                                                                                               \
    if (!(condition)) {                                                                              \
      fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #condition, ddp_last_error()); \
      exit(1);                                                                                       \
    }                                                                                                \
  } while (false)
#define OK(call) CHECK((call) == DDP_OK)

/* The call returns this status, and its text says this. */
#define FAILS(status, text, call)                  \
  do {                                             \
    ddp_set_last_error("");                        \
    CHECK((call) == (status));                     \
    CHECK(strstr(ddp_last_error(), text) != NULL); \
  } while (false)

enum { kRanksMax = 8, kPatienceMs = 60000 };

static ddp_group_info info_of(ddp_group group) {
  ddp_group_info info = {.struct_size = sizeof info};
  OK(ddp_group_get_info(group, &info));
  return info;
}

static ddp_group world(void) {
  const ddp_init_options options = {.struct_size = sizeof options, .timeout_ms = kPatienceMs};
  ddp_group group = NULL;
  OK(ddp_init_process_group(NULL, &options, &group));
  return group;
}

/* 1 + 2 + ... + n */
static float sum_to(int n) { return (float)(n * (n + 1) / 2); }

/* Each collective twice: blocking, and with a work. */
static void end(ddp_work* work) {
  if (work == NULL) return;
  int32_t is_completed = 0;
  OK(ddp_work_wait(*work));
  OK(ddp_work_is_completed(*work, &is_completed));
  CHECK(is_completed == 1);
  int64_t duration_ns = -1;
  OK(ddp_work_duration(*work, &duration_ns));
  CHECK(duration_ns >= 0);
  OK(ddp_work_destroy(*work));
}

static void collectives_of(ddp_group group, ddp_work* work) {
  const ddp_group_info info = info_of(group);
  const int rank = info.rank, size = info.rank_count;
  const float mine = (float)(rank + 1);
  float all[kRanksMax] = {0}, one = mine, input[kRanksMax];

  OK(ddp_all_reduce(group, &one, 1, DDP_FLOAT32, DDP_SUM, NULL, work));
  end(work);
  CHECK(one == sum_to(size));

  one = mine;
  const ddp_collective_options twice = {.struct_size = sizeof twice, .factor = 2};
  OK(ddp_all_reduce(group, &one, 1, DDP_FLOAT32, DDP_PREMUL_SUM, &twice, work));
  end(work);
  CHECK(one == 2 * sum_to(size));

  /* A factor of 0 is one, too. */
  one = mine;
  const ddp_collective_options only_rank1 = {.struct_size = sizeof only_rank1, .factor = rank == 1 ? 1 : 0};
  OK(ddp_all_reduce(group, &one, 1, DDP_FLOAT32, DDP_PREMUL_SUM, &only_rank1, work));
  end(work);
  CHECK(one == 2);

  one = mine;
  OK(ddp_broadcast(group, &one, 1, DDP_FLOAT32, size - 1, NULL, work));
  end(work);
  CHECK(one == (float)size);

  OK(ddp_all_gather(group, &mine, all, 1, DDP_FLOAT32, NULL, work));
  end(work);
  for (int r = 0; r < size; ++r) CHECK(all[r] == (float)(r + 1));

  for (int r = 0; r < size; ++r) input[r] = mine * (float)(r + 1);
  OK(ddp_reduce_scatter(group, input, &one, 1, DDP_FLOAT32, DDP_SUM, NULL, work));
  end(work);
  CHECK(one == mine * sum_to(size));

  one = 0;
  OK(ddp_reduce(group, &mine, rank == 0 ? &one : NULL, 1, DDP_FLOAT32, DDP_MAX, 0, NULL, work));
  end(work);
  CHECK(one == (rank == 0 ? (float)size : 0));

  memset(all, 0, sizeof all);
  OK(ddp_gather(group, &mine, rank == 0 ? all : NULL, 1, DDP_FLOAT32, 0, NULL, work));
  end(work);
  for (int r = 0; r < size; ++r) CHECK(all[r] == (rank == 0 ? (float)(r + 1) : 0));

  for (int r = 0; r < size; ++r) input[r] = (float)(10 * r);
  OK(ddp_scatter(group, rank == 0 ? input : NULL, &one, 1, DDP_FLOAT32, 0, NULL, work));
  end(work);
  CHECK(one == (float)(10 * rank));

  for (int r = 0; r < size; ++r) input[r] = (float)(10 * rank + r);
  OK(ddp_all_to_all(group, input, all, 1, DDP_FLOAT32, NULL, work));
  end(work);
  for (int r = 0; r < size; ++r) CHECK(all[r] == (float)(10 * r + rank));

  OK(ddp_barrier(group, NULL, work));
  end(work);
}

/* Rank r has r + 1 elements, of value r + 1. */
static void uneven_collectives_of(ddp_group group, ddp_work* work) {
  const ddp_group_info info = info_of(group);
  const int rank = info.rank, size = info.rank_count;
  size_t counts[kRanksMax], same[kRanksMax];
  int32_t input[kRanksMax * kRanksMax], all[kRanksMax * kRanksMax];
  for (int r = 0; r < size; ++r) counts[r] = (size_t)r + 1;
  for (int r = 0; r < size; ++r) same[r] = (size_t)rank + 1;
  for (int i = 0; i < kRanksMax * kRanksMax; ++i) input[i] = rank + 1;

  OK(ddp_all_gather_v(group, input, all, counts, DDP_INT32, NULL, work));
  end(work);
  for (int r = 0, at = 0; r < size; ++r) {
    for (int i = 0; i <= r; ++i) CHECK(all[at++] == r + 1);
  }

  OK(ddp_reduce_scatter_v(group, input, all, counts, DDP_INT32, DDP_SUM, NULL, work));
  end(work);
  for (int i = 0; i <= rank; ++i) CHECK(all[i] == size * (size + 1) / 2);

  /* Rank a sends a + 1 elements to each, and gets r + 1 of each rank r. */
  OK(ddp_all_to_all_v(group, input, same, all, counts, DDP_INT32, NULL, work));
  end(work);
  for (int r = 0, at = 0; r < size; ++r) {
    for (int i = 0; i <= r; ++i) CHECK(all[at++] == r + 1);
  }
}

static void messages_of(ddp_group group) {
  const ddp_group_info info = info_of(group);
  const int64_t mine = info.rank;
  int64_t got = -1;
  int32_t source = -1;
  const ddp_collective_options tag = {.struct_size = sizeof tag, .tag = 7};
  if (info.rank == 1) OK(ddp_send(group, &mine, 1, DDP_INT64, 0, &tag, NULL));
  if (info.rank == 0) {
    OK(ddp_receive(group, &got, 1, DDP_INT64, 1, &tag, NULL));
    CHECK(got == 1);
  }
  if (info.rank == 1) OK(ddp_send(group, &mine, 1, DDP_INT64, 0, NULL, NULL));
  if (info.rank == 0) {
    ddp_work work = NULL;
    got = -1;
    OK(ddp_receive_from_any(group, &got, 1, DDP_INT64, &source, NULL, &work));
    end(&work);
    CHECK(got == 1 && source == 1);
  }
  OK(ddp_monitored_barrier(group, NULL));
}

/* To the next rank and from the one before, which only works if they begin as one. */
struct Exchange {
  ddp_group group;
  int32_t next, previous, sent, received;
  ddp_work works[2];
};

static ddp_status exchange(void* context) {
  struct Exchange* const with = context;
  const ddp_status status = ddp_send(with->group, &with->sent, 1, DDP_INT32, with->next, NULL, &with->works[0]);
  if (status != DDP_OK) return status;
  return ddp_receive(with->group, &with->received, 1, DDP_INT32, with->previous, NULL, &with->works[1]);
}

static ddp_status send_to_nobody(void* context) {
  struct Exchange* const with = context;
  return ddp_send(with->group, &with->sent, 1, DDP_INT32, 99, NULL, &with->works[0]);
}

static ddp_status just_fail(void* context) {
  (void)context;
  return DDP_ERROR;
}

static void coalesced_calls_of(ddp_group group) {
  const ddp_group_info info = info_of(group);
  struct Exchange with = {.group = group,
                          .next = (info.rank + 1) % info.rank_count,
                          .previous = (info.rank + info.rank_count - 1) % info.rank_count,
                          .sent = info.rank};
  OK(ddp_coalesce(group, exchange, &with, NULL, NULL));
  CHECK(with.received == with.previous);
  for (int i = 0; i < 2; ++i) OK(ddp_work_destroy(with.works[i]));

  FAILS(DDP_INVALID_ARGUMENT, "the peer is 99", ddp_coalesce(group, send_to_nobody, &with, NULL, NULL));
  FAILS(DDP_ERROR, "returned the status 11", ddp_coalesce(group, just_fail, NULL, NULL, NULL));
}

static void other_groups_of(ddp_group group) {
  const ddp_group_info info = info_of(group);
  ddp_group part = NULL;
  OK(ddp_group_split(group, info.rank == 0 ? -1 : 0, -info.rank, &part));
  CHECK((part == NULL) == (info.rank == 0));
  if (part != NULL) {
    CHECK(info_of(part).rank_count == info.rank_count - 1);
    CHECK(info_of(part).rank == info.rank_count - 1 - info.rank); /* the keys turn the order round */
    OK(ddp_group_destroy(part));
  }
  const int32_t ranks[] = {1, 0};
  OK(ddp_group_new(group, ranks, 2, &part));
  CHECK((part == NULL) == (info.rank > 1));
  if (part != NULL) {
    CHECK(info_of(part).rank == 1 - info.rank);
    OK(ddp_group_destroy(part));
  }
}

static void run_collectives(void) {
  ddp_group group = world();
  const ddp_group_info info = info_of(group);
  CHECK(info.rank == atoi(getenv("RANK")) && info.rank_count == atoi(getenv("WORLD_SIZE")));
  CHECK(info.local_rank == info.rank && info.local_rank_count == info.rank_count);
  CHECK(info.timeout_ms == kPatienceMs && info.is_on_gpu == 0);
  CHECK(strcmp(info.round, getenv("DDPRUN_ROUND_ID")) == 0);
  int32_t should_stop = -1;
  OK(ddp_group_should_stop(group, &should_stop));
  CHECK(should_stop == 0);
  ddp_work work = NULL;
  collectives_of(group, NULL);
  collectives_of(group, &work);
  uneven_collectives_of(group, NULL);
  uneven_collectives_of(group, &work);
  messages_of(group);
  coalesced_calls_of(group);
  other_groups_of(group);

  /* A work outlives the handle of its group. */
  float one = 1;
  OK(ddp_all_reduce(group, &one, 1, DDP_FLOAT32, DDP_SUM, NULL, &work));
  int32_t is_completed = 0;
  OK(ddp_work_wait_for(work, kPatienceMs, &is_completed));
  CHECK(is_completed == 1);
  OK(ddp_group_destroy(group));
  end(&work);
  CHECK(one == (float)info.rank_count);
}

static void run_wrong_input(void) {
  ddp_group group = NULL;
  float one = 1;
  ddp_work work = NULL;
  CHECK(strcmp(ddp_last_error(), "") == 0);
  CHECK(strncmp(ddp_version(), "0.", 2) == 0);

  FAILS(DDP_INVALID_ARGUMENT, "group is NULL", ddp_init_process_group(NULL, NULL, NULL));
  const ddp_init_options no_backend = {.struct_size = sizeof no_backend, .backend = "smoke signals"};
  FAILS(DDP_INVALID_ARGUMENT, "smoke signals", ddp_init_process_group(NULL, &no_backend, &group));
  const ddp_init_options no_size = {.struct_size = 0};
  FAILS(DDP_INVALID_ARGUMENT, "struct_size is 0", ddp_init_process_group(NULL, &no_size, &group));
  CHECK(group == NULL);
  const ddp_bootstrap no_ranks = {.struct_size = sizeof no_ranks};
  FAILS(DDP_INVALID_ARGUMENT, "a size of 0", ddp_init_process_group(&no_ranks, NULL, &group));
  const ddp_bootstrap half_local = {.struct_size = sizeof half_local, .rank_count = 1, .local_rank = 1};
  FAILS(DDP_INVALID_ARGUMENT, "local_rank_count is 0", ddp_init_process_group(&half_local, NULL, &group));

  /* A program of a newer version: its further fields may be 0, and only 0. */
  struct {
    ddp_init_options known;
    int64_t unknown;
  } newer = {.known = {.struct_size = sizeof newer}, .unknown = 1};
  FAILS(DDP_INVALID_ARGUMENT, "a field that libddp", ddp_init_process_group(NULL, &newer.known, &group));
  newer.unknown = 0;
  OK(ddp_init_process_group(NULL, &newer.known, &group));
  const ddp_group_info info = info_of(group);

  /* A program of an older version: what it has no room for is not written. */
  ddp_group_info older = {.struct_size = offsetof(ddp_group_info, local_rank), .local_rank = -7};
  OK(ddp_group_get_info(group, &older));
  CHECK(older.rank == info.rank && older.rank_count == info.rank_count && older.local_rank == -7);

  /* A struct that is filled may hold anything before. A field of a newer version becomes 0. */
  struct {
    ddp_group_info known;
    int64_t unknown;
  } filled;
  memset(&filled, 0xff, sizeof filled);
  filled.known.struct_size = sizeof filled;
  OK(ddp_group_get_info(group, &filled.known));
  CHECK(filled.known.struct_size == sizeof filled && filled.known.rank == info.rank && filled.unknown == 0);

  ddp_group none = NULL;
  const ddp_init_options reserved = {.struct_size = sizeof reserved, .reserved = 1};
  FAILS(DDP_INVALID_ARGUMENT, "a field that libddp", ddp_init_process_group(NULL, &reserved, &none));
  FAILS(DDP_INVALID_ARGUMENT, "without a factor",
        ddp_all_reduce(group, &one, 1, DDP_FLOAT32, DDP_PREMUL_SUM, NULL, NULL));

  FAILS(DDP_INVALID_ARGUMENT, "ddp_group is NULL", ddp_barrier(NULL, NULL, NULL));
  FAILS(DDP_INVALID_ARGUMENT, "info is NULL", ddp_group_get_info(group, NULL));
  FAILS(DDP_INVALID_ARGUMENT, "no ddp_data_type 256", ddp_all_reduce(group, &one, 1, 256, DDP_SUM, NULL, NULL));
  FAILS(DDP_INVALID_ARGUMENT, "no ddp_data_type -1", ddp_all_reduce(group, &one, 1, -1, DDP_SUM, NULL, NULL));
  FAILS(DDP_INVALID_ARGUMENT, "no ddp_reduce_op 6", ddp_all_reduce(group, &one, 1, DDP_FLOAT32, 6, NULL, NULL));
  FAILS(DDP_INVALID_ARGUMENT, "is null", ddp_all_reduce(group, NULL, 1, DDP_FLOAT32, DDP_SUM, NULL, NULL));
  FAILS(DDP_INVALID_ARGUMENT, "root is 99", ddp_broadcast(group, &one, 1, DDP_FLOAT32, 99, NULL, NULL));
  FAILS(DDP_INVALID_ARGUMENT, "larger than any memory",
        ddp_all_gather(group, &one, &one, SIZE_MAX / 2 + 1, DDP_INT8, NULL, NULL));
  FAILS(DDP_INVALID_ARGUMENT, "counts is NULL", ddp_all_gather_v(group, &one, &one, NULL, DDP_INT8, NULL, NULL));
  FAILS(DDP_INVALID_ARGUMENT, "source is NULL", ddp_receive_from_any(group, &one, 1, DDP_INT8, NULL, NULL, NULL));
  FAILS(DDP_INVALID_ARGUMENT, "calls is NULL", ddp_coalesce(group, NULL, NULL, NULL, NULL));
  const ddp_collective_options tag = {.struct_size = sizeof tag, .tag = 1};
  FAILS(DDP_INVALID_ARGUMENT, "a tag of 1", ddp_barrier(group, &tag, NULL));
  FAILS(DDP_INVALID_ARGUMENT, "ranks is NULL", ddp_group_new(group, NULL, 1, &group));
  FAILS(DDP_INVALID_ARGUMENT, "ddp_work is NULL", ddp_work_wait(work));
  CHECK(work == NULL);

  /* After all of this the group still works. */
  OK(ddp_all_reduce(group, &one, 1, DDP_FLOAT32, DDP_SUM, NULL, &work));
  FAILS(DDP_INVALID_ARGUMENT, "callback is NULL", ddp_work_on_completed(work, NULL, NULL));
  FAILS(DDP_INVALID_ARGUMENT, "is_completed is NULL", ddp_work_is_completed(work, NULL));
  end(&work);
  CHECK(one == (float)info.rank_count);

  FAILS(DDP_INVALID_ARGUMENT, "this ddp_work was destroyed", ddp_work_wait(work));
  FAILS(DDP_INVALID_ARGUMENT, "this ddp_work was destroyed", ddp_work_destroy(work));
  FAILS(DDP_INVALID_ARGUMENT, "or is no such handle", ddp_work_wait((ddp_work)(void*)group));
  OK(ddp_group_destroy(group));
  FAILS(DDP_INVALID_ARGUMENT, "this ddp_group was destroyed", ddp_group_destroy(group));
  FAILS(DDP_INVALID_ARGUMENT, "this ddp_group was destroyed", ddp_barrier(group, NULL, NULL));
}

/* --- Memory, models and checkpoints. */

static void run_memory(void) {
  ddp_group group = world();
  const ddp_group_info info = info_of(group);
  enum { kCount = 1000 };
  ddp_memory memory = NULL;
  void* data = NULL;
  OK(ddp_memory_allocate(group, kCount * sizeof(float), NULL, &memory, &data));
  float* const values = data;
  for (int i = 0; i < kCount; ++i) CHECK(values[i] == 0);
  for (int i = 0; i < kCount; ++i) values[i] = (float)(info.rank + 1);
  OK(ddp_all_reduce(group, values, kCount, DDP_FLOAT32, DDP_SUM, NULL, NULL));
  FAILS(DDP_INVALID_ARGUMENT, "0 bytes", ddp_memory_allocate(group, 0, NULL, &memory, &data));
  FAILS(DDP_INVALID_ARGUMENT, "data is NULL", ddp_memory_allocate(group, 1, NULL, &memory, NULL));
  const ddp_collective_options on_host = {.struct_size = sizeof on_host, .on_host = 1};
  FAILS(DDP_INVALID_ARGUMENT, "on_host is set", ddp_memory_allocate(group, 1, &on_host, &memory, &data));
  OK(ddp_group_destroy(group)); /* the memory outlives it */
  for (int i = 0; i < kCount; ++i) CHECK(values[i] == sum_to(info.rank_count));
  OK(ddp_memory_destroy(memory));
  FAILS(DDP_INVALID_ARGUMENT, "this ddp_memory was destroyed", ddp_memory_destroy(memory));
}

struct Parameters {
  float weight[2][3];
  float bias;
  ddp_tensor tensors[2];
};

static const int64_t weight_shape[] = {2, 3};

static void fill(struct Parameters* parameters, float value) {
  for (int i = 0; i < 6; ++i) parameters->weight[i / 3][i % 3] = value;
  parameters->bias = value;
  const ddp_tensor tensors[] = {
      {sizeof(ddp_tensor), "weight", weight_shape, 2, parameters->weight, DDP_FLOAT32, 0},
      {sizeof(ddp_tensor), "bias", NULL, 0, &parameters->bias, DDP_FLOAT32, 0},
  };
  memcpy(parameters->tensors, tensors, sizeof tensors);
}

/* Adds `value` to each gradient of a parameter, as backward would, and says that it is ready. */
static ddp_status give_gradient(ddp_model model, size_t index, float value) {
  void* data = NULL;
  size_t count = 0;
  const ddp_status status = ddp_model_gradient(model, index, &data, &count);
  if (status != DDP_OK) return status;
  for (size_t i = 0; i < count; ++i) ((float*)data)[i] += value;
  return ddp_model_ready(model, index);
}

static float gradient_of(ddp_model model, size_t index) {
  void* data = NULL;
  size_t count = 0;
  OK(ddp_model_gradient(model, index, &data, &count));
  CHECK(count == (index == 0 ? 6 : 1));
  return ((const float*)data)[count - 1];
}

struct Joined {
  ddp_model model;
  int steps;
  float gradient;
};

static void keep_gradient(void* context) {
  struct Joined* const joined = context;
  ++joined->steps;
  joined->gradient = gradient_of(joined->model, 0);
}

static void run_training(void) {
  ddp_group group = world();
  const ddp_group_info info = info_of(group);
  const int size = info.rank_count;
  const float mine = (float)(info.rank + 1), mean = sum_to(size) / (float)size;
  struct Parameters parameters;
  fill(&parameters, mine);
  const ddp_model_options options = {.struct_size = sizeof options, .uneven_inputs = DDP_UNEVEN_DIVIDE_BY_ALL};
  ddp_model model = NULL;
  OK(ddp_model_create(group, parameters.tensors, 2, &options, &model));
  CHECK(parameters.bias == 1 && parameters.weight[1][2] == 1); /* rank 0's */

  int32_t active = -1;
  OK(ddp_model_begin_step(model, 1));
  for (size_t i = 2; i-- > 0;) OK(give_gradient(model, i, mine));
  OK(ddp_model_finish(model, &active));
  CHECK(active == size);
  for (size_t i = 0; i < 2; ++i) CHECK(gradient_of(model, i) == mean);

  /* Two micro-batches. */
  OK(ddp_model_begin_step(model, 0));
  for (size_t i = 2; i-- > 0;) OK(give_gradient(model, i, mine));
  OK(ddp_model_finish(model, NULL));
  CHECK(gradient_of(model, 0) == mine);
  OK(ddp_model_begin_step(model, 1));
  for (size_t i = 2; i-- > 0;) OK(give_gradient(model, i, mine));
  OK(ddp_model_finish(model, NULL));
  CHECK(gradient_of(model, 0) == 2 * mean);

  /* What goes wrong in a step. */
  FAILS(DDP_GRADIENT_ERROR, "", ddp_model_ready(model, 0));
  OK(ddp_model_begin_step(model, 1));
  FAILS(DDP_GRADIENT_ERROR, "", ddp_model_begin_step(model, 1));
  FAILS(DDP_INVALID_ARGUMENT, "2", ddp_model_ready(model, 2));
  OK(ddp_model_ready(model, 1));
  FAILS(DDP_GRADIENT_ERROR, "bias", ddp_model_ready(model, 1));
  FAILS(DDP_GRADIENT_ERROR, "weight", ddp_model_finish(model, NULL)); /* unused */
  OK(ddp_model_begin_step(model, 1));
  OK(ddp_model_cancel_step(model));

  OK(ddp_model_set_frozen(model, 0, 1));
  OK(ddp_model_begin_step(model, 1));
  OK(give_gradient(model, 1, mine));
  OK(ddp_model_finish(model, NULL));
  CHECK(gradient_of(model, 0) == 0 && gradient_of(model, 1) == mean);
  OK(ddp_model_set_frozen(model, 0, 0));
  OK(ddp_model_rebuild_buckets(model));
  OK(ddp_model_check(model));
  int32_t is_unused = -1;
  FAILS(DDP_INVALID_ARGUMENT, "", ddp_model_is_unused(model, 0, &is_unused));

  /* Rank 0 has one step more than the others. */
  struct Joined joined = {.model = model};
  if (info.rank == 0) {
    OK(ddp_model_begin_step(model, 1));
    for (size_t i = 2; i-- > 0;) OK(give_gradient(model, i, 1));
    OK(ddp_model_finish(model, &active));
    CHECK(active == 1);
    CHECK(gradient_of(model, 0) == 1.0F / (float)size);
  }
  OK(ddp_model_join(model, keep_gradient, &joined));
  CHECK(joined.steps == (info.rank == 0 ? 0 : 1));
  CHECK(joined.gradient == (info.rank == 0 ? 0 : 1.0F / (float)size));
  OK(ddp_model_destroy(model));
  FAILS(DDP_INVALID_ARGUMENT, "this ddp_model was destroyed", ddp_model_begin_step(model, 1));
  OK(ddp_barrier(group, NULL, NULL));

  /* Buffers, and options that are wrong. */
  float running_mean = mine;
  const ddp_tensor buffer = {sizeof buffer, "running_mean", NULL, 0, &running_mean, DDP_FLOAT32, 0};
  ddp_model_options more = {.struct_size = sizeof more, .buffers = &buffer, .buffer_count = 1};
  OK(ddp_model_create(group, parameters.tensors, 2, &more, &model));
  CHECK(running_mean == 1);
  OK(ddp_model_destroy(model));
  more.buffer_sync = 3;
  FAILS(DDP_INVALID_ARGUMENT, "buffer_sync 3", ddp_model_create(group, parameters.tensors, 2, &more, &model));
  more.buffer_sync = DDP_BUFFERS_NONE;
  more.unused = 3;
  FAILS(DDP_INVALID_ARGUMENT, "no unused", ddp_model_create(group, parameters.tensors, 2, &more, &model));
  FAILS(DDP_INVALID_ARGUMENT, "without parameters", ddp_model_create(group, NULL, 0, NULL, &model));
  FAILS(DDP_INVALID_ARGUMENT, "is NULL", ddp_model_create(group, NULL, 1, NULL, &model));
  parameters.tensors[1].struct_size = sizeof(ddp_tensor) - 8;
  FAILS(DDP_INVALID_ARGUMENT, "ddp_tensor 1", ddp_model_create(group, parameters.tensors, 2, NULL, &model));
  fill(&parameters, mine);
  parameters.tensors[0].struct_size = sizeof(ddp_tensor) + 1;
  FAILS(DDP_INVALID_ARGUMENT, "at which no array", ddp_model_create(group, parameters.tensors, 2, NULL, &model));
  fill(&parameters, mine);
  parameters.tensors[0].name = NULL;
  FAILS(DDP_INVALID_ARGUMENT, "name", ddp_model_create(group, parameters.tensors, 2, NULL, &model));
  const int64_t negative[] = {-3};
  fill(&parameters, mine);
  parameters.tensors[0].shape = negative;
  parameters.tensors[0].dimensions = 1;
  FAILS(DDP_INVALID_ARGUMENT, "a dimension of -3", ddp_model_create(group, parameters.tensors, 2, NULL, &model));

  /* Models that differ. */
  fill(&parameters, mine);
  if (info.rank == 1) parameters.tensors[0].name = "wait";
  FAILS(DDP_MISMATCH, "wait", ddp_model_create(group, parameters.tensors, 2, NULL, &model));
  OK(ddp_group_destroy(group));
}

static const char* directory;

static void run_checkpoints(void) {
  ddp_group group = world();
  const ddp_group_info info = info_of(group);
  const float mine = (float)(info.rank + 1);
  struct Parameters parameters;
  fill(&parameters, 5);
  float own = 10 * mine;
  const ddp_tensor own_tensor = {sizeof own_tensor, "own", NULL, 0, &own, DDP_FLOAT32, 0};
  ddp_model model = NULL;
  OK(ddp_model_create(group, parameters.tensors, 2, NULL, &model));
  const ddp_checkpoint_options options = {.struct_size = sizeof options, .directory = directory};
  ddp_checkpoints checkpoints = NULL;
  OK(ddp_checkpoints_create(group, &options, &checkpoints));
  OK(ddp_checkpoints_add(checkpoints, parameters.tensors, 2));
  const ddp_tensor no_values = {sizeof no_values, "none", NULL, 0, NULL, DDP_FLOAT32, 0};
  FAILS(DDP_INVALID_ARGUMENT, "the values of a tensor is NULL", ddp_checkpoints_add_own(checkpoints, &no_values, 1));
  OK(ddp_checkpoints_add_own(checkpoints, &own_tensor, 1));
  OK(ddp_checkpoints_add_model(checkpoints, model));
  ddp_loaded_checkpoint loaded = {.struct_size = sizeof loaded};
  OK(ddp_checkpoints_load(checkpoints, &loaded));
  CHECK(loaded.is_found == 0);

  OK(ddp_checkpoints_save(checkpoints, 7));
  OK(ddp_checkpoints_wait(checkpoints));
  fill(&parameters, -1);
  own = -1;
  OK(ddp_checkpoints_load(checkpoints, &loaded));
  CHECK(loaded.is_found == 1 && loaded.step == 7 && loaded.rank_count == info.rank_count && loaded.has_own_state == 1);
  CHECK(strcmp(loaded.round, info.round) == 0);
  CHECK(parameters.bias == 5 && parameters.weight[0][1] == 5 && own == 10 * mine);

  OK(ddp_checkpoints_save(checkpoints, 7));
  FAILS(DDP_CHECKPOINT_ERROR, directory, ddp_checkpoints_wait(checkpoints)); /* it is there already */
  FAILS(DDP_INVALID_ARGUMENT, "loaded is NULL", ddp_checkpoints_load(checkpoints, NULL));
  OK(ddp_model_destroy(model));
  OK(ddp_group_destroy(group));
  OK(ddp_checkpoints_destroy(checkpoints));
  FAILS(DDP_INVALID_ARGUMENT, "this ddp_checkpoints was destroyed", ddp_checkpoints_save(checkpoints, 8));
}

/* --- Failures: the last rank ends in the middle, without a word. */

static ddp_status seen = -1;
static char seen_text[4096];

static void on_completed(void* context, ddp_status status) {
  snprintf(seen_text, sizeof seen_text, "%s", ddp_last_error());
  seen = status;
  (void)context;
}

static void run_rank_failure(void) {
  ddp_group group = world();
  const ddp_group_info info = info_of(group);
  OK(ddp_barrier(group, NULL, NULL));
  if (info.rank == info.rank_count - 1) _exit(0);
  float one = 1;
  ddp_work work = NULL;
  OK(ddp_all_reduce(group, &one, 1, DDP_FLOAT32, DDP_SUM, NULL, &work));
  FAILS(DDP_RANK_FAILURE, "rank", ddp_work_wait(work));
  int32_t ranks[kRanksMax] = {0};
  CHECK(ddp_last_error_ranks(NULL, 0) == 1);
  CHECK(ddp_last_error_ranks(ranks, kRanksMax) == 1 && ranks[0] == info.rank_count - 1);
  int64_t duration_ns = 0;
  OK(ddp_work_duration(work, &duration_ns));
  CHECK(duration_ns == -1);
  OK(ddp_work_on_completed(work, on_completed, NULL)); /* at once, on this thread */
  CHECK(seen == DDP_RANK_FAILURE && seen_text[0] != '\0');
  FAILS(DDP_ABORTED, "rank", ddp_barrier(group, NULL, NULL));
  OK(ddp_work_destroy(work));
  OK(ddp_group_destroy(group));
}

/* --- Elastic training: the last rank kills itself once, and its replacement goes on with what the others have. */

enum { kElasticSteps = 6, kStepOfDeath = 3 };

/* State that grows: it has the rank count of each committed step. */
struct History {
  int32_t steps[2 * kElasticSteps];
  int32_t step_count;
};

static struct {
  int64_t step, sum;
  struct History history, copies[2];
  int newest, fetched; /* indexes of copies; newest -1: none */
  int rounds, restores;
  ddp_elastic_state state;
} elastic = {.newest = -1, .fetched = -1};

static int older_copy(void) { return elastic.newest == 0 ? 1 : 0; }

static ddp_status commit_history(void* context) {
  CHECK(context == &elastic);
  const int older = older_copy();
  elastic.copies[older] = elastic.history;
  elastic.newest = older;
  return DDP_OK;
}

static ddp_status restore_history(void* context) {
  CHECK(context == &elastic && elastic.newest >= 0);
  elastic.history = elastic.copies[elastic.newest];
  ++elastic.restores;
  return DDP_OK;
}

static ddp_status fetch_history(void* context, ddp_group group, int32_t source) {
  CHECK(context == &elastic);
  const int own = elastic.newest >= 0 ? elastic.newest : older_copy();
  if (info_of(group).rank != source) {
    elastic.fetched = older_copy();
  } else {
    if (elastic.newest < 0) elastic.copies[own] = elastic.history;
    elastic.fetched = own;
  }
  struct History* const fetched = &elastic.copies[elastic.fetched];
  return ddp_broadcast(group, fetched, sizeof *fetched, DDP_UINT8, source, NULL, NULL);
}

static ddp_status adopt_history(void* context) {
  CHECK(context == &elastic);
  elastic.newest = elastic.fetched;
  elastic.history = elastic.copies[elastic.newest];
  return DDP_OK;
}

/* The address of the launcher's store is the same on all ranks, and in the environment of those that began now. */
static void check_launcher_store(ddp_group group, bool began_now) {
  ddp_launcher_store store = {.struct_size = sizeof store};
  OK(ddp_get_launcher_store(&store));
  CHECK(store.port != 0 && store.host[0] != '\0');
  int64_t lowest = store.port, highest = store.port;
  OK(ddp_all_reduce(group, &lowest, 1, DDP_INT64, DDP_MIN, NULL, NULL));
  OK(ddp_all_reduce(group, &highest, 1, DDP_INT64, DDP_MAX, NULL, NULL));
  CHECK(lowest == highest);
  if (began_now) CHECK((unsigned long)store.port == strtoul(getenv("MASTER_PORT"), NULL, 10));
}

/* Rank 0 makes no call of the group meanwhile, and still hears of the end of the round, in a group of its own too. What
   `train` returns after that is answered by the next round. */
static ddp_status wait_for_the_end_of_the_round(ddp_group group) {
  const ddp_bootstrap bootstrap = {.struct_size = sizeof bootstrap, .rank_count = 1, .name = "own", .parent = group};
  ddp_group own = NULL;
  OK(ddp_init_process_group(&bootstrap, NULL, &own));
  const struct timespec pause = {.tv_nsec = 1000000};
  ddp_status status = DDP_OK;
  for (int i = 0; i < kPatienceMs && status == DDP_OK; ++i) {
    nanosleep(&pause, NULL);
    status = ddp_group_check(own);
  }
  CHECK(status == DDP_ROUND_OVER);
  FAILS(DDP_ROUND_OVER, "rank", ddp_barrier(own, NULL, NULL));
  CHECK(ddp_group_check(group) == DDP_ROUND_OVER);
  OK(ddp_group_destroy(own));
  ddp_set_last_error("the disk is full");
  return DDP_STORE_ERROR;
}

static ddp_status train_elastic(void* context, ddp_group group) {
  CHECK(context == &elastic.rounds);
  const ddp_group_info info = info_of(group);
  const bool is_replacement = strcmp(getenv("TORCHELASTIC_RESTART_COUNT"), "0") != 0;
  const bool is_first_round = ++elastic.rounds == 1 && !is_replacement;
  check_launcher_store(group, elastic.rounds == 1);
  CHECK(elastic.step == (is_first_round ? 0 : kStepOfDeath));
  while (elastic.step < kElasticSteps) {
    elastic.history.steps[elastic.history.step_count++] = info.rank_count;
    if (is_first_round && elastic.step == kStepOfDeath && info.rank == info.rank_count - 1) raise(SIGKILL);
    int64_t one = elastic.step + 1;
    const bool only_waits = is_first_round && elastic.step == kStepOfDeath && info.rank == 0;
    const ddp_status status = only_waits ? wait_for_the_end_of_the_round(group)
                                         : ddp_all_reduce(group, &one, 1, DDP_INT64, DDP_SUM, NULL, NULL);
    if (status != DDP_OK) {
      elastic.sum = elastic.step = -1; /* what a step leaves that fails */
      return status;
    }
    elastic.sum += one;
    ++elastic.step;
    OK(ddp_elastic_state_commit(elastic.state));
    uint64_t commits = 0;
    OK(ddp_elastic_state_commits(elastic.state, &commits));
    CHECK(commits == (uint64_t)elastic.step);
  }
  CHECK(elastic.sum == (int64_t)info.rank_count * kElasticSteps * (kElasticSteps + 1) / 2);
  CHECK(elastic.history.step_count == kElasticSteps);
  for (int i = 0; i < kElasticSteps; ++i) CHECK(elastic.history.steps[i] == info.rank_count);
  CHECK(elastic.rounds == (is_replacement ? 1 : 2) && elastic.restores == elastic.rounds - 1);
  return DDP_OK;
}

static void run_elastic(void) {
  const ddp_elastic_contents contents = {.struct_size = sizeof contents,
                                         .context = &elastic,
                                         .commit = commit_history,
                                         .restore = restore_history,
                                         .fetch = fetch_history,
                                         .adopt = adopt_history};
  OK(ddp_elastic_state_create(&contents, &elastic.state));
  OK(ddp_elastic_state_add(elastic.state, &elastic.step, sizeof elastic.step));
  OK(ddp_elastic_state_add(elastic.state, &elastic.sum, sizeof elastic.sum));
  if (strcmp(getenv("RANK"), "0") != 0) elastic.sum = 77; /* all ranks begin with rank 0's */
  const ddp_init_options group = {.struct_size = sizeof group, .timeout_ms = kPatienceMs};
  const ddp_elastic_options options = {.struct_size = sizeof options, .group = &group, .seat_timeout_ms = kPatienceMs};
  OK(ddp_run_elastic(elastic.state, train_elastic, &elastic.rounds, &options));
  OK(ddp_elastic_state_destroy(elastic.state));
}

static ddp_status fail_in_training(void* context, ddp_group group) {
  OK(ddp_barrier(group, NULL, NULL));
  ddp_set_last_error("the data is on fire");
  return *(const ddp_status*)context;
}

static ddp_status fail_without_a_text(void* context, ddp_group group) {
  (void)context;
  (void)group;
  return DDP_ERROR;
}

static ddp_status fail_callback(void* context) {
  (void)context;
  ddp_set_last_error("no room");
  return DDP_OUT_OF_MEMORY;
}

static ddp_group kept;

static ddp_status keep_the_group(void* context, ddp_group group) {
  (void)context;
  kept = group;
  return DDP_OK;
}

/* What is no failure of the group is returned, and there is no further round. */
static void run_elastic_errors(void) {
  ddp_elastic_contents contents = {.struct_size = sizeof contents,
                                   .context = &elastic,
                                   .commit = fail_callback,
                                   .restore = restore_history,
                                   .fetch = fetch_history};
  ddp_elastic_state state = NULL;
  FAILS(DDP_INVALID_ARGUMENT, "a callback is NULL", ddp_elastic_state_create(&contents, &state));
  FAILS(DDP_INVALID_ARGUMENT, "state is NULL", ddp_elastic_state_create(NULL, NULL));
  contents.adopt = adopt_history;
  OK(ddp_elastic_state_create(&contents, &state));
  FAILS(DDP_OUT_OF_MEMORY, "no room", ddp_elastic_state_commit(state));
  FAILS(DDP_INVALID_ARGUMENT, "committed or synced already", ddp_elastic_state_add(state, &state, sizeof state));
  uint64_t commits = 1;
  OK(ddp_elastic_state_commits(state, &commits));
  CHECK(commits == 0);
  FAILS(DDP_INVALID_ARGUMENT, "train is NULL", ddp_run_elastic(state, NULL, NULL, NULL));
  const ddp_status statuses[] = {DDP_ERROR, DDP_GRADIENT_ERROR, DDP_INVALID_ARGUMENT};
  for (size_t i = 0; i < sizeof statuses / sizeof *statuses; ++i) {
    ddp_status status = statuses[i];
    FAILS(statuses[i], "the data is on fire", ddp_run_elastic(state, fail_in_training, &status, NULL));
  }
  FAILS(DDP_ERROR, "train returned the status 11", ddp_run_elastic(state, fail_without_a_text, NULL, NULL));
  OK(ddp_elastic_state_destroy(state));
  FAILS(DDP_INVALID_ARGUMENT, "ddp_elastic_state was destroyed", ddp_elastic_state_commit(state));

  OK(ddp_elastic_state_create(NULL, &state));
  OK(ddp_run_elastic(state, keep_the_group, NULL, NULL));
  FAILS(DDP_INVALID_ARGUMENT, "ddp_group was destroyed", ddp_barrier(kept, NULL, NULL));
  OK(ddp_elastic_state_destroy(state));
}

static void run_stop(void) {
  ddp_group group = world();
  int32_t should_stop = 0, calls = 0, last = 0;
  while (should_stop == 0) {
    OK(ddp_group_should_stop(group, &should_stop));
    if (calls++ == 0) fprintf(stderr, "trains\n");
    last = calls;
    OK(ddp_all_reduce(group, &last, 1, DDP_INT32, DDP_MAX, NULL, NULL));
    CHECK(last == calls);
  }
  FAILS(DDP_INVALID_ARGUMENT, "should_stop is NULL", ddp_group_should_stop(group, NULL));
  OK(ddp_group_destroy(group));
}

/* What the parent made is refused, and what the child makes works. */
static void run_child(ddp_group group, ddp_work work, ddp_model model, ddp_checkpoints checkpoints) {
  const char* const refusal = "of the parent of this forked child";
  FAILS(DDP_INVALID_ARGUMENT, refusal, ddp_barrier(group, NULL, NULL));
  FAILS(DDP_INVALID_ARGUMENT, refusal, ddp_group_abort(group, "never"));
  FAILS(DDP_INVALID_ARGUMENT, refusal, ddp_work_wait(work));
  FAILS(DDP_INVALID_ARGUMENT, refusal, ddp_model_begin_step(model, 1));
  FAILS(DDP_INVALID_ARGUMENT, refusal, ddp_checkpoints_save(checkpoints, 1));
  FAILS(DDP_INVALID_ARGUMENT, refusal, ddp_checkpoints_wait(checkpoints));
  FAILS(DDP_INVALID_ARGUMENT, refusal, ddp_checkpoints_destroy(checkpoints));
  FAILS(DDP_INVALID_ARGUMENT, refusal, ddp_group_destroy(group));
  const ddp_bootstrap alone = {.struct_size = sizeof alone, .rank_count = 1, .name = "child"};
  ddp_group own = NULL;
  OK(ddp_init_process_group(&alone, NULL, &own));
  OK(ddp_barrier(own, NULL, NULL));
  FAILS(DDP_INVALID_ARGUMENT, "or is no such handle", ddp_work_wait((ddp_work)(void*)own));
  OK(ddp_group_destroy(own));
}

static void run_fork(void) {
  ddp_group group = world();
  float one = 1;
  ddp_work work = NULL;
  OK(ddp_all_reduce(group, &one, 1, DDP_FLOAT32, DDP_SUM, NULL, &work));
  struct Parameters parameters;
  fill(&parameters, 1);
  ddp_model model = NULL;
  OK(ddp_model_create(group, parameters.tensors, 2, NULL, &model));
  const ddp_checkpoint_options options = {.struct_size = sizeof options, .directory = directory};
  ddp_checkpoints checkpoints = NULL;
  OK(ddp_checkpoints_create(group, &options, &checkpoints));
  OK(ddp_checkpoints_add(checkpoints, parameters.tensors, 2));
  const pid_t child = fork();
  if (child == 0) {
    run_child(group, work, model, checkpoints);
    _exit(0);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  end(&work);
  OK(ddp_checkpoints_save(checkpoints, 1));
  OK(ddp_checkpoints_destroy(checkpoints));
  OK(ddp_model_destroy(model));
  OK(ddp_barrier(group, NULL, NULL));
  OK(ddp_group_destroy(group));
}

/* exit() destroys the thread's objects, and then runs these handlers. */
static void fail_at_exit(void) {
  FAILS(DDP_INVALID_ARGUMENT, "ddp_group is NULL", ddp_barrier(NULL, NULL, NULL));
  CHECK(ddp_last_error_ranks(NULL, 0) == 0);
  printf("at exit: as expected\n");
}

static void run_exit(void) {
  CHECK(atexit(fail_at_exit) == 0);
  FAILS(DDP_INVALID_ARGUMENT, "ddp_group is NULL", ddp_barrier(NULL, NULL, NULL));
}

static void run_abort(void) {
  ddp_group group = world();
  OK(ddp_barrier(group, NULL, NULL));
  OK(ddp_group_check(group));
  OK(ddp_group_abort(group, "the moon is wrong"));
  FAILS(DDP_ABORTED, "the process group was aborted", ddp_group_check(group));
  FAILS(DDP_ABORTED, "the moon is wrong", ddp_barrier(group, NULL, NULL));
  OK(ddp_group_destroy(group));
}

/* --- Ranks that are threads of this process, and meet in a store of callbacks. */

enum { kKeysMax = 64, kThreads = 3 };

struct Store {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  struct {
    char* key;
    char* value;
    size_t bytes;
  } entries[kKeysMax];
};

static int find(struct Store* store, const char* key) {
  int at = 0;
  while (at < kKeysMax && (store->entries[at].key == NULL || strcmp(store->entries[at].key, key) != 0)) ++at;
  return at;
}

static void put(struct Store* store, const char* key, const void* value, size_t bytes) {
  int at = find(store, key);
  for (int i = 0; at == kKeysMax; ++i) {
    CHECK(i < kKeysMax);
    if (store->entries[i].key == NULL) at = i;
  }
  free(store->entries[at].key);
  free(store->entries[at].value);
  store->entries[at].key = strdup(key);
  store->entries[at].value = malloc(bytes + 1);
  memcpy(store->entries[at].value, value, bytes);
  store->entries[at].value[bytes] = '\0';
  store->entries[at].bytes = bytes;
  pthread_cond_broadcast(&store->changed);
}

static ddp_status wait_locked(struct Store* store, const char* key, int64_t timeout_ms) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += (time_t)(timeout_ms / 1000);
  until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
  if (until.tv_nsec >= 1000000000) {
    ++until.tv_sec;
    until.tv_nsec -= 1000000000;
  }
  while (find(store, key) == kKeysMax) {
    if (pthread_cond_timedwait(&store->changed, &store->mutex, &until) == 0) continue;
    ddp_set_last_error("no such key in time");
    return DDP_TIMEOUT;
  }
  return DDP_OK;
}

static ddp_status store_set(void* context, const char* key, const void* value, size_t bytes, int64_t timeout_ms) {
  (void)timeout_ms;
  struct Store* const store = context;
  pthread_mutex_lock(&store->mutex);
  put(store, key, value, bytes);
  pthread_mutex_unlock(&store->mutex);
  return DDP_OK;
}

static ddp_status store_get(void* context, const char* key, void* value, size_t capacity, size_t* bytes,
                            int64_t timeout_ms) {
  struct Store* const store = context;
  pthread_mutex_lock(&store->mutex);
  const ddp_status status = wait_locked(store, key, timeout_ms);
  if (status == DDP_OK) {
    const int at = find(store, key);
    *bytes = store->entries[at].bytes;
    CHECK(*bytes <= capacity);
    memcpy(value, store->entries[at].value, *bytes);
  }
  pthread_mutex_unlock(&store->mutex);
  return status;
}

static ddp_status store_add(void* context, const char* key, int64_t delta, int64_t* sum, int64_t timeout_ms) {
  (void)timeout_ms;
  struct Store* const store = context;
  pthread_mutex_lock(&store->mutex);
  const int at = find(store, key);
  char text[32];
  *sum = delta + (at < kKeysMax ? atoll(store->entries[at].value) : 0);
  put(store, key, text, (size_t)snprintf(text, sizeof text, "%lld", (long long)*sum));
  pthread_mutex_unlock(&store->mutex);
  return DDP_OK;
}

static ddp_status store_wait(void* context, const char* const* keys, size_t key_count, int64_t timeout_ms) {
  struct Store* const store = context;
  ddp_status status = DDP_OK;
  pthread_mutex_lock(&store->mutex);
  for (size_t i = 0; i < key_count && status == DDP_OK; ++i) status = wait_locked(store, keys[i], timeout_ms);
  pthread_mutex_unlock(&store->mutex);
  return status;
}

static ddp_status store_remove(void* context, const char* key, int64_t timeout_ms) {
  (void)timeout_ms;
  struct Store* const store = context;
  pthread_mutex_lock(&store->mutex);
  const int at = find(store, key);
  if (at < kKeysMax) {
    free(store->entries[at].key);
    free(store->entries[at].value);
    store->entries[at].key = store->entries[at].value = NULL;
  }
  pthread_mutex_unlock(&store->mutex);
  return DDP_OK;
}

static struct Store the_store = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, {{NULL, NULL, 0}}};
static const ddp_store callbacks = {
    .struct_size = sizeof callbacks,
    .context = &the_store,
    .set = store_set,
    .get = store_get,
    .add = store_add,
    .wait = store_wait,
    .remove = store_remove,
};

static pthread_barrier_t rank0_has_aborted;

struct Call {
  ddp_group group;
  ddp_status status;
};

/* The other ranks never call it. */
static void* call_alone(void* context) {
  struct Call* const call = context;
  float one = 1;
  call->status = ddp_all_reduce(call->group, &one, 1, DDP_FLOAT32, DDP_SUM, NULL, NULL);
  return NULL;
}

static void abort_on_rank0(ddp_group group) {
  if (info_of(group).rank == 0) {
    struct Call call = {.group = group, .status = DDP_OK};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, call_alone, &call) == 0);
    OK(ddp_group_abort(group, "enough"));
    pthread_join(thread, NULL);
    CHECK(call.status == DDP_ABORTED);
  }
  pthread_barrier_wait(&rank0_has_aborted);
  if (info_of(group).rank != 0) FAILS(DDP_RANK_FAILURE, "rank 0", ddp_barrier(group, NULL, NULL));
}

static void* rank_of_callbacks(void* rank) {
  const ddp_init_options options = {.struct_size = sizeof options, .timeout_ms = kPatienceMs};
  const ddp_bootstrap bootstrap = {.struct_size = sizeof bootstrap,
                                   .rank = *(const int*)rank,
                                   .rank_count = kThreads,
                                   .store = &callbacks,
                                   .name = "threads"};
  ddp_group group = NULL;
  OK(ddp_init_process_group(&bootstrap, &options, &group));
  CHECK(info_of(group).rank == *(const int*)rank && info_of(group).rank_count == kThreads);
  collectives_of(group, NULL);
  abort_on_rank0(group);
  OK(ddp_group_destroy(group));
  return NULL;
}

static void run_callback_store(void) {
  pthread_t threads[kThreads];
  int ranks[kThreads];
  CHECK(pthread_barrier_init(&rank0_has_aborted, NULL, kThreads) == 0);
  for (int i = 0; i < kThreads; ++i) {
    ranks[i] = i;
    CHECK(pthread_create(&threads[i], NULL, rank_of_callbacks, &ranks[i]) == 0);
  }
  for (int i = 0; i < kThreads; ++i) pthread_join(threads[i], NULL);

  /* Rank 1 never comes. */
  const ddp_init_options soon = {.struct_size = sizeof soon, .timeout_ms = 50};
  ddp_bootstrap alone = {.struct_size = sizeof alone, .rank_count = 2, .store = &callbacks, .name = "alone"};
  ddp_group group = NULL;
  FAILS(DDP_TIMEOUT, "", ddp_init_process_group(&alone, &soon, &group));
  CHECK(group == NULL);
}

static ddp_status refuse_set(void* context, const char* key, const void* value, size_t bytes, int64_t timeout_ms) {
  (void)key, (void)value, (void)bytes, (void)timeout_ms;
  ddp_set_last_error("the store is on fire");
  return *(const ddp_status*)context;
}

static void run_failing_store(void) {
  ddp_status status = DDP_STORE_ERROR;
  ddp_store failing = callbacks;
  failing.context = &status;
  failing.set = refuse_set;
  ddp_bootstrap bootstrap = {.struct_size = sizeof bootstrap, .rank_count = 2, .store = &failing, .name = "failing"};
  ddp_group group = NULL;
  FAILS(DDP_STORE_ERROR, "the store is on fire", ddp_init_process_group(&bootstrap, NULL, &group));
  status = DDP_TIMEOUT;
  FAILS(DDP_TIMEOUT, "the store is on fire", ddp_init_process_group(&bootstrap, NULL, &group));
  failing.set = NULL;
  FAILS(DDP_INVALID_ARGUMENT, "a callback is NULL", ddp_init_process_group(&bootstrap, NULL, &group));
}

int main(int argc, char** argv) {
  static const struct {
    const char* name;
    void (*run)(void);
  } parts[] = {{"collectives", run_collectives},
               {"wrong_input", run_wrong_input},
               {"rank_failure", run_rank_failure},
               {"abort", run_abort},
               {"elastic", run_elastic},
               {"elastic_errors", run_elastic_errors},
               {"stop", run_stop},
               {"fork", run_fork},
               {"exit", run_exit},
               {"memory", run_memory},
               {"training", run_training},
               {"checkpoints", run_checkpoints},
               {"callback_store", run_callback_store},
               {"failing_store", run_failing_store}};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; ++i) {
    if (argc < 2 || strcmp(argv[1], parts[i].name) != 0) continue;
    directory = argc > 2 ? argv[2] : ".";
    parts[i].run();
    const char* const rank = getenv("RANK");
    printf("%s: rank %s is as expected\n", argv[1], rank != NULL ? rank : "0");
    return 0;
  }
  fprintf(stderr, "error: no such part\n");
  return 2;
}
