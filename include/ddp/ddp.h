/* The C interface of libddp: process groups, collectives, data-parallel training, checkpoints. C11, no C++ needed.

     ddp_group world = NULL;
     if (ddp_init_process_group(NULL, NULL, &world) != DDP_OK) return fail(ddp_last_error());
     float loss = ...;
     if (ddp_all_reduce(world, &loss, 1, DDP_FLOAT32, DDP_AVERAGE, NULL, NULL) != DDP_OK) return fail(ddp_last_error());
     ddp_group_destroy(world);

   A whole program and more about errors, threads and ownership: docs/c_interface.md. The headers of the C++ interface
   say more about single calls: each function here is the call of the same name there.

   Errors:     each function returns a status. A call that returns another status than DDP_OK writes no handle and no
               number, and ddp_last_error() says what happened, where, and what to try. The tensors of a collective or
               a load that failed may hold anything. No exception leaves a function.
   Handles:    a handle is a number in the form of a pointer. The program never follows it. NULL is no handle. A handle
               is not used again after its destruction: a call with a destroyed handle, with NULL, or with a handle of
               another kind returns DDP_INVALID_ARGUMENT.
   Ownership:  the program destroys each handle that a function gave it, in any order: a work, memory, a model and
               checkpoints keep what they need of their group. Structs, arrays and texts that are passed to a call are
               read before it returns. The memory of tensors must stay valid and untouched as long as a work, a model
               or checkpoints use it.
   Structs:    struct_size is the size of the struct, set by the program. All else may be 0: a field that is 0 or NULL
               has its default. A later version may add fields at the end. Of a struct that a function fills, only
               struct_size is read: the function sets all other fields that the program has room for.
   Threads:    one thread at a time calls a group, and what was made of it. ddp_group_abort(), works and the
               destruction of a handle may be used by any thread. A call that runs while its handle is destroyed ends
               as it would have. A thread in a call must not be cancelled (pthread_cancel).
   Callbacks:  a callback must return to its caller: it must not call longjmp(), nor let a C++ exception pass.
   Fork:       a forked child has no part in what its parent made. Each call with a handle of the parent returns
               DDP_INVALID_ARGUMENT there. The child may make groups of its own. */
#ifndef DDP_DDP_H
#define DDP_DDP_H

#include <stddef.h>
#include <stdint.h>

/* Of a function that programs may use. */
#if defined(__GNUC__)
#define DDP_C_EXPORT __attribute__((visibility("default")))
#else
#define DDP_C_EXPORT
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* --- Errors ----------------------------------------------------------------------------------------------------- */

/* What each function returns: DDP_OK, or what went wrong. */
typedef int32_t ddp_status;
enum {
  DDP_OK = 0,               /* the call did what it promises */
  DDP_INVALID_ARGUMENT = 1, /* the call itself was wrong; nothing was begun, and the group stays usable */
  DDP_MISMATCH = 2,         /* ranks called different things */
  DDP_TIMEOUT = 3,          /* a deadline passed; ddp_last_error_ranks() has the ranks that were waited for */
  DDP_RANK_FAILURE = 4,     /* other ranks ended or left; ddp_last_error_ranks() has them */
  DDP_ABORTED = 5,          /* the group was given up, by ddp_group_abort() or by an earlier failure */
  DDP_ROUND_OVER = 6,       /* ddprun has ended the round of the group */
  DDP_GRADIENT_ERROR = 7,   /* a step went wrong: a parameter was unused, or was ready twice */
  DDP_CHECKPOINT_ERROR = 8, /* a checkpoint can't be written, or a file is not whole and valid */
  DDP_STORE_ERROR = 9,      /* the store can't be reached, broke off, or answered nonsense */
  DDP_OUT_OF_MEMORY = 10,   /* this process has no memory for the call itself */
  DDP_ERROR = 11            /* anything else */
};

/* The text of the last error on this thread, with what happened, where, and what to try; "" before the first one. It is
   valid until the next call on this thread that returns a status. */
DDP_C_EXPORT const char* ddp_last_error(void);

/* The ranks that the last error on this thread names (DDP_TIMEOUT, DDP_RANK_FAILURE). Writes at most `capacity` of them
   to `ranks`, and returns how many there are. */
DDP_C_EXPORT size_t ddp_last_error_ranks(int32_t* ranks, size_t capacity);

/* For callbacks: says why the callback is about to return another status than DDP_OK. */
DDP_C_EXPORT void ddp_set_last_error(const char* text);

/* The same, with the ranks that a DDP_TIMEOUT or DDP_RANK_FAILURE names. */
DDP_C_EXPORT void ddp_set_last_error_of_ranks(const char* text, const int32_t* ranks, size_t rank_count);

/* The version of the library, such as "0.1.0". */
DDP_C_EXPORT const char* ddp_version(void);

/* --- Elements and operations (ddp/memory.hpp, ddp/process_group.hpp) ---------------------------------------------- */

/* The type of elements. Names follow PyTorch; see ddp::DataType. */
typedef int32_t ddp_data_type;
enum {
  DDP_FLOAT32 = 0,       /* 4 bytes: float */
  DDP_FLOAT64 = 1,       /* 8 bytes: double */
  DDP_INT64 = 2,         /* 8 bytes, signed */
  DDP_FLOAT16 = 3,       /* 2 bytes: IEEE 754's binary16 */
  DDP_BFLOAT16 = 4,      /* 2 bytes: the upper half of a float32 */
  DDP_INT32 = 5,         /* 4 bytes, signed */
  DDP_UINT8 = 6,         /* 1 byte, unsigned */
  DDP_INT8 = 7,          /* 1 byte, signed */
  DDP_BOOLEAN = 8,       /* a byte that is 0 or 1 */
  DDP_FLOAT8_E4M3FN = 9, /* 1 byte: 4 bits of exponent, 3 of mantissa; no infinity */
  DDP_FLOAT8_E5M2 = 10   /* 1 byte: the upper half of a float16 */
};

/* What becomes of the elements of all ranks; see ddp::ReduceOp. */
typedef int32_t ddp_reduce_op;
enum {
  DDP_SUM = 0,       /* integers wrap around */
  DDP_AVERAGE = 1,   /* the sum divided by the ranks of the group; integers round towards zero */
  DDP_PRODUCT = 2,   /* integers wrap around */
  DDP_MIN = 3,       /* the smallest */
  DDP_MAX = 4,       /* the largest */
  DDP_PREMUL_SUM = 5 /* the sum of each rank's elements times the `factor` of its options */
};

/* --- Process groups ---------------------------------------------------------------------------------------------- */

typedef struct ddp_group_handle* ddp_group; /* the handle of a group of ranks */
typedef struct ddp_work_handle* ddp_work;   /* the handle of a collective under way */

/* A key-value store that the program lends to ddp_init_process_group(), which is over when that returns.

   Keys are up to 8 KiB of printable ASCII, and values up to 64 KiB of any bytes. Each callback ends within timeout_ms,
   and returns DDP_OK, DDP_TIMEOUT, or DDP_STORE_ERROR for anything else. It may say why with ddp_set_last_error().
   Threads: only the thread that calls ddp_init_process_group() calls them. */
typedef struct ddp_store {
  size_t struct_size; /* sizeof(ddp_store) */
  void* context;      /* what each callback gets */
  /* Sets a key, in the place of an older value. */
  ddp_status (*set)(void* context, const char* key, const void* value, size_t value_size, int64_t timeout_ms);
  /* Waits until the key is there. Copies its value to `value`, which has room for `capacity` bytes, and says how many
     bytes the value has. */
  ddp_status (*get)(void* context, const char* key, void* value, size_t capacity, size_t* value_size,
                    int64_t timeout_ms);
  /* Adds to a decimal number, atomically among all ranks. A key that is not there counts as 0. */
  ddp_status (*add)(void* context, const char* key, int64_t delta, int64_t* sum, int64_t timeout_ms);
  /* Waits until all keys are there. */
  ddp_status (*wait)(void* context, const char* const* keys, size_t key_count, int64_t timeout_ms);
  /* Removes a key. NULL: the store can't; then no two groups may have the same name. */
  ddp_status (*remove)(void* context, const char* key, int64_t timeout_ms);
} ddp_store;

/* Which rank this one is, and where it meets the others: for a program that knows, instead of the environment. */
typedef struct ddp_bootstrap {
  size_t struct_size;       /* sizeof(ddp_bootstrap) */
  int32_t rank;             /* 0 <= rank < rank_count */
  int32_t rank_count;       /* of the group; >= 1 */
  int32_t local_rank;       /* among the ranks of this host: 0 <= local_rank < local_rank_count */
  int32_t local_rank_count; /* 0: the ranks find out which of them share a host */
  /* With more than one rank exactly one of the two: a store that speaks PyTorch's TCPStore protocol, or callbacks. */
  const char* store_host; /* a name, or an IPv4 or IPv6 address */
  uint16_t store_port;    /* 1 to 65535 */
  const ddp_store* store; /* callbacks, instead of store_host and store_port */
  const char* name;       /* the same on all ranks; another for each group that meets in the store at the same time */
  const char* round;      /* as DDPRUN_ROUND_ID; NULL: rank 0 begins one */
  /* For ranks of other hosts: where this rank listens, as DDP_SOCKET_IFNAME and DDPRUN_PORT_RANGE. */
  const char* interface; /* NULL: any */
  uint16_t port_min;     /* the lowest port; 0: any free port */
  uint16_t port_max;     /* the highest port; >= port_min */
  uint32_t reserved;     /* 0 */
  /* NULL, or a group that has this rank, such as that of all ranks: the end of its round ends the new group, too, as
     it ends the groups of ddp_group_new(). */
  ddp_group parent;
} ddp_bootstrap;

/* Options of ddp_init_process_group(). */
typedef struct ddp_init_options {
  size_t struct_size;    /* sizeof(ddp_init_options) */
  const char* backend;   /* "cpu" (the default), "nccl", or "cpu:cpu,cuda:nccl" */
  int64_t timeout_ms;    /* of each collective, and of the meeting itself; 0: 600,000 */
  const int32_t* device; /* of the backend nccl, as the process sees it; NULL: by LOCAL_RANK */
  int32_t share_device;  /* not 0: two ranks of a host may have one device */
  int32_t reserved;      /* 0 */
} ddp_init_options;

/* Meets the other ranks. bootstrap NULL: who this rank is, and where the ranks meet, is in the environment, as ddprun,
   torchrun, mpirun or srun set it. options NULL: all defaults. */
DDP_C_EXPORT ddp_status ddp_init_process_group(const ddp_bootstrap* bootstrap, const ddp_init_options* options,
                                               ddp_group* group);

/* This rank leaves the group when no model and no checkpoints use it either. The other ranks' calls that need this rank
   fail from then on. */
DDP_C_EXPORT ddp_status ddp_group_destroy(ddp_group group);

/* What ddp_group_get_info() tells. */
typedef struct ddp_group_info {
  size_t struct_size;       /* sizeof(ddp_group_info) */
  int32_t rank;             /* 0 <= rank < rank_count */
  int32_t rank_count;       /* of the group */
  int32_t local_rank;       /* among the ranks of this host, as the launcher counts them */
  int32_t local_rank_count; /* ranks on this host, as the launcher counts them */
  int32_t is_on_gpu;        /* whether the memory of collectives is a GPU's, unless options say otherwise */
  int32_t device_index;     /* of that GPU; 0 on a CPU */
  int64_t timeout_ms;       /* of a collective whose options say none */
  char round[64];           /* the same on all ranks */
} ddp_group_info;

/* Fills *info: the ranks, the device, the timeout and the round of a group. Takes no collective. */
DDP_C_EXPORT ddp_status ddp_group_get_info(ddp_group group, ddp_group_info* info);

/* Gives up on the group, from any thread: its calls return DDP_ABORTED on this rank, and DDP_RANK_FAILURE on others as
   soon as they need this rank. */
DDP_C_EXPORT ddp_status ddp_group_abort(ddp_group group, const char* reason);

/* DDP_OK, or DDP_ROUND_OVER or DDP_ABORTED if the group was given up: for a program that waits for something else than
   a call of the group. It asks no other rank, so DDP_OK does not mean that all ranks are well. From any thread. */
DDP_C_EXPORT ddp_status ddp_group_check(ddp_group group);

/* Whether the program is to write its checkpoint and end with 0 now. Each process calls it once for each step, with one
   group, from one thread. */
DDP_C_EXPORT ddp_status ddp_group_should_stop(ddp_group group, int32_t* should_stop);

/* Collective: the ranks that give one color (0 or above) become a group, in the order of (key, rank). With a negative
   color *result is NULL. */
DDP_C_EXPORT ddp_status ddp_group_split(ddp_group group, int32_t color, int32_t key, ddp_group* result);

/* Collective: ranks[i] becomes rank i of a new group. *result is NULL on the other ranks. */
DDP_C_EXPORT ddp_status ddp_group_new(ddp_group group, const int32_t* ranks, size_t rank_count, ddp_group* result);

/* --- Collectives ------------------------------------------------------------------------------------------------- */

/* Options of one collective. */
typedef struct ddp_collective_options {
  size_t struct_size; /* sizeof(ddp_collective_options) */
  int64_t timeout_ms; /* from the call to its completion; 0: the group's */
  void* stream;       /* cudaStream_t; unused on a CPU */
  int32_t tag;        /* of sends and receives */
  int32_t on_host;    /* not 0: the memory is the host's, in a group of the backends cpu and nccl; not for
                         ddp_memory_allocate() */
  double factor;      /* of DDP_PREMUL_SUM, which has no default for it */
} ddp_collective_options;

/* Every rank calls the same collectives in the same order. `count` is the number of elements that one rank gives, the
   same on all ranks. options NULL: all defaults.

   work NULL: blocks until the result is there (on a GPU: for what comes after it on the stream). Else returns at once,
   and *work is the handle to wait for; memory must stay valid and untouched until then. Within ddp_coalesce() work must
   not be NULL. */

/* Every element becomes the sum (or what else `op` says) over all ranks of that element. */
DDP_C_EXPORT ddp_status ddp_all_reduce(ddp_group group, void* inout, size_t count, ddp_data_type type, ddp_reduce_op op,
                                       const ddp_collective_options* options, ddp_work* work);
/* Every rank's memory becomes a copy of root's. */
DDP_C_EXPORT ddp_status ddp_broadcast(ddp_group group, void* inout, size_t count, ddp_data_type type, int32_t root,
                                      const ddp_collective_options* options, ddp_work* work);

/* Output: rank_count * count elements, those of rank r from r * count on. */
DDP_C_EXPORT ddp_status ddp_all_gather(ddp_group group, const void* input, void* output, size_t count,
                                       ddp_data_type type, const ddp_collective_options* options, ddp_work* work);

/* Input: rank_count * count elements. Output: `count` elements, the sum of what is from rank * count on. */
DDP_C_EXPORT ddp_status ddp_reduce_scatter(ddp_group group, const void* input, void* output, size_t count,
                                           ddp_data_type type, ddp_reduce_op op, const ddp_collective_options* options,
                                           ddp_work* work);

/* Output is used on root only, and may be NULL elsewhere. */
DDP_C_EXPORT ddp_status ddp_reduce(ddp_group group, const void* input, void* output, size_t count, ddp_data_type type,
                                   ddp_reduce_op op, int32_t root, const ddp_collective_options* options,
                                   ddp_work* work);
DDP_C_EXPORT ddp_status ddp_gather(ddp_group group, const void* input, void* output, size_t count, ddp_data_type type,
                                   int32_t root, const ddp_collective_options* options, ddp_work* work);

/* Input is used on root only, and may be NULL elsewhere. */
DDP_C_EXPORT ddp_status ddp_scatter(ddp_group group, const void* input, void* output, size_t count, ddp_data_type type,
                                    int32_t root, const ddp_collective_options* options, ddp_work* work);

/* Both have rank_count * count elements. */
DDP_C_EXPORT ddp_status ddp_all_to_all(ddp_group group, const void* input, void* output, size_t count,
                                       ddp_data_type type, const ddp_collective_options* options, ddp_work* work);

/* The same where ranks have different counts: each array has one count for each rank. */
DDP_C_EXPORT ddp_status ddp_all_gather_v(ddp_group group, const void* input, void* output, const size_t* counts,
                                         ddp_data_type type, const ddp_collective_options* options, ddp_work* work);
DDP_C_EXPORT ddp_status ddp_reduce_scatter_v(ddp_group group, const void* input, void* output, const size_t* counts,
                                             ddp_data_type type, ddp_reduce_op op,
                                             const ddp_collective_options* options, ddp_work* work);
DDP_C_EXPORT ddp_status ddp_all_to_all_v(ddp_group group, const void* input, const size_t* input_counts, void* output,
                                         const size_t* output_counts, ddp_data_type type,
                                         const ddp_collective_options* options, ddp_work* work);

/* The n-th send of one rank to another meets the n-th receive there of the same tag (the options'), count and type. A
   rank that sends while its peer sends to it waits in vain, unless both are in one ddp_coalesce() with their receives.
 */
DDP_C_EXPORT ddp_status ddp_send(ddp_group group, const void* input, size_t count, ddp_data_type type, int32_t peer,
                                 const ddp_collective_options* options, ddp_work* work);
DDP_C_EXPORT ddp_status ddp_receive(ddp_group group, void* output, size_t count, ddp_data_type type, int32_t peer,
                                    const ddp_collective_options* options, ddp_work* work);
/* *source becomes the rank that the message is from. With a work it must stay valid as long as the output. */
DDP_C_EXPORT ddp_status ddp_receive_from_any(ddp_group group, void* output, size_t count, ddp_data_type type,
                                             int32_t* source, const ddp_collective_options* options, ddp_work* work);

/* Complete once every rank has called it and all collectives before it have. It blocks the host on a GPU too. */
DDP_C_EXPORT ddp_status ddp_barrier(ddp_group group, const ddp_collective_options* options, ddp_work* work);
/* Blocks. If it times out, ddp_last_error_ranks() has all ranks that are missing. */
DDP_C_EXPORT ddp_status ddp_monitored_barrier(ddp_group group, const ddp_collective_options* options);

/* The collectives that `calls` makes of this group begin as one when `calls` returns DDP_OK. If it returns another
   status nothing is begun, and ddp_coalesce() returns the same; works that `calls` was given never complete then, and
   are to be destroyed. work NULL: blocks until all are complete. */
DDP_C_EXPORT ddp_status ddp_coalesce(ddp_group group, ddp_status (*calls)(void* context), void* context,
                                     const ddp_collective_options* options, ddp_work* work);

/* --- Works: collectives under way. Any thread, also several at once. --------------------------------------------- */

/* On a CPU: blocks until the collective has completed, and returns what it failed with. On a GPU: orders the stream of
   its options behind it, and returns at once. */
DDP_C_EXPORT ddp_status ddp_work_wait(ddp_work work);

/* Blocks the host, on a GPU too, for at most timeout_ms. *is_completed is 0 if the collective goes on. */
DDP_C_EXPORT ddp_status ddp_work_wait_for(ddp_work work, int64_t timeout_ms, int32_t* is_completed);

/* Whether ddp_work_wait() would return without blocking. */
DDP_C_EXPORT ddp_status ddp_work_is_completed(ddp_work work, int32_t* is_completed);

/* How long the collective took; -1 if it has not completed, or has failed. */
DDP_C_EXPORT ddp_status ddp_work_duration(ddp_work work, int64_t* duration_ns);

/* Calls `callback` once, with the status of the collective, when that has completed: at once on this thread if it has,
   else on a thread of the library that serves all callbacks one by one. ddp_last_error() has the text there. `context`
   must stay valid until then. A callback must not wait for another collective, whose callback would come on the same
   thread. ddp_group_destroy() waits for callbacks: a lock that they take must not be held over it. */
DDP_C_EXPORT ddp_status ddp_work_on_completed(ddp_work work, void (*callback)(void* context, ddp_status status),
                                              void* context);

/* Cancels nothing: the collective goes on, and its memory stays in use until it has completed. */
DDP_C_EXPORT ddp_status ddp_work_destroy(ddp_work work);

/* --- Memory of the group: on a CPU shared by the processes of the host, so that collectives need no copy. --------- */

typedef struct ddp_memory_handle* ddp_memory; /* the handle of memory of a group */

/* Collective, with the same size on all ranks. *data is the memory, which is zero. It is freed with the handle. */
DDP_C_EXPORT ddp_status ddp_memory_allocate(ddp_group group, size_t bytes, const ddp_collective_options* options,
                                            ddp_memory* memory, void** data);
/* Frees the memory, when no model and no checkpoints use it either. */
DDP_C_EXPORT ddp_status ddp_memory_destroy(ddp_memory memory);

/* --- Data-parallel training (ddp/distributed_data_parallel.hpp) --------------------------------------------------- */

typedef struct ddp_model_handle* ddp_model;             /* the handle of a model */
typedef struct ddp_checkpoints_handle* ddp_checkpoints; /* the handle of what saves and loads checkpoints */

/* A named tensor in the program's memory, on the group's device. */
typedef struct ddp_tensor {
  size_t struct_size;   /* sizeof(ddp_tensor); the same in all of one array */
  const char* name;     /* unique among those of one call */
  const int64_t* shape; /* row-major, of `dimensions` numbers; one element without dimensions */
  size_t dimensions;    /* how many numbers the shape has; 0: a single element */
  void* values;         /* the first element */
  ddp_data_type type;   /* of the elements */
  int32_t reserved;     /* 0 */
} ddp_tensor;

/* What becomes of a parameter that is not ready at the end of a step; see ddp::Unused. */
enum { DDP_UNUSED_ERROR = 0, DDP_UNUSED_ZEROS = 1, DDP_UNUSED_KEEP = 2 };
/* What happens if a rank has fewer inputs than others; see ddp::UnevenInputs. */
enum { DDP_UNEVEN_OFF = 0, DDP_UNEVEN_DIVIDE_BY_ALL = 1, DDP_UNEVEN_DIVIDE_BY_ACTIVE = 2, DDP_UNEVEN_STOP = 3 };
/* How the buffers of a model stay equal on all ranks; see ddp::BufferSync. */
enum { DDP_BUFFERS_BROADCAST = 0, DDP_BUFFERS_AVERAGE = 1, DDP_BUFFERS_NONE = 2 };

/* Options of ddp_model_create(), the same on all ranks. */
typedef struct ddp_model_options {
  size_t struct_size;            /* sizeof(ddp_model_options) */
  size_t first_bucket_cap_bytes; /* 0: 1 MiB */
  size_t bucket_cap_bytes;       /* 0: 25 MiB; SIZE_MAX: found by trying, with rebuild_buckets */
  int32_t no_zero_gradients;     /* not 0: the program overwrites every gradient, so no step sets them to zero */
  int32_t rebuild_buckets;       /* not 0: once in the order of the first step; gradients have new addresses then */
  int32_t unused;                /* DDP_UNUSED_...: what becomes of a parameter that is not ready at the end */
  int32_t uneven_inputs;         /* DDP_UNEVEN_...: what ddp_model_join() does */
  int32_t static_graph;          /* not 0: every step uses the same parameters equally often */
  int32_t wait_in_finish;        /* not 0: ddp_model_finish() waits for a GPU too */
  int32_t check_finite;          /* not 0: ddp_model_finish() fails if a gradient is infinite or NaN */
  int32_t buffer_sync;           /* DDP_BUFFERS_...: how buffers stay equal */
  const ddp_tensor* buffers;     /* what the model keeps beside parameters */
  size_t buffer_count;           /* how many buffers; 0: none */
  int64_t timeout_ms;            /* of the model's collectives; 0: the group's */
  void* stream;                  /* cudaStream_t */
} ddp_model_options;

/* Collective. Compares names, shapes, types and options over all ranks, then broadcasts the values from rank 0. */
DDP_C_EXPORT ddp_status ddp_model_create(ddp_group group, const ddp_tensor* parameters, size_t parameter_count,
                                         const ddp_model_options* options, ddp_model* model);

/* With a step under way it gives up on the group: the others would wait in vain. */
DDP_C_EXPORT ddp_status ddp_model_destroy(ddp_model model);

/* Where backward writes, or adds to, the gradient of a parameter, and how many elements it has. Valid until the buckets
   are made anew: ddp_model_rebuild_buckets(), the end of the first step if the options ask for that, and a load of
   checkpoints that have the model. */
DDP_C_EXPORT ddp_status ddp_model_gradient(ddp_model model, size_t index, void** data, size_t* count);

/* A step: begin, ready for each parameter whose gradient is written, finish. is_synchronized 0: gradients are not
   averaged, and the next step adds to them. A model has one step at a time. */
DDP_C_EXPORT ddp_status ddp_model_begin_step(ddp_model model, int32_t is_synchronized);
/* Says that the gradient of parameter `index` is written and no longer touched until ddp_model_finish(). */
DDP_C_EXPORT ddp_status ddp_model_ready(ddp_model model, size_t index);
/* On a CPU gradients are the mean over ranks when it returns. active_ranks may be NULL: how many ranks had inputs. */
DDP_C_EXPORT ddp_status ddp_model_finish(ddp_model model, int32_t* active_ranks);
/* Gives up on the step; nothing if there is none. */
DDP_C_EXPORT ddp_status ddp_model_cancel_step(ddp_model model);

/* With uneven_inputs: this rank has no more inputs. Takes part in the steps of the others, and calls after_each_step,
   which may be NULL, after each of these, until all ranks have called it. */
DDP_C_EXPORT ddp_status ddp_model_join(ddp_model model, void (*after_each_step)(void* context), void* context);

/* Collective, between steps: returns the error of the last step, which on a GPU is not known before. */
DDP_C_EXPORT ddp_status ddp_model_check(ddp_model model);
/* Collective, between steps: fills the buckets anew in the order in which gradients became ready on rank 0. Gradients
   are zero then, and have new addresses. */
DDP_C_EXPORT ddp_status ddp_model_rebuild_buckets(ddp_model model);

/* Freezes a parameter, or no more, from the next step on; on every rank alike. ddp_model_ready() must not be called for
   a frozen parameter, and its gradient is zero. */
DDP_C_EXPORT ddp_status ddp_model_set_frozen(ddp_model model, size_t index, int32_t is_frozen);

/* With DDP_UNUSED_KEEP: whether no rank used the parameter in the last step. */
DDP_C_EXPORT ddp_status ddp_model_is_unused(ddp_model model, size_t index, int32_t* is_unused);

/* --- Checkpoints (ddp/checkpointer.hpp) -------------------------------------------------------------------------- */

/* Options of ddp_checkpoints_create(), the same on all ranks. */
typedef struct ddp_checkpoint_options {
  size_t struct_size;       /* sizeof(ddp_checkpoint_options) */
  const char* directory;    /* needed; it is made if it is missing */
  int32_t is_single_file;   /* not 0: rank 0 writes one safetensors file, else each rank writes its part */
  size_t keep;              /* complete checkpoints that stay; 0: 2 */
  int64_t write_timeout_ms; /* 0: 600,000 */
} ddp_checkpoint_options;

/* Makes what saves and loads the checkpoints of a folder. Collective. */
DDP_C_EXPORT ddp_status ddp_checkpoints_create(ddp_group group, const ddp_checkpoint_options* options,
                                               ddp_checkpoints* checkpoints);
/* Waits for the save under way. An error that no call has returned goes to stderr. */
DDP_C_EXPORT ddp_status ddp_checkpoints_destroy(ddp_checkpoints checkpoints);

/* What is saved and loaded: the same on all ranks, or each rank's own. All ranks add the same names in the same order,
   before the first save or load. The memory of the tensors stays where it is. */
DDP_C_EXPORT ddp_status ddp_checkpoints_add(ddp_checkpoints checkpoints, const ddp_tensor* tensors, size_t count);
DDP_C_EXPORT ddp_status ddp_checkpoints_add_own(ddp_checkpoints checkpoints, const ddp_tensor* tensors, size_t count);
/* The layout of its buckets. Parameters are added as tensors. */
DDP_C_EXPORT ddp_status ddp_checkpoints_add_model(ddp_checkpoints checkpoints, ddp_model model);

/* Copies everything, and returns while a thread writes it. Every rank calls it at the same step. */
DDP_C_EXPORT ddp_status ddp_checkpoints_save(ddp_checkpoints checkpoints, uint64_t step);
/* Until the last checkpoint is complete on all ranks. */
DDP_C_EXPORT ddp_status ddp_checkpoints_wait(ddp_checkpoints checkpoints);

/* Which checkpoint ddp_checkpoints_load() found. */
typedef struct ddp_loaded_checkpoint {
  size_t struct_size;    /* sizeof(ddp_loaded_checkpoint) */
  int32_t is_found;      /* 0: there is none, and nothing was changed */
  int32_t has_own_state; /* whether tensors of ddp_checkpoints_add_own() were loaded: as many ranks saved them */
  uint64_t step;         /* what ddp_checkpoints_save() was given */
  int32_t rank_count;    /* of the run that saved it */
  char round[64];        /* of the group that saved it */
  int32_t reserved;      /* 0 */
} ddp_loaded_checkpoint;

/* Collective: fills all tensors from the newest checkpoint that is complete and valid. */
DDP_C_EXPORT ddp_status ddp_checkpoints_load(ddp_checkpoints checkpoints, ddp_loaded_checkpoint* loaded);

/* --- Training that goes on in the same processes when a rank fails (ddp/elastic.hpp) ------------------------------ */

/* What a rank must have to go on where another one was. */
typedef struct ddp_elastic_state_handle* ddp_elastic_state;

/* State whose size changes, or that has no fixed place in memory: the program makes the copies and sends them itself.
   It has two copies in turns, so that a call that fails leaves the copy before whole. If a callback returns another
   status than DDP_OK, the call that made it returns that status.
   Threads: only a thread that is in a call with the state calls them. `context` must stay valid until the state is
   destroyed and no such call is under way. */
typedef struct ddp_elastic_contents {
  size_t struct_size; /* sizeof(ddp_elastic_contents) */
  void* context;      /* what each callback gets */
  /* Makes a copy, which is the newest one when it returns DDP_OK. */
  ddp_status (*commit)(void* context);
  /* Goes back to the newest copy. There is one. */
  ddp_status (*restore)(void* context);
  /* Collective: all ranks get the newest copy of rank `source`, or what its memory holds if it has none, by calls of
     the group, and keep that aside. The group is valid until the callback returns. */
  ddp_status (*fetch)(void* context, ddp_group group, int32_t source);
  /* All ranks have it: what fetch got is the newest copy now, and the state. */
  ddp_status (*adopt)(void* context);
} ddp_elastic_contents;

/* contents NULL: the state has nothing but what ddp_elastic_state_add() adds. */
DDP_C_EXPORT ddp_status ddp_elastic_state_create(const ddp_elastic_contents* contents, ddp_elastic_state* state);
DDP_C_EXPORT ddp_status ddp_elastic_state_destroy(ddp_elastic_state state);

/* Memory of this process, not of a GPU, which stays at its place for the life of the state. All ranks add the same, in
   the same order, before the first commit and before ddp_run_elastic(). */
DDP_C_EXPORT ddp_status ddp_elastic_state_add(ddp_elastic_state state, void* values, size_t bytes);

/* Keeps a copy: what a failure goes back to. All ranks call it at the same steps. */
DDP_C_EXPORT ddp_status ddp_elastic_state_commit(ddp_elastic_state state);

/* How many commits made the state, over all rounds and whichever ranks made them; 0 before the first. */
DDP_C_EXPORT ddp_status ddp_elastic_state_commits(ddp_elastic_state state, uint64_t* commits);

/* Options of ddp_run_elastic(). */
typedef struct ddp_elastic_options {
  size_t struct_size;            /* sizeof(ddp_elastic_options) */
  const ddp_init_options* group; /* of the group of each round */
  int64_t seat_timeout_ms;       /* longest wait for a part in the next round; 0: 900,000 */
} ddp_elastic_options;

/* Runs `train` in one round after another, until it has returned DDP_OK on all ranks. The group is the library's, and
   is destroyed when `train` returns: before that the program destroys all that was made of it.

   A `train` that ends because of a failure returns the status of the call that failed: DDP_TIMEOUT, DDP_RANK_FAILURE,
   DDP_ABORTED or DDP_ROUND_OVER. The state goes back to the newest commit then, and `train` is called again in the next
   round, with another group. With any other status ddp_run_elastic() returns that status, unless the round was over
   before: then any status but DDP_OUT_OF_MEMORY and DDP_ERROR is answered by the next round.

   The ranks that ddp_last_error_ranks() has at the end of `train` are taken for those of `world`: ddprun ends those
   that a DDP_TIMEOUT names. A DDP_TIMEOUT of another group names ranks of that group, so `train` drops them:
   ddp_set_last_error() with the text alone.

   If ddprun did not start this process, it calls `train` once, and returns each status.
   Threads: `train` and the callbacks of the state run on the thread of the call. One call at a time in a process. */
DDP_C_EXPORT ddp_status ddp_run_elastic(ddp_elastic_state state, ddp_status (*train)(void* context, ddp_group world),
                                        void* context, const ddp_elastic_options* options);

/* The launcher's store in the present round of this process, which the environment says of the first round only. */
typedef struct ddp_launcher_store {
  size_t struct_size; /* sizeof(ddp_launcher_store) */
  uint32_t port;      /* 0: none, as for a single rank, and where rank 0 serves a store of its own (mpirun, srun) */
  char host[260];     /* a name or an address, ended by 0 */
} ddp_launcher_store;

/* Where the store is now. */
DDP_C_EXPORT ddp_status ddp_get_launcher_store(ddp_launcher_store* store);

#ifdef __cplusplus
}
#endif

#endif
