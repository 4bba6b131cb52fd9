/* The stand-in for the CUDA runtime and NCCL, as a test sees it beside cuda_runtime_api.h.
 *
 * Devices are host memory; streams are threads of this process. Environment (faults are read at the first call and at
 * each restart, the rest whenever it is needed):
 *
 *   FAKE_GPU_DEVICES       how many devices there are; 8 without it
 *   CUDA_VISIBLE_DEVICES   as for CUDA: indices or uuids (GPU-46414b45-0000-0000-0000-000000000003 is device 3)
 *   FAKE_GPU_FAULTS        what goes wrong: "<call>:<nth>:<what>[:<number>]", separated by ';'. <nth> counts the calls
 *                          of that name in this process from 1 on; "3+" is the third and all after it. <what> is one of
 *       return:<code>      the call does nothing and returns the code
 *       sticky:<code>      CUDA only: this call and all later ones return the code, and streams do no more work
 *       async:<code>       NCCL only: the communicator gets this asynchronous error, and what was called never ends
 *       hang               what was called never ends: work on a stream, a communicator that stays "in progress". A
 *                          call that begins nothing of the kind never returns
 *       delay:<ms>         the same, but only so much later; a communicator is "in progress" meanwhile
 *       die                the process kills itself in the call
 *       die_inside         NCCL only: it kills itself when it has sent half of its first message
 *   FAKE_NCCL_VERSION      what ncclGetVersion says: 21700; else 22809 (libfake_nccl.so), 21805 (libfake_nccl_old.so)
 *   FAKE_NCCL_DEAD_PEER    "error" (as over sockets; the default): whoever needs a rank that has ended gets
 *                          ncclRemoteError; "hang" (as over shared memory): nobody is told. Either way what needs it
 *                          hangs until an abort
 *   NCCL_COMM_BLOCKING     as for NCCL: 0 or 1 goes before what a communicator's configuration says
 *   NCCL_HOSTID            as for NCCL: ranks of one host id must not share a device
 *   NCCL_DEBUG, NCCL_DEBUG_FILE  as for NCCL: from WARN on, lines of errors go to stdout or the file (%h and %p)
 *
 * Threads: any. */
#ifndef DDP_TESTS_FAKE_GPU_H
#define DDP_TESTS_FAKE_GPU_H

#ifdef __cplusplus
extern "C" {
#endif

/* How often this process has called it: "cudaStreamSynchronize", "ncclAllReduce". "host synchronisation" counts all
 * calls in which the host waited for a device, whatever their name; "context on device 3" is above 0 where CUDA would
 * by now take memory there. */
unsigned long fake_gpu_calls(const char* name);

/* How many of a kind exist: "cudaStream", "cudaEvent", "cudaMalloc", "cudaMallocHost", "ncclMemAlloc", "ncclComm",
 * "ncclCommRegister", "ncclRedOp". */
unsigned long fake_gpu_live(const char* kind);

/* Ends all streams once their work is done, frees all memory, and starts anew: faults, counts, the sticky error. Work
 * that hangs by a fault is let go; communicators must have been destroyed or aborted. Before a test forks, and after
 * each test that does not end its process. */
void fake_gpu_restart(void);

#ifdef __cplusplus
}
#endif

#endif
