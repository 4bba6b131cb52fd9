// The declarations of NCCL that libddp brings, against those of NCCL itself.
#include <nccl.h>

#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>

#include "worker_runtime/backends/nccl/nccl_abi.hpp"

namespace ddp::nccl_backend::abi {
namespace {

template <class Ours, class Theirs>
constexpr bool is_number(Ours ours, Theirs theirs) {
  return static_cast<int>(ours) == static_cast<int>(theirs) && sizeof(Ours) == sizeof(Theirs);
}

static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId) && alignof(UniqueId) == alignof(ncclUniqueId));
static_assert(std::is_same_v<Stream, cudaStream_t>);

static_assert(is_number(Result::success, ncclSuccess) &&
              is_number(Result::unhandled_cuda_error, ncclUnhandledCudaError) &&
              is_number(Result::system_error, ncclSystemError) &&
              is_number(Result::internal_error, ncclInternalError) &&
              is_number(Result::invalid_argument, ncclInvalidArgument) &&
              is_number(Result::invalid_usage, ncclInvalidUsage) && is_number(Result::remote_error, ncclRemoteError) &&
              is_number(Result::in_progress, ncclInProgress));
static_assert(is_number(DataType::int8, ncclInt8) && is_number(DataType::uint8, ncclUint8) &&
              is_number(DataType::int32, ncclInt32) && is_number(DataType::uint32, ncclUint32) &&
              is_number(DataType::int64, ncclInt64) && is_number(DataType::uint64, ncclUint64) &&
              is_number(DataType::float16, ncclFloat16) && is_number(DataType::float32, ncclFloat32) &&
              is_number(DataType::float64, ncclFloat64) && is_number(DataType::bfloat16, ncclBfloat16));
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 3)
static_assert(is_number(DataType::float8_e4m3, ncclFloat8e4m3) && is_number(DataType::float8_e5m2, ncclFloat8e5m2));
#endif
static_assert(is_number(RedOp::sum, ncclSum) && is_number(RedOp::product, ncclProd) && is_number(RedOp::max, ncclMax) &&
              is_number(RedOp::min, ncclMin) && is_number(RedOp::average, ncclAvg));
static_assert(is_number(ScalarResidence::device, ncclScalarDevice) &&
              is_number(ScalarResidence::host_immediate, ncclScalarHostImmediate));
static_assert(version_code(2, 18, 1) == NCCL_VERSION(2, 18, 1) && kSplitNoColor == NCCL_SPLIT_NOCOLOR);
static_assert(kUndefinedInt == NCCL_CONFIG_UNDEF_INT);

static_assert(offsetof(Config, size) == offsetof(ncclConfig_t, size) &&
              offsetof(Config, magic) == offsetof(ncclConfig_t, magic) &&
              offsetof(Config, version) == offsetof(ncclConfig_t, version) &&
              offsetof(Config, blocking) == offsetof(ncclConfig_t, blocking) &&
              offsetof(Config, cga_cluster_size) == offsetof(ncclConfig_t, cgaClusterSize) &&
              offsetof(Config, min_ctas) == offsetof(ncclConfig_t, minCTAs) &&
              offsetof(Config, max_ctas) == offsetof(ncclConfig_t, maxCTAs) &&
              offsetof(Config, net_name) == offsetof(ncclConfig_t, netName) &&
              offsetof(Config, split_share) == offsetof(ncclConfig_t, splitShare));
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 3)
static_assert(offsetof(Config, traffic_class) == offsetof(ncclConfig_t, trafficClass) &&
              offsetof(Config, comm_name) == offsetof(ncclConfig_t, commName));
static_assert(sizeof(Config) <= sizeof(ncclConfig_t));
#endif

// A parameter of NCCL's in the words of this file.
template <class Theirs>
struct InOurWords {
  using Type = Theirs;
};
template <>
struct InOurWords<ncclResult_t> {
  using Type = Result;
};
template <>
struct InOurWords<ncclResult_t*> {
  using Type = Result*;
};
template <>
struct InOurWords<ncclComm_t> {
  using Type = Comm;
};
template <>
struct InOurWords<ncclComm_t*> {
  using Type = Comm*;
};
template <>
struct InOurWords<ncclUniqueId> {
  using Type = UniqueId;
};
template <>
struct InOurWords<ncclUniqueId*> {
  using Type = UniqueId*;
};
template <>
struct InOurWords<ncclConfig_t*> {
  using Type = Config*;
};
template <>
struct InOurWords<ncclDataType_t> {
  using Type = DataType;
};
template <>
struct InOurWords<ncclRedOp_t> {
  using Type = RedOp;
};

template <>
struct InOurWords<ncclRedOp_t*> {
  using Type = RedOp*;
};
template <>
struct InOurWords<ncclScalarResidence_t> {
  using Type = ScalarResidence;
};

template <class Function>
struct Translated;
template <class Back, class... Arguments>
struct Translated<Back(Arguments...)> {
  using Type = typename InOurWords<Back>::Type(typename InOurWords<Arguments>::Type...);
};

template <class Ours, class Theirs>
constexpr bool is_same_function = std::is_same_v<Ours, typename Translated<Theirs>::Type>;

static_assert(is_same_function<GetVersion, decltype(ncclGetVersion)>);
static_assert(is_same_function<GetUniqueId, decltype(ncclGetUniqueId)>);
static_assert(is_same_function<GetErrorString, decltype(ncclGetErrorString)>);
static_assert(is_same_function<GetLastError, decltype(ncclGetLastError)>);
static_assert(is_same_function<CommInitRankConfig, decltype(ncclCommInitRankConfig)>);
static_assert(is_same_function<CommSplit, decltype(ncclCommSplit)>);
static_assert(is_same_function<CommFinalize, decltype(ncclCommFinalize)>);
static_assert(is_same_function<CommDestroy, decltype(ncclCommDestroy)>);
static_assert(is_same_function<CommAbort, decltype(ncclCommAbort)>);
static_assert(is_same_function<CommGetAsyncError, decltype(ncclCommGetAsyncError)>);
static_assert(is_same_function<CommRegister, decltype(ncclCommRegister)>);
static_assert(is_same_function<CommDeregister, decltype(ncclCommDeregister)>);
static_assert(is_same_function<MemAlloc, decltype(ncclMemAlloc)>);
static_assert(is_same_function<MemFree, decltype(ncclMemFree)>);
static_assert(is_same_function<GroupStart, decltype(ncclGroupStart)>);
static_assert(is_same_function<GroupEnd, decltype(ncclGroupEnd)>);
static_assert(is_same_function<RedOpCreatePreMulSum, decltype(ncclRedOpCreatePreMulSum)>);
static_assert(is_same_function<RedOpDestroy, decltype(ncclRedOpDestroy)>);
static_assert(is_same_function<AllReduce, decltype(ncclAllReduce)>);
static_assert(is_same_function<Broadcast, decltype(ncclBroadcast)>);
static_assert(is_same_function<Reduce, decltype(ncclReduce)>);
static_assert(is_same_function<AllGather, decltype(ncclAllGather)>);
static_assert(is_same_function<ReduceScatter, decltype(ncclReduceScatter)>);
static_assert(is_same_function<Send, decltype(ncclSend)>);
static_assert(is_same_function<Recv, decltype(ncclRecv)>);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
static_assert(is_same_function<AlltoAll, decltype(ncclAlltoAll)>);
static_assert(is_same_function<Gather, decltype(ncclGather)>);
static_assert(is_same_function<Scatter, decltype(ncclScatter)>);
#endif

TEST(NcclAbi, ConfigSaysWhatTheLibraryChecks) {
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const Config ours;
  EXPECT_EQ(ours.magic, theirs.magic);
  EXPECT_EQ(ours.size, sizeof(Config));
  EXPECT_EQ(ours.blocking, theirs.blocking);
  EXPECT_EQ(ours.split_share, theirs.splitShare);
  EXPECT_EQ(ours.traffic_class, theirs.trafficClass);
  EXPECT_EQ(ours.comm_name, theirs.commName);
}

}  // namespace
}  // namespace ddp::nccl_backend::abi
