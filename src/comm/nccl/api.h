#pragma once

#include <climits>
#include <cstddef>

// What is used of NCCL 2.26 and later, declared here because the library is opened at run time and
// its header needs CUDA's. tests/nccl compares it with the real one where that is found.

struct ncclComm;

namespace rannc::comm::nccl {

using Comm = ::ncclComm*;
using CudaStream = void*;  // cudaStream_t, or what another device's stream is known by

constexpr size_t kUniqueIdBytes = 128;
struct UniqueId {
  char internal[kUniqueIdBytes];
};

enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum DataType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};

enum RedOp : int { kSum = 0 };

constexpr unsigned kConfigMagic = 0xcafebeef;
constexpr int kUndefined = INT_MIN;
constexpr int kNoColor = -1;
constexpr int kOldestVersion = 22600;  // the first that orders launches of several communicators

/// The fields of 2.26; the library takes those that it does not find here as not set.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = kConfigMagic;
  unsigned version = kOldestVersion;
  int blocking = 0;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
  int traffic_class = kUndefined;
};
static_assert(sizeof(Config) == 48, "no padding that the library would take for a field");

/// The same with the fields that came up to 2.31.
struct OrderedConfig {
  Config config{.size = sizeof(OrderedConfig), .version = 23100};
  const char* comm_name = nullptr;
  int collnet_enable = kUndefined;
  int cta_policy = kUndefined;
  int shrink_share = kUndefined;
  int nvls_ctas = kUndefined;
  int channels_per_net_peer = kUndefined;
  int nvlink_centric_sched = kUndefined;
  int graph_usage_mode = kUndefined;
  int num_rma_ctx = kUndefined;
  int max_p2p_peers = kUndefined;
  int graph_stream_ordering = kUndefined;
  int launch_order_implicit = 1;
  int num_rma_sig = kUndefined;  // else it would be padding
};
static_assert(sizeof(OrderedConfig) == 104, "no padding that the library would take for a field");

/// The functions of an opened library.
struct Api {
  Result (*get_version)(int* version);
  Result (*get_unique_id)(UniqueId* id);
  Result (*comm_init_rank_config)(Comm* comm, int ranks, UniqueId id, int rank, Config* config);
  Result (*comm_split)(Comm comm, int color, int key, Comm* made, Config* config);
  Result (*comm_abort)(Comm comm);
  Result (*comm_get_async_error)(Comm comm, Result* error);
  Result (*send)(const void* data, size_t count, DataType type, int peer, Comm comm,
                 CudaStream stream);
  Result (*recv)(void* data, size_t count, DataType type, int peer, Comm comm, CudaStream stream);
  Result (*all_reduce)(const void* from, void* to, size_t count, DataType type, RedOp op, Comm comm,
                       CudaStream stream);
  Result (*reduce_scatter)(const void* from, void* to, size_t count_each, DataType type, RedOp op,
                           Comm comm, CudaStream stream);
  Result (*all_gather)(const void* from, void* to, size_t count_each, DataType type, Comm comm,
                       CudaStream stream);
  Result (*group_start)();
  Result (*group_end)();
  const char* (*get_error_string)(Result result);
  const char* (*get_last_error)(Comm comm);
};

/// Calls `see(name, function)` for each function and its name in the library.
template <class See>
void for_each_function(Api& api, See see) {
  see("ncclGetVersion", api.get_version);
  see("ncclGetUniqueId", api.get_unique_id);
  see("ncclCommInitRankConfig", api.comm_init_rank_config);
  see("ncclCommSplit", api.comm_split);
  see("ncclCommAbort", api.comm_abort);
  see("ncclCommGetAsyncError", api.comm_get_async_error);
  see("ncclSend", api.send);
  see("ncclRecv", api.recv);
  see("ncclAllReduce", api.all_reduce);
  see("ncclReduceScatter", api.reduce_scatter);
  see("ncclAllGather", api.all_gather);
  see("ncclGroupStart", api.group_start);
  see("ncclGroupEnd", api.group_end);
  see("ncclGetErrorString", api.get_error_string);
  see("ncclGetLastError", api.get_last_error);
}

}  // namespace rannc::comm::nccl
